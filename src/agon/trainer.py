"""The loop: evaluate on dev, play a round, update both adapters, swap, log, save.

    for step in range(steps):
        round_ = play_round(batch of P problems)          both stages, policies as they stand
        for policy in (drafter, challenger):              one optimizer step each
            update(policy, the streams that it sampled)
        log; every k steps a checkpoint

A policy that plays both roles gets one optimizer step on the sum of its streams. Ctrl-C or SIGTERM
during sampling or evaluation drops the unfinished step and saves, as does the loss of a sampler
outside this process; during an update a signal waits for the step's end, so that a checkpoint
always lies between two steps.

Where there are several processes (`distributed`), each plays and updates on its own problems;
figures are those of all rollouts, every decision is the same everywhere, and rank 0 alone writes.
"""

from __future__ import annotations

import hashlib
import random
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from agon.checkpoints import State, save_checkpoint
from agon.config import Config
from agon.display import Display
from agon.distributed import ALONE, Processes, joined
from agon.engines.base import Sampling
from agon.errors import CheckpointError, NothingToLearn, Preempted, SamplerLost
from agon.evaluation.protocols import Attempt, System, evaluate
from agon.evaluation.statistics import summarise
from agon.heartbeat import Doing
from agon.interrupts import Interrupts
from agon.metrics import Figures, round_metrics
from agon.preflight import pass_steps, total_steps
from agon.records import Challenge, Draft, Outcome, Problem, Round
from agon.rounds import join_rounds, play_round
from agon.runs import LogFile, RunFolder, round_rows
from agon.update import Updater, UpdateStats, learning_rate
from agon.watch import Watch
from agon.workshop import Workshop

Tracker = Callable[[Figures, int], None]
"""Takes a step's figures and the step's number."""


def batch_of(step: int, problems: Sequence[Problem], config: Config) -> list[Problem]:
    """The P problems of a step: passes over a freshly shuffled order, without a remainder."""
    size = config.training.problems_per_step
    number, place = divmod(step, pass_steps(len(problems), config))
    order = list(range(len(problems)))
    random.Random(f"pass/{config.seeds.data}/{number}").shuffle(order)
    return [problems[index] for index in order[place * size : (place + 1) * size]]


def dev_systems(config: Config) -> list[System]:
    """What the dev evaluations of a run show: each adapter alone and each two-pass system."""
    if config.game.policies == 1:
        return [System(("a",)), System(("a", "a"))]
    return [System(("a",)), System(("b",)), System(("a", "b")), System(("b", "a"))]


class Stopwatch:
    """Sums the seconds of the parts of a step."""

    def __init__(self) -> None:
        """Start empty."""
        self.seconds: Figures = {}

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        """Time what runs inside."""
        started = time.perf_counter()
        try:
            yield
        finally:
            spent = time.perf_counter() - started
            self.seconds[part] = self.seconds.get(part, 0.0) + spent


class Trainer:
    """Trains one run.

    Attributes:
        step: Completed steps.
        steps: Steps of the whole run.
    """

    def __init__(
        self,
        config: Config,
        folder: RunFolder,
        workshop: Workshop,
        problems: Sequence[Problem],
        dev: Sequence[Problem],
        environment: dict[str, Any],
        trackers: Sequence[Tracker] = (),
        processes: Processes = ALONE,
    ):
        """Set up the optimizers.

        Args:
            config: The run's configuration.
            folder: Where the run is written; it exists.
            workshop: Policies, engine, judge and prompter.
            problems: Training problems.
            dev: Dev problems of the evaluations.
            environment: Versions and threads, kept in each checkpoint.
            trackers: Take each step's figures.
            processes: The run's processes.
        """
        self._config, self._folder, self._workshop = config, folder, workshop
        self._problems, self._dev = problems, dev
        joined = "\n".join(problem.id for problem in problems)
        self._problems_digest = hashlib.sha256(joined.encode()).hexdigest()[:16]
        self._environment, self._trackers = environment, trackers
        self._processes, self._first = processes, processes.rank == 0
        self.step = 0
        self.steps = total_steps(len(problems), config)
        self.updater = Updater(
            workshop.policies, config, workshop.language.pad_token_id, workshop.device, processes
        )
        self._watch = Watch(config.stop)
        self._logs: dict[str, LogFile] = {}
        self._saved_at: int | None = None

    def restore(self, state: State) -> None:
        """Continue after a checkpoint whose weights and moments are loaded.

        Raises:
            CheckpointError: The training problems are not those of the run so far.
        """
        if state.problems != self._problems_digest:
            raise CheckpointError(
                f"{self._folder.path}: the training problems are not those that the run began "
                "with, so the place in the data is lost. Restore the data set (task.path), or "
                "start a new run"
            )
        self.step = self._saved_at = state.step
        self._watch.restore(state.counters)
        self._open_logs(state.log_sizes)

    def run(self, display: Display) -> None:
        """Train to the end.

        Raises:
            NothingToLearn: See `watch`; the state is saved before.
            KeyboardInterrupt: Ctrl-C; the state is saved before.
            Preempted: SIGTERM; the state is saved before.
            ProcessLost: Another process died, hangs or has other adapters.
            SamplerLost: What samples is gone; the state is saved before.
            CheckpointError: Nothing more can be written.
        """
        if not self._logs:
            self._open_logs({})
        self._check_agreement()
        several = self._processes.size > 1
        try:
            with Interrupts(asked=self._processes.hurry, several=several) as interrupts:
                try:
                    self._all_steps(display, interrupts)
                except (KeyboardInterrupt, NothingToLearn, SamplerLost) as stop:
                    if isinstance(stop, KeyboardInterrupt):
                        kind = isinstance(stop, Preempted)
                        self._processes.stopping(Doing.PREEMPTED if kind else Doing.INTERRUPTED)
                    self._save()
                    raise
        finally:
            for log in self._logs.values():
                log.close()
            self._logs = {}

    def _all_steps(self, display: Display, interrupts: Interrupts) -> None:
        while self.step < self.steps:
            self._one_step(display, interrupts)
            if self.step % self._config.checkpoint.every == 0 or self.step == self.steps:
                self._save()
        with interrupts.droppable():
            self._last_evaluation(display)

    def _one_step(self, display: Display, interrupts: Interrupts) -> None:
        watch = Stopwatch()
        started = time.perf_counter()
        with interrupts.droppable():
            row: dict[str, Any] = {"step": self.step}
            if self._workshop.follower is not None:
                with watch("sync"):
                    row |= self._workshop.follower.sync()
            if self._config.evaluation.every and self.step % self._config.evaluation.every == 0:
                row |= self._evaluate(display, watch)
            problems = batch_of(self.step, self._problems, self._config)
            with self._workshop.sampling():
                mine = play_round(
                    problems, self.step, self._config, self._workshop.table, watch, self._processes
                )
            whole = join_rounds(self._processes.collect(mine, f"the round of step {self.step}"))
            figures = {} if whole is None else round_metrics(whole)
            figures = self._processes.from_first(figures, "the figures")
        row |= {"policies.draft": mine.drafter}
        if mine.challenger is not None:
            row["policies.challenge"] = mine.challenger
        row |= figures
        with watch("update"):
            row |= self._update(mine)
        self._check_agreement()
        row |= self._rest(watch, started, mine)
        if whole is not None:
            self._write("metrics", [row])
            self._write("rounds", round_rows(whole, self._config.logging.rounds))
        self.step += 1
        numbers = {key: float(v) for key, v in row.items() if isinstance(v, int | float)}
        for tracker in self._trackers:
            tracker(numbers, self.step)
        display.step(self.step - 1, row)
        for warning in self._watch.observe(figures):
            display.warn(warning)
        interrupts.check()

    def _update(self, played: Round) -> Figures:
        """Each policy's optimizer step on the streams that it sampled."""
        rate = learning_rate(self.step, self.steps, self._config.optimizer)
        figures: Figures = {"learning_rate": rate}
        for name, streams in streams_of(played).items():
            stats = self.updater.step(name, streams, rate)
            figures |= update_figures(name, stats)
        changes = self._workshop.policies.weight_changes()
        return figures | {f"adapters.{key}": value for key, value in changes.items()}

    def _check_agreement(self) -> None:
        """The adapters are the same to the bit at every process."""
        if self._processes.size > 1:
            names = self._workshop.policies.names
            digests = [f"{name} {self._workshop.policies.digest(name)}" for name in names]
            self._processes.agree(f"adapters after {self.step} steps", ", ".join(digests))

    def _rest(self, watch: Stopwatch, started: float, mine: Round) -> Figures:
        """Times and memory, of the slowest and the largest process; two equal runs may differ."""
        streams = streams_of(mine).values()
        tokens = sum(r.reply.length for parts in streams for part in parts for r in part)
        # Linux counts kibibytes, macOS bytes.
        unit = 1 if sys.platform == "darwin" else 1024
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
        figures = {f"time.{part}": seconds for part, seconds in watch.seconds.items()}
        figures["time.step"] = time.perf_counter() - started
        if self._processes.size > 1:
            figures["time.waiting"] = self._processes.waited
        figures["memory.peak_mib"] = peak / 2**20
        if self._workshop.device.type == "cuda":
            figures["memory.gpu_peak_mib"] = torch.cuda.max_memory_allocated() / 2**20
        everyone = self._processes.gather((figures, tokens), "the times")
        figures = {key: max(part[key] for part, _ in everyone) for key in figures}
        sampling = figures.get("time.draft", 0.0) + figures.get("time.challenge", 0.0)
        tokens = sum(count for _, count in everyone)
        figures["time.sampled_tokens_per_second"] = tokens / max(sampling, 1e-9)
        return figures

    def _evaluate(self, display: Display, watch: Stopwatch) -> Figures:
        sampling = Sampling(self._config.sampling.max_new_tokens, self._config.sampling.temperature)
        with watch("evaluation"), self._workshop.sampling():
            results = evaluate(
                dev_systems(self._config),
                self._processes.share(self._dev[: self._config.evaluation.problems]),
                1,
                self._config.seeds.evaluation,
                sampling,
                self._workshop.table,
            )
        parts = self._processes.collect(results, f"the dev evaluation before step {self.step}")
        whole = {name: joined(part[name] for part in parts) for name in results} if parts else {}
        display.evaluation(self.step, figures := self._dev_figures(whole, display))
        return figures

    def _dev_figures(self, results: dict[str, list[Attempt]], display: Display) -> Figures:
        figures: Figures = {}
        for name, attempts in results.items():
            if all(attempt.outcome is Outcome.UNSCORED for attempt in attempts):
                display.warn(f"dev evaluation of {name}: the judge failed on every answer")
                continue
            summary = summarise(attempts)
            figures[f"dev.{name}.pass"] = summary.pass_1
            figures[f"dev.{name}.last_length"] = summary.last_length
            figures[f"dev.{name}.tokens"] = summary.generated
        return figures

    def _last_evaluation(self, display: Display) -> None:
        """The evaluation after the last step, in a line of its own."""
        if self._config.evaluation.every == 0:
            return
        watch = Stopwatch()
        row = {"step": self.steps, **self._evaluate(display, watch)}
        row["time.evaluation"] = watch.seconds["evaluation"]
        if self._first:
            self._write("metrics", [row])
        for tracker in self._trackers:
            tracker({k: float(v) for k, v in row.items()}, self.steps)

    def _open_logs(self, sizes: dict[str, int]) -> None:
        paths = {
            "metrics": self._folder.metrics,
            "rounds": self._folder.rounds(self._config.logging),
        }
        if not self._first:
            return
        # A run that is continued without a checkpoint begins anew: sizes default to 0.
        self._logs = {key: LogFile(path, sizes.get(key, 0)) for key, path in paths.items()}

    def _write(self, log: str, rows: list[dict[str, Any]]) -> None:
        try:
            self._logs[log].append(rows)
        except OSError as error:
            raise self._unwritten(log, error) from error

    def _unwritten(self, log: str, error: OSError) -> CheckpointError:
        return CheckpointError(
            f"{self._folder.path}: cannot write {log} of step {self.step}: {error}. Free some "
            f"space and continue with `agon train --resume {self._folder.path}`"
        )

    def _save(self) -> None:
        if self._saved_at == self.step or not self._first:
            return
        sizes = {}
        for key, log in self._logs.items():
            try:
                sizes[key] = log.sync()
            except OSError as error:
                raise self._unwritten(key, error) from error
        state = State(
            step=self.step,
            versions={n: self._workshop.policies.version(n) for n in self._workshop.policies.names},
            log_sizes=sizes,
            problems=self._problems_digest,
            counters=self._watch.counters(),
            environment=self._environment,
        )
        save_checkpoint(
            self._folder.checkpoints,
            state,
            self._workshop.policies,
            self.updater.optimizers,
            self._config.checkpoint.keep,
        )
        self._saved_at = self.step


def streams_of(played: Round) -> dict[str, list[list[Draft | Challenge]]]:
    """Each policy's streams: all drafts it wrote, all challenges it wrote."""
    drafts: list[Draft | Challenge] = [d for group in played.drafts_PN for d in group]
    streams = {played.drafter: [drafts]}
    if played.challenger is not None:
        challenges: list[Draft | Challenge] = [c for g in played.challenges_PN for c in g]
        streams.setdefault(played.challenger, []).append(challenges)
    return streams


def update_figures(name: str, stats: UpdateStats) -> Figures:
    """An update's figures under the adapter's name."""
    figures = {
        f"update.{name}.loss": stats.loss,
        f"update.{name}.grad_norm": stats.grad_norm,
        f"update.{name}.clipped": stats.clipped,
        f"update.{name}.ratio_gap": stats.ratio_gap,
        f"update.{name}.row_share": stats.rows / stats.scored if stats.scored else 0.0,
    }
    if stats.capped is not None:
        figures[f"update.{name}.capped"] = stats.capped
    return figures
