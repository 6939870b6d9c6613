"""The page's words about itself: what it is, what is missing, and how its figures were made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agon import __version__
from agon.evaluation.statistics import RESAMPLES
from agon.experiments.matrix import Matrix
from agon.report.findings import Findings
from agon.report.words import count, direction, listed, points, points_interval

VERSIONS = ("agon-rl", "torch", "transformers", "peft", "numpy", "math-verify", "python")
SETTINGS = (
    ("model", "name_or_path"),
    ("task", "name"),
    ("training", "steps"),
    ("training", "problems_per_step"),
    ("sampling", "group_size"),
    ("sampling", "max_new_tokens"),
    ("sampling", "temperature"),
    ("optimizer", "learning_rate"),
    ("optimizer", "warmup"),
    ("objective", "aggregation"),
    ("objective", "clip"),
    ("adapters", "rank"),
    ("adapters", "start_scale"),
    ("reward", "format_weight"),
    ("game", "max_summary_tokens"),
)
"""What a reader asks first; the result files have the rest."""


@dataclass(frozen=True, slots=True)
class Opening:
    """The head of the page.

    Attributes:
        done: Cells that are in.
        wanted: All cells.
        missing: The missing ones by arm.
        sentences: What the primary contrasts say, one each.
    """

    done: int
    wanted: int
    missing: tuple[tuple[str, str], ...]
    sentences: tuple[str, ...]


def opening(found: Findings) -> Opening:
    """What is in, what is missing, what can be said so far."""
    matrix = found.matrix
    missing = []
    for arm in matrix.arm_names:
        seeds = [str(cell.seed) for cell in matrix.missing if cell.arm == arm]
        if seeds:
            missing.append((arm, ", ".join(seeds)))
    return Opening(matrix.done, len(matrix.wanted), tuple(missing), tuple(_sentences(found)))


def _sentences(found: Findings) -> list[str]:
    said = []
    for row in found.contrasts:
        gap = row.difference
        seeds = count(len(row.seeds), "seed")
        held = row.p_holm is not None and row.p_holm < 0.05
        if gap.p is None:
            verdict = "one seed, so nothing can be said of other runs"
        elif direction(gap) == "undecided":
            verdict = "the interval includes zero: undecided"
        elif held:
            verdict = "holds after Holm's correction"
        else:
            verdict = "the interval leaves zero out, but it does not hold after Holm's correction"
        said.append(
            f"{row.spec.name}: {row.spec.left.arm} minus {row.spec.right.arm} "
            f"{points(gap.mean)} points {points_interval(gap)}, {seeds}; {verdict}."
        )
    said += [f"{spec.name}: no seed of both arms is in yet." for spec in found.waiting]
    return said


@dataclass(frozen=True, slots=True)
class Methods:
    """The page's foot.

    Attributes:
        sentences: How figures were made.
        settings: Name and value of what all arms share, `varies` where arms differ.
        versions: Name and value; several where cells differ.
        left_out: Files that the experiment does not name.
        agon: The version that made the page.
    """

    sentences: tuple[str, ...]
    settings: tuple[tuple[str, str], ...]
    versions: tuple[tuple[str, str], ...]
    left_out: tuple[str, ...]
    agon: str


def methods(found: Findings) -> Methods:
    """How everything on the page was made."""
    matrix = found.matrix
    return Methods(
        sentences=_how(found),
        settings=tuple(_setting(matrix, section, field) for section, field in SETTINGS),
        versions=tuple(_version(matrix, name) for name in (*VERSIONS, "device", "machine")),
        left_out=tuple(path.name for path in matrix.left_out),
        agon=__version__,
    )


def _how(found: Findings) -> tuple[str, ...]:
    readings = max(run.data.get("test_readings", 1) for run in found.matrix.results)
    early = [run.cell.name for run in found.matrix.results if run.data.get("stopped")]
    return (
        f"Every figure is of the test split ({found.problems} problems, "
        f"{count(found.samples, 'attempt')} each) unless it says dev. The adapter that stands for "
        "a pair and the direction of a cascade are those with the higher pass@1 on the dev split "
        f"({found.dev_problems} problems), run by run; the test split chooses nothing. "
        + (
            "Each run read it once."
            if readings == 1
            else f"A run read it at most {readings} times: one that is killed reads it again."
        ),
        "pass@1 is the mean over problems of the share of right attempts; unscored attempts are "
        f"left out. The interval of an arm's mean is the 2.5th to 97.5th percentile of "
        f"{RESAMPLES:,} resamples of seeds and problems together (crossed, since every run answers "
        "the same problems); with few seeds it is too short, and with one it knows nothing of "
        "other runs.",
        "A difference of two arms is over the seeds that both have, paired by seed and problem; "
        "its interval is the wider of the same bootstrap's and Student's over the seeds' "
        "differences. p is Student's paired test over seeds: with one seed there is none. Only the "
        "primary contrasts are tested, with Holm's correction over all of them.",
        "Best of k is 1 − C(n−r, k)/C(n, k) averaged over problems; a majority is averaged over "
        "the windows of k consecutive attempts in a circle, answers compared as text without "
        "white space, ties to the earliest.",
        "Attempts of all systems are drawn with random numbers keyed by seed, stage, problem and "
        "number, so that systems are compared at equal luck.",
        "Training runs that ended early because nothing could be learned: "
        + (listed(early) if early else "none")
        + ".",
    )


def _values(values: Sequence[Any]) -> str:
    texts = list(dict.fromkeys(str(value) for value in values))
    if len(texts) == 1:
        return texts[0]
    return "varies: " + ", ".join(texts)


def _setting(matrix: Matrix, section: str, field: str) -> tuple[str, str]:
    configs: list[Mapping[str, Any]] = [run.data["config"] for run in matrix.results]
    return f"{section}.{field}", _values([config[section].get(field) for config in configs])


def _version(matrix: Matrix, name: str) -> tuple[str, str]:
    found = [run.data["environment"].get(name, "not recorded") for run in matrix.results]
    return name, _values(found)
