"""A question that somebody asks, as the problem that the task would make of it.

The id is the one that the task's own loader gives to the same question, so that a request with an
evaluation's seed is sampled as that evaluation samples it. There is no gold answer: nothing that
comes from here can be judged.
"""

from __future__ import annotations

from agon.records import Problem
from agon.tasks.countdown import make_problem, read_question
from agon.tasks.splits import stable_id


def problem_of(task: str, question: str) -> Problem:
    """The problem of a question's text.

    Args:
        task: Name of the run's task.
        question: The text; what cannot be encoded (lone surrogates) is replaced.

    Raises:
        ValueError: It is blank, or not of the form that the task's model was taught.
    """
    text = question.encode("utf-8", "replace").decode("utf-8")
    if not text.strip():
        raise ValueError("the problem is empty: give the problem's text")
    if task == "countdown":
        text = text.strip()
        return Problem(make_problem(*read_question(text)).id, text, "", "none")
    return Problem(stable_id(task, text), text, "", "none")
