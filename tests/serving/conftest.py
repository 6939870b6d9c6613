"""A run folder over the embedded base, and real servers of it on free ports of this machine."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
import uvicorn
from rich.console import Console

from agon.commands.serve import ServeOptions, open_service, read_limits, read_pair
from agon.policies import Policies, load_base
from agon.recipes import load_recipe
from agon.runs import RunFolder
from agon.serving.server import Place, listen, make_server, url_of
from agon.serving.service import Service

PROBLEM = "make 22 from 4,7,6"
WAIT = 30.0


def make_run(folder: Path, *overrides: str) -> Path:
    """A run as training leaves it, with adapters that are well apart from the base."""
    config = load_recipe(
        "countdown-agon", ["training.device=cpu", "training.threads=1", *overrides]
    )
    run = RunFolder(folder)
    run.create()
    run.config.write_text(config.model_dump_json())
    policies = Policies(load_base(config.model), config.adapters, config.game.policies, 0)
    drawn = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name in policies.names:
            for key, parameter in policies.parameters(name).items():
                if "lora_B" in key:
                    parameter.copy_(0.02 * torch.randn(parameter.shape, generator=drawn))
    policies.save(run.checkpoints / "step-000003" / "adapters")
    (run.checkpoints / "step-000003" / "state.json").write_text("{}")
    return folder


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two policies."""
    return make_run(tmp_path_factory.mktemp("serving") / "run")


@dataclass
class Running:
    """A server in a thread."""

    url: str
    service: Service
    server: uvicorn.Server
    thread: threading.Thread

    def post(self, path: str, body: Any, **options: Any) -> Any:
        """Send JSON."""
        return httpx.post(f"{self.url}{path}", json=body, timeout=WAIT, **options)

    def chat(self, model: str = "agon", problem: str = PROBLEM, **options: Any) -> Any:
        """Ask a problem; returns the response's JSON."""
        messages = [{"role": "user", "content": problem}]
        answer = self.post(
            "/v1/chat/completions", {"model": model, "messages": messages, "seed": 7, **options}
        )
        assert answer.status_code == 200, answer.text
        return answer.json()

    def refused(self, status: int, path: str, body: Any, **options: Any) -> Any:
        """Send what shall be refused; returns the error."""
        answer = self.post(path, body, **options)
        assert answer.status_code == status, answer.text
        return checked_error(answer)

    @property
    def idle(self) -> bool:
        """Whether nothing is in work and every slot is free."""
        scheduler = self.service.backend.scheduler  # type: ignore[attr-defined]
        return not (self.service.in_work or scheduler.live or scheduler.waiting)

    def stop(self) -> None:
        """End it and wait."""
        self.server.should_exit = True
        self.thread.join(WAIT)
        assert not self.thread.is_alive()


def checked_error(answer: Any) -> Any:
    """An error of OpenAI's shape that shows nothing of the server's inside."""
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert "Traceback" not in answer.text
    assert 'File "' not in answer.text
    return error


def until(condition: Callable[[], bool], seconds: float = WAIT) -> None:
    """Wait until something is true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.01)


Start = Callable[..., Running]


def start_server(run: Path, *, limits: dict[str, Any] | None = None, **options: Any) -> Running:
    """Serve a run with options of the command."""
    chosen = ServeOptions(run=run, port=0, drain=20, **options)
    allowed = replace(read_limits(chosen), **(limits or {}))
    service = open_service(chosen, read_pair(chosen), Console(quiet=True))
    place = Place(chosen.host, 0, chosen.drain)
    listening = listen(place)
    server = make_server(service, allowed, place)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    until(lambda: server.started)
    return Running(url_of(listening), service, server, thread)


@pytest.fixture(scope="session")
def served(run: Path) -> Iterator[Running]:
    """The run, served as the command's defaults do, but for short prefixes to be shared."""
    running = start_server(run)
    for lane in running.service.backend.scheduler._lanes.values():  # type: ignore[attr-defined]
        lane.prefixes._shortest = 6
    yield running
    running.stop()


@pytest.fixture
def serve(run: Path) -> Iterator[Start]:
    """Starts servers of the run with other options; they end with the test."""
    made: list[Running] = []

    def begin(**options: Any) -> Running:
        made.append(start_server(options.pop("run", run), **options))
        return made[-1]

    yield begin
    for running in made:
        running.stop()
