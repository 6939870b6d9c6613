"""One page and its figures from an experiment's result files.

Computes no statistics: they come from `agon.experiments` and `agon.evaluation`. Reads no run
folders, only result files.
"""
