"""The run folder: what lies where, and log files that a resumed run continues without a seam.

    RUN/config.json           the resolved configuration
        sources.json          where each value comes from
        environment.json      versions, device, threads
        metrics.jsonl         one line a step
        rounds.jsonl[.gz]     one line a rollout pair: texts, summary passed on, reward terms
        checkpoints/step-N/   the whole training state after N steps
        evaluations/          written by `agon eval`

A log file is only ever appended to. A checkpoint records the files' sizes; resuming cuts them back
to those sizes, so that nothing stands in them twice.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from agon.config import Config, LoggingConfig
from agon.errors import CheckpointError, ConfigError
from agon.records import Challenge, Draft, Round

MAX_GOLD_CHARACTERS = 1_000
"""A longer gold answer is shortened in rounds.jsonl."""


class RunFolder:
    """Paths of one run."""

    def __init__(self, path: Path):
        """Name a run's folder; it need not exist yet."""
        self.path = path
        self.config = path / "config.json"
        self.sources = path / "sources.json"
        self.environment = path / "environment.json"
        self.metrics = path / "metrics.jsonl"
        self.checkpoints = path / "checkpoints"
        self.evaluations = path / "evaluations"

    def rounds(self, logging: LoggingConfig) -> Path:
        """Where rounds are written."""
        return self.path / ("rounds.jsonl.gz" if logging.compress else "rounds.jsonl")

    def check_new(self) -> None:
        """Check that a run can begin here, without leaving anything behind.

        Raises:
            ConfigError: One stands here already, or the folder cannot be made.
        """
        above = next(path for path in (self.path, *self.path.absolute().parents) if path.exists())
        if not above.is_dir() or not os.access(above, os.W_OK):
            raise ConfigError(
                f"--run-dir {self.path} cannot be made: {above} is no folder that can be written"
            )
        if self.config.exists():
            raise ConfigError(
                f"{self.path} holds a run already: continue it with `agon train --resume "
                f"{self.path}` or choose another folder with --run-dir"
            )

    def create(self) -> None:
        """Make the folder.

        Raises:
            ConfigError: It holds a run already, or cannot be made.
        """
        self.check_new()
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"--run-dir {self.path} cannot be made: {error.strerror}") from error

    def read_config(self) -> Config:
        """The configuration of an existing run.

        Raises:
            CheckpointError: There is no run here, or its configuration cannot be read.
        """
        if not self.config.is_file():
            raise CheckpointError(
                f"{self.path} is no run folder: it has no config.json. Runs lie under runs/ "
                "unless --run-dir said otherwise"
            )
        try:
            return Config.model_validate(json.loads(self.config.read_text()))
        except ValueError as error:
            raise CheckpointError(f"{self.config} cannot be read: {error}") from error


def default_run_name(recipe: str) -> str:
    """A folder name from the recipe's name and the time."""
    return f"{recipe}-{datetime.now():%Y%m%d-%H%M%S}"


def write_atomically(path: Path, text: str) -> None:
    """Write a small file aside and rename it into place."""
    aside = path.with_name(f".{path.name}.part")
    with aside.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)


class LogFile:
    """A JSONL file, plain or compressed, appended to a step at a time."""

    def __init__(self, path: Path, size: int | None = None):
        """Open for appending.

        Args:
            path: The file; a name that ends with .gz is compressed, one gzip member a step.
            size: Cut the file back to so many bytes first.

        Raises:
            CheckpointError: The file is shorter than `size`, so lines are missing.
        """
        self._compress = path.suffix == ".gz"
        # Unbuffered: a line that did not fit on the disk is not tried again when the file closes.
        self._file = path.open("ab", buffering=0)
        if size is not None:
            actual = self._file.seek(0, os.SEEK_END)
            if actual < size:
                self._file.close()
                raise CheckpointError(
                    f"{path} has {actual} bytes, the checkpoint was written at {size}: the file "
                    "was cut or replaced; restore it or start a new run"
                )
            self._file.truncate(size)
            self._file.seek(size)  # `sync` tells the size by the position

    def append(self, rows: Iterable[dict[str, Any]]) -> None:
        """Write one step's lines."""
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        if text:
            # A lone surrogate in a question becomes the JSON escape that it is read back from.
            data = text.encode("utf-8", "backslashreplace")
            # A fixed time in the header: the same rows give the same bytes.
            data = gzip.compress(data, mtime=0) if self._compress else data
            while data:
                data = data[self._file.write(data) :]

    def sync(self) -> int:
        """Bring everything to the disk and return the file's size in bytes."""
        os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def round_rows(played: Round, only: str = "all") -> list[dict[str, Any]]:
    """One line for each draft, with the challenge that answered it.

    Args:
        played: The round.
        only: `all`, or `sampled` for one problem of the step, or `none`.
    """
    if only == "none":
        return []
    count = len(played.problems)
    chosen = range(count) if only == "all" else [played.step % count]
    rows = []
    for p in chosen:
        for n, draft in enumerate(played.drafts_PN[p]):
            row: dict[str, Any] = {
                "step": played.step,
                "problem": played.problems[p].id,
                "question": played.problems[p].question,
                "gold": shown_gold(played.problems[p].gold),
                "sample": n,
                "draft": _rollout(draft),
            }
            if played.challenges_PN[p]:
                challenge = played.challenges_PN[p][n]
                row["challenge"] = {
                    **_rollout(challenge),
                    "shown": challenge.shown,
                    "rival_sample": challenge.rival,
                }
            rows.append(row)
    return rows


def shown_gold(gold: str) -> str:
    """A gold answer for a log: a program's tests may be megabytes, and are named by their hash."""
    if len(gold) <= MAX_GOLD_CHARACTERS:
        return gold
    digest = hashlib.sha256(gold.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{gold[:100]}... ({len(gold)} characters, sha256 {digest[:16]})"


def _rollout(rollout: Draft | Challenge) -> dict[str, Any]:
    reply = rollout.reply
    return {
        "policy": reply.completion.policy.name,
        "version": reply.completion.policy.version,
        "text": reply.text,
        "summary": reply.summary,
        "answer": reply.answer,
        "format_score": reply.format_score,
        "tokens": reply.length,
        "prompt_tokens": len(rollout.prompt.token_ids),
        "truncated": reply.completion.truncated,
        "outcome": str(rollout.verdict.outcome),
        "reason": rollout.verdict.reason,
        **({"tests": rollout.verdict.tests} if rollout.verdict.tests else {}),
        "reward": None if rollout.reward is None else asdict(rollout.reward),
        "total_reward": None if rollout.reward is None else rollout.reward.total,
        "advantage": rollout.advantage,
    }
