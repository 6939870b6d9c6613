"""`agon verify`: explain one verdict, or judge a file of answers.

Exit status of one verdict: 0 right, 1 wrong, 2 unscored. Of a file: 0; 1 where a verdict is not
the expected one (`equal`) or could not be reached. 2 is also for what cannot be used at all.

What this module does not do: judge (`agon.verifiers` does), or find answers (`claims` does).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO

from rich.console import Console

from agon.commands.claims import KINDS, Claim, Kind, find_answer, read_claims
from agon.commands.verdicts import Summary, explanation, record, write_line
from agon.errors import ConfigError, DataError
from agon.recipes import build_config
from agon.records import Outcome, Verdict
from agon.verifiers import PooledJudge

CHUNK = 512
"""Rows that are judged together, so that a long file needs little memory."""


def verify(
    file: str | None,
    gold: str | None,
    pred: str | None,
    kind: str,
    verifier: str,
    thinking_open: bool,
    overrides: Sequence[str],
    out: Path | None,
    as_json: bool,
    console: Console,
) -> int:
    """Explain one verdict or judge a file, whichever the options name.

    Args:
        file: As for `verify_file`.
        gold: A gold answer, with `pred` and without `file`.
        pred: The text to judge against it.
        kind: How `pred`, or a row without `pred_kind`, is read.
        verifier: Who judges, or judges a row without `verifier`.
        thinking_open: As for `verify_file`.
        overrides: As for `verify_file`.
        out: As for `verify_file`.
        as_json: As for `verify_file`; of one verdict, whether it is one JSON object.
        console: Where to write.

    Returns:
        The exit status that this module's head states.

    Raises:
        AgonError: Anything that the user can mend.
    """
    named = next((known for known in KINDS if known == kind), None)
    if named is None:
        raise ConfigError(f"--kind: got {kind!r}, expected one of {', '.join(KINDS)}")
    if file is not None and gold is None and pred is None:
        return verify_file(file, named, verifier, thinking_open, overrides, out, as_json, console)
    if file is not None or gold is None or pred is None or out is not None:
        raise ConfigError(
            "give either --gold and --pred, or FILE (- is standard input), which alone takes --out"
        )
    answer, rule = find_answer(pred, named, thinking_open)
    return explain(Claim("--gold", gold, answer, rule, verifier), overrides, as_json, console)


def explain(claim: Claim, overrides: Sequence[str], as_json: bool, console: Console) -> int:
    """Judge one answer and say how the verdict came about.

    Returns:
        The exit status: 0 right, 1 wrong, 2 unscored.

    Raises:
        AgonError: Anything that the user can mend.
    """
    with open_judge(overrides) as judge:
        [verdict] = judge_claims(judge, [claim])
    if as_json:
        fields = {"extraction": claim.rule} | record(claim, verdict)
        fields.pop("id")
        write_line(console.file, fields)
    else:
        for line in explanation(claim, verdict):
            console.out(line, highlight=False)
    return {Outcome.RIGHT: 0, Outcome.WRONG: 1, Outcome.UNSCORED: 2}[verdict.outcome]


def verify_file(
    file: str,
    kind: Kind,
    verifier: str,
    thinking_open: bool,
    overrides: Sequence[str],
    out: Path | None,
    as_json: bool,
    console: Console,
) -> int:
    """Judge a JSON Lines file of rows with `gold` and `pred`.

    A row may also have `id`, `pred_kind`, `verifier` and `equal`, the expected verdict as true or
    false. Other fields are left alone. `pred` may be null: a reply without an answer.

    Args:
        file: The file, or `-` for standard input.
        kind: How `pred` is read where the row has no `pred_kind`.
        verifier: Who judges where the row has no `verifier`.
        thinking_open: For replies: whether their prompts ended inside a thinking block.
        overrides: Changes of `verifier` and `code` settings.
        out: Where the verdicts go, one JSON object a row; None is standard output, and the summary
            then goes to standard error.
        as_json: Whether the summary is one JSON object.
        console: Where to write.

    Returns:
        The exit status: 0, or 1 where a verdict is not as expected or could not be reached.

    Raises:
        AgonError: Anything that the user can mend; rows before a faulty one have been judged.
    """
    summary = Summary()
    with open_judge(overrides) as judge, open_target(out, console) as target:
        claims = read_claims(file, kind, verifier, thinking_open)
        while chunk := list(islice(claims, CHUNK)):
            for claim, verdict in zip(chunk, judge_claims(judge, chunk), strict=True):
                write_line(target, record(claim, verdict))
                summary.add(claim, verdict)
        if not summary.outcomes:
            raise DataError(f"{file} has no rows. Give one JSON object a line, with gold and pred.")
    beside = console if out is not None else Console(stderr=True)
    if as_json:
        write_line(beside.file, summary.record())
    else:
        for line in summary.lines():
            beside.out(line, highlight=False)
    return summary.status


def judge_claims(judge: PooledJudge, claims: Sequence[Claim]) -> list[Verdict]:
    """One verdict for each claim; a reply without an answer is wrong, as in training."""
    verdicts = judge.judge([(claim.problem, claim.answer) for claim in claims])
    return [
        verdict
        if claim.answer is not None
        else Verdict(Outcome.WRONG, f"no answer was found: {claim.rule}")
        for claim, verdict in zip(claims, verdicts, strict=True)
    ]


def open_judge(overrides: Sequence[str]) -> PooledJudge:
    """A judge with the default limits and the user's changes.

    Raises:
        ConfigError: An override that names no setting, or a value that it cannot have.
    """
    config = build_config({}, overrides, "--set")
    return PooledJudge(config.verifier, config.code)


@contextmanager
def open_target(out: Path | None, console: Console) -> Iterator[IO[str]]:
    """Standard output, or a file that is written aside and renamed when it is complete."""
    if out is None:
        yield console.file
        return
    aside = out.with_name(f".{out.name}.part")
    try:
        opened = aside.open("w", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--out: {out} cannot be written ({error.strerror})") from error
    try:
        with opened:
            yield opened
        aside.replace(out)
    finally:
        aside.unlink(missing_ok=True)
