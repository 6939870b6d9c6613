"""Many short requests on one server: does anything stay behind?

    python benchmarks/soak.py [--requests 10000] [--seconds 180] [--clients 16] [--json FILE]

A server of a fresh pair over the embedded base takes a mix of requests: cascades and single passes,
whole and streamed, chats and completions, bad ones, and clients that go away in the middle. In ten
equal parts of the run the memory, threads and open files of its process and its own gauges are
read, between requests. Exit status 1 where something is left: a slot, a waiting stage, a completion
in work, an open file; or where memory still grows: the last fifth's mean lies more than 5 % above
that of the second.

Bounded in number and time; it asks this machine's loopback address alone.
"""

# ruff: noqa: I001 - `common` makes settings that torch reads when it is imported

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import common
import httpx
from serving import Server, fresh_run, problems_of

PARTS = 10
GROWTH = 0.05
QUICK = {"requests": 60, "seconds": 60.0}


def read_arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = common.parser("Many short requests: does anything stay behind?")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=3600.0, help="longest time")
    parser.add_argument("--clients", type=int, default=16)
    parser.set_defaults(model="embedded", threads=[1])
    return common.parse(parser, QUICK, given)


async def one(client: httpx.AsyncClient, url: str, problem: str, draw: random.Random) -> str:
    """One request of a random kind; returns the kind."""
    kind = draw.choice(["cascade", "cascade", "alone", "streamed", "completion", "bad", "left"])
    chat = {
        "model": "agon" if kind in ("cascade", "streamed", "left") else "a",
        "messages": [{"role": "user", "content": problem}],
        "max_tokens": draw.randint(4, 24),
    }
    if kind in ("streamed", "left"):
        stream = client.stream("POST", f"{url}/v1/chat/completions", json={**chat, "stream": True})
        async with stream as answer:
            async for _line in answer.aiter_lines():
                if kind == "left" and draw.random() < 0.3:
                    break
    elif kind == "completion":
        body = {"model": "b", "prompt": problem, "max_tokens": 8, "n": 2}
        answer = await client.post(f"{url}/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
    elif kind == "bad":
        answer = await client.post(f"{url}/v1/chat/completions", json={**chat, "top_p": 0.5})
        assert answer.status_code == 400, answer.text
    else:
        answer = await client.post(f"{url}/v1/chat/completions", json=chat)
        assert answer.status_code == 200, answer.text
    return kind


async def part(url: str, problems: Sequence[str], number: int, clients: int, end: float) -> int:
    """So many requests by so many clients, until the time is over; returns how many were made."""
    left = iter(range(number))
    made = 0

    async def client(index: int, session: httpx.AsyncClient) -> None:
        nonlocal made
        draw = random.Random(f"{index}/{number}/{end}")
        for count in left:
            if time.monotonic() > end:
                return
            await one(session, url, problems[count % len(problems)], draw)
            made += 1

    async with httpx.AsyncClient(timeout=120.0) as session:
        await asyncio.gather(*(client(index, session) for index in range(clients)))
    return made


def state(server: Server) -> dict[str, float]:
    """The process's memory (KiB), threads and files, and the server's gauges once it is idle."""
    assert server.process is not None
    end = time.monotonic() + 30.0
    while True:
        text = httpx.get(f"{server.url}/metrics", timeout=30.0).text
        lines = [line.split() for line in text.splitlines() if not line.startswith("#")]
        figures = {line[0]: float(line[1]) for line in lines if len(line) == 2}
        gauges = {name: figures[f"agon_{name}"] for name in ("in_work", "rows", "waiting")}
        if not any(gauges.values()) or time.monotonic() > end:
            break
        time.sleep(0.05)
    process = Path(f"/proc/{server.process.pid}")
    status = dict(
        line.split(":", 1) for line in (process / "status").read_text().splitlines() if ":" in line
    )
    return {
        "memory_kib": float(status["VmRSS"].split()[0]),
        "threads": float(status["Threads"]),
        "files": float(len(list((process / "fd").iterdir()))),
        "prefix_tokens": figures["agon_prefix_tokens"],
        **gauges,
    }


def faults(states: Sequence[dict[str, float]]) -> list[str]:
    """What stays behind."""
    found = [
        f"{name} is {states[-1][name]:.0f} when nothing is asked"
        for name in ("in_work", "rows", "waiting")
        if states[-1][name]
    ]
    fifth = max(1, len(states) // 5)
    early = statistics.mean(s["memory_kib"] for s in states[fifth : 2 * fifth])
    late = statistics.mean(s["memory_kib"] for s in states[-fifth:])
    if late > (1 + GROWTH) * early:
        found.append(f"memory grew from {early:.0f} to {late:.0f} KiB")
    # Clients' connections may still be closing when files are counted.
    if states[-1]["files"] > states[1]["files"] + 4:
        found.append(f"open files grew from {states[1]['files']:.0f} to {states[-1]['files']:.0f}")
    if states[-1]["threads"] > states[1]["threads"] + 4:
        found.append("threads grew")
    return found


def main() -> None:
    """Run, print, and say whether anything was left."""
    arguments = read_arguments()
    facts = common.machine()
    common.describe(facts)
    states: list[dict[str, Any]] = []
    total, begin = 0, time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        run = fresh_run(Path(folder), arguments.model)
        problems = problems_of(run, 200)
        with Server(run, (), arguments.threads[0]) as server:
            states.append(state(server) | {"requests": 0})
            for number in range(PARTS):
                end = begin + arguments.seconds * (number + 1) / PARTS
                each = arguments.requests // PARTS
                total += asyncio.run(part(server.url, problems, each, arguments.clients, end))
                states.append(state(server) | {"requests": total})
    head = ["requests", "memory_kib", "threads", "files", "prefix_tokens", "rows", "waiting"]
    seconds = time.monotonic() - begin
    title = f"{total} requests in {seconds:.0f} s"
    common.show(title, head, [[f"{row[name]:.0f}" for name in head] for row in states])
    found = faults(states)
    print("\n" + ("left behind: " + "; ".join(found) if found else "nothing is left behind"))
    common.finish("soak", facts, arguments, {"states": states, "faults": found})
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
