"""A user's module that is a program and not made to be imported."""

raise SystemExit(3)
