"""A user's verifier whose module takes longer to import than a check may take."""

from __future__ import annotations

import time

time.sleep(2.5)


def same(gold: str, answer: str) -> bool:
    return gold == answer
