"""A sandbox for programs that a language model wrote: Python, judged by what it prints.

Read in this order: `limits` (what a run may take, how it ended), `sandbox` (how a verifier runs
one), `launcher` and `supervisor` (the processes behind it), `jail` and `confine` (what a program
sees and may do), `kinds` and `isolation` (which protection is in force).

It is made for programs that are wrong, greedy or written to cheat. It is not made against an
attacker who holds an exploit for the kernel: for that, run Agon in a virtual machine. Nor does it
hide the CPU's model, the kernel's version or the time.
"""

from agon.sandbox.isolation import Isolation, NoIsolation, describe, open_sandbox
from agon.sandbox.kinds import Kind, Unavailable
from agon.sandbox.limits import Ending, Limits, Status
from agon.sandbox.sandbox import Result, Running, Sandbox, SandboxError, read_only

__all__ = [
    "Ending",
    "Isolation",
    "Kind",
    "Limits",
    "NoIsolation",
    "Result",
    "Running",
    "Sandbox",
    "SandboxError",
    "Status",
    "Unavailable",
    "describe",
    "open_sandbox",
    "read_only",
]
