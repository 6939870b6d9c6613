"""Arms x seeds: what an experiment is, how its cells are run, and what each leaves behind."""
