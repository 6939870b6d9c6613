"""Systems made of base, a and b; their figures, table and plots."""
