"""Generates entries of a reasoning-gym data set, in a process of its own.

Run by `reasoning_gym` as `python -m agon.tasks.generate SPEC` with a fixed hash seed: some
generators walk over sets of texts, whose order is another in every process. SPEC is JSON with
dataset, options, seed, size and wanted; the answer is JSON on standard output, one of

    {"entries": [[index, question, answer], ...], "looked_at": number}
    {"config": message} | {"data": message}
"""

from __future__ import annotations

import contextlib
import json
import sys
from typing import Any

from agon.tasks.splits import normalise_question
from agon.verifiers.generated_worker import create


def main(spec: str) -> None:
    """Print the first different questions of a data set, with their answers."""
    with contextlib.redirect_stdout(sys.stderr):  # some generators print dots while they work
        found = generate(json.loads(spec))
    sys.stdout.write(json.dumps(found))


def generate(spec: dict[str, Any]) -> dict[str, Any]:
    """Entries, or what is wrong."""
    name, options = spec["dataset"], spec["options"]
    try:
        dataset = create(name, options, spec["seed"], spec["size"])
    except (TypeError, ValueError, AssertionError) as error:
        return {
            "config": f"task.dataset_options: {name} does not take {options}: "
            f"{error or type(error).__name__}"
        }
    entries: dict[str, tuple[int, str, str | None]] = {}
    index = 0
    while len(entries) < spec["wanted"] and index < spec["size"]:
        try:
            entry = dataset[index]
        except Exception as error:  # generators raise whatever they like
            return {
                "data": f"task.dataset: {name} fails to generate entry {index}: "
                f"{type(error).__name__}: {error}. Change task.dataset_options or "
                "task.generator_seed"
            }
        key = normalise_question(entry["question"])
        entries.setdefault(key, (index, entry["question"], entry["answer"]))
        index += 1
    return {"entries": list(entries.values()), "looked_at": index}


if __name__ == "__main__":
    main(*sys.argv[1:])
