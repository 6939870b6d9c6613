"""Errors that a user can mend. The command line prints their text alone and exits with 2."""

from __future__ import annotations


class AgonError(Exception):
    """Says what was wrong, what was expected, and what to do."""


class ConfigError(AgonError):
    """A recipe, an override or a combination of settings that cannot work."""


class DataError(AgonError):
    """A file or a row of a data set that cannot be used."""


class Unreachable(ConfigError, DataError):
    """Something is not to be had here, the hub or vLLM; a dry run says so and goes on."""


class AdapterError(AgonError):
    """An adapter folder that does not belong to this base or this configuration."""


class CheckpointError(AgonError):
    """A run folder or checkpoint that cannot be read or written."""


class EngineError(AgonError):
    """The engine cannot sample what it was asked for."""


class SamplerLost(EngineError):
    """What samples is gone or answers no more; the training state is whole and can be saved."""


class NothingToLearn(AgonError):
    """Training stopped since no gradient can come: all truncated, or every group flat."""


class ProcessLost(AgonError):
    """One of a run's processes died, hangs or does not agree with the others; names its rank."""


class Preempted(KeyboardInterrupt):
    """The process was asked to end (SIGTERM); the run goes on later from its checkpoint."""
