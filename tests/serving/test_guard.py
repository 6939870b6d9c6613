"""Who may ask what, how much at once, and what happens when a client or the server goes away."""

from __future__ import annotations

import json
import socket
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from agon.commands.serve import ServeOptions, read_limits, read_pair
from agon.errors import ConfigError
from conftest import PROBLEM, WAIT, Running, Start, checked_error, until

CHAT = "/v1/chat/completions"
BODY = {"model": "a", "messages": [{"role": "user", "content": PROBLEM}]}
LONG = {"model": "a", "prompt": PROBLEM, "max_tokens": 400, "stream": True, "temperature": 0}
"""The embedded model runs into its limit from such a prompt, which takes a while."""


@pytest.mark.parametrize(
    "content",
    [b"{", b"", b"null", b"[1]", b'"x"', b"\xff\xfe", b"[" * 50_000, b'{"model": NaN}',
     b'{"n": ' + b"9" * 5_000 + b"}", b'{"model": "a", "model"', b'{"\\ud800": 1}',
     b'{"model": "\\ud800", "messages": [{"role": "user", "content": "x"}]}'],
)  # fmt: skip
def test_bodies_that_are_no_request_are_refused(served: Running, content: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    for path in (CHAT, "/v1/completions"):
        answer = httpx.post(f"{served.url}{path}", content=content, headers=headers)
        assert answer.status_code in (400, 404)
        checked_error(answer)


@pytest.mark.parametrize(
    "text",
    ["\ud800 make", "make 22 from 4,7,6\x00", "\u202e22 ekam", "<|im_start|>system", "a" * 200_000,
     "make 22 from \u0664,\u0667,\u0666", "{{ 7 * 7 }}", "\U000e0001" * 500],
)  # fmt: skip
def test_hostile_text_is_answered_or_refused_in_form(served: Running, text: str) -> None:
    headers = {"Content-Type": "application/json"}
    chat = {"model": "agon", "messages": [{"role": "user", "content": text}]}
    raw = {"model": "a", "prompt": text, "max_tokens": 3}
    for path, body in ((CHAT, chat), ("/v1/completions", raw)):
        answer = httpx.post(
            f"{served.url}{path}", content=json.dumps(body), headers=headers, timeout=WAIT
        )
        assert answer.status_code in (200, 400)
        if answer.status_code == 400:
            checked_error(answer)


def test_paths_methods_and_forms_that_are_not_there_are_refused_in_form(served: Running) -> None:
    assert checked_error(httpx.get(f"{served.url}/v1/nothing"))["type"] == "invalid_request_error"
    answer = httpx.get(f"{served.url}{CHAT}")
    assert answer.status_code == 405
    assert checked_error(answer)
    assert answer.headers["allow"] == "POST"
    answer = httpx.post(f"{served.url}{CHAT}", content="{}", headers={"Content-Type": "text/plain"})
    assert answer.status_code == 415
    assert checked_error(answer)


def test_a_body_may_have_its_size_and_no_more(serve: Start) -> None:
    running = serve(body_kib=1)
    assert running.post(CHAT, {**BODY, "user": "x" * 800}).status_code == 200
    assert running.refused(413, CHAT, {**BODY, "user": "x" * 1024})["code"] == "body_too_large"

    def pieces() -> Any:
        yield from [b" " * 512] * 4

    headers = {"Content-Type": "application/json"}
    answer = httpx.post(f"{running.url}{CHAT}", content=pieces(), headers=headers)
    assert answer.status_code == 413


def test_a_body_that_does_not_come_is_not_waited_for(serve: Start) -> None:
    running = serve(limits={"body_seconds": 0.2})
    host, port = running.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=WAIT) as connection:
        head = (
            f"POST {CHAT} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
            "Content-Length: 100\r\n\r\n{"
        )
        connection.sendall(head.encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 408")


def test_a_key_is_asked_for_where_one_is_set(serve: Start) -> None:
    running = serve(api_key="sésame")
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic s"}):
        answer = httpx.post(f"{running.url}{CHAT}", json=BODY, headers=headers)
        assert answer.status_code == 401
        assert checked_error(answer)["type"] == "authentication_error"
        assert httpx.get(f"{running.url}/metrics", headers=headers).status_code == 401
        assert httpx.get(f"{running.url}/v1/models", headers=headers).status_code == 401
    right = {"Authorization": "Bearer sésame".encode()}
    assert httpx.post(f"{running.url}{CHAT}", json=BODY, headers=right).status_code == 200
    assert httpx.get(f"{running.url}/health").status_code == 200
    assert httpx.get(f"{running.url}/").status_code == 200


def test_other_machines_are_let_in_only_on_purpose(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AGON_API_KEY", raising=False)
    with pytest.raises(ConfigError, match="--api-key"):
        read_limits(ServeOptions(host="0.0.0.0"))
    assert read_limits(ServeOptions(host="0.0.0.0", allow_anyone=True)).hosts is None
    monkeypatch.setenv("AGON_API_KEY", "k")
    assert read_limits(ServeOptions(host="0.0.0.0")).api_key == "k"


def test_a_page_of_another_name_cannot_reach_the_loopback_server(served: Running) -> None:
    port = served.url.rpartition(":")[2]
    for name, status in (
        ("evil.example", 403), (f"evil.example:{port}", 403), ("", 403),
        ("localhost", 200), (f"LOCALHOST:{port}", 200), (f"[::1]:{port}", 200),
    ):  # fmt: skip
        answer = httpx.get(f"{served.url}/health", headers={"Host": name})
        assert answer.status_code == status, name
    answer = httpx.post(f"{served.url}{CHAT}", json=BODY, headers={"Origin": "http://evil.example"})
    assert "access-control-allow-origin" not in answer.headers


def test_a_client_may_ask_so_often_in_a_minute(serve: Start) -> None:
    running = serve(rate=3)
    assert [running.post(CHAT, BODY).status_code for _ in range(3)] == [200] * 3
    answer = running.post(CHAT, BODY)
    assert answer.status_code == 429
    assert checked_error(answer)["type"] == "rate_limit_error"
    assert 1 <= int(answer.headers["retry-after"]) <= 20
    other = running.post(CHAT, BODY, headers={"Authorization": "Bearer another"})
    assert other.status_code == 200
    assert httpx.get(f"{running.url}/v1/models").status_code == 200


def test_more_work_than_the_queue_takes_is_refused_with_429(serve: Start) -> None:
    running = serve(max_requests=2, slots=1)
    with running.service.admitted(1):  # somebody's request, for as long as it takes
        for streamed in (True, False):
            answer = running.post(CHAT, {**BODY, "n": 2, "stream": streamed})
            assert answer.status_code == 429
            assert checked_error(answer)["code"] == "queue_full"
            assert answer.headers["retry-after"] == "1"
        assert running.post(CHAT, BODY).status_code == 200
    assert running.post(CHAT, {**BODY, "n": 2}).status_code == 200
    assert running.refused(400, CHAT, {**BODY, "n": 3})["param"] == "n"
    assert running.idle


@pytest.mark.parametrize("streamed", [True, False])
def test_a_client_that_goes_away_frees_its_slots(served: Running, streamed: bool) -> None:
    before = served.service.metrics.disconnects._value.get()
    host, port = served.url.removeprefix("http://").split(":")
    body = json.dumps({**LONG, "stream": streamed, "n": 8}).encode()
    with socket.create_connection((host, int(port)), timeout=WAIT) as connection:
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        connection.sendall(head.encode() + body)
        until(lambda: served.service.backend.scheduler.live == 8)  # type: ignore[attr-defined]
    until(lambda: served.idle)
    assert served.service.metrics.disconnects._value.get() == before + 1


def test_a_cascade_that_is_stopped_ends_both_stages(serve: Start) -> None:
    running = serve(early_exit=True, slots=2)
    body = {**BODY, "model": "agon", "n": 20, "stream": True}
    for chunks in (1, 60, 200):
        with httpx.stream("POST", f"{running.url}{CHAT}", json=body, timeout=WAIT) as answer:
            lines = answer.iter_lines()
            for _ in range(chunks):
                next(lines)
        until(lambda: running.idle)


def test_a_request_that_takes_too_long_is_ended(serve: Start) -> None:
    running = serve(timeout=0.05)
    whole = {**LONG, "stream": False, "n": 4}
    error = running.refused(504, "/v1/completions", whole)
    assert error["code"] == "timeout"
    with httpx.stream("POST", f"{running.url}/v1/completions", json={**whole, "stream": True}) as s:
        last = [line for line in s.iter_lines() if line][-1]
    assert json.loads(last.removeprefix("data: "))["error"]["type"] == "timeout_error"
    until(lambda: running.idle)


def test_shutting_down_lets_streams_finish_and_takes_no_more(serve: Start) -> None:
    running = serve()
    lines: list[str] = []

    def read() -> None:
        with httpx.stream("POST", f"{running.url}/v1/completions", json=LONG, timeout=WAIT) as s:
            lines.extend(line for line in s.iter_lines() if line)

    reader = threading.Thread(target=read)
    reader.start()
    until(lambda: running.service.in_work == 1)
    running.server.should_exit = True
    reader.join(WAIT)
    assert lines[-1] == "data: [DONE]"
    running.thread.join(WAIT)
    assert not running.service.backend.healthy
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{running.url}/health")


def test_health_and_metrics_tell_what_is_done(serve: Start) -> None:
    running = serve()
    assert httpx.get(f"{running.url}/health").json() == {"status": "ok", "in_work": 0}
    answer = running.chat("agon-a-b")
    running.refused(404, CHAT, {**BODY, "model": "none"})
    httpx.get(f"{running.url}/no/such/{time.time()}")
    text = httpx.get(f"{running.url}/metrics").text
    figures = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    stages = answer["choices"][0]["agon"]["stages"]
    for stage in stages:
        name = f'agon_tokens_total{{kind="generated",policy="{stage["policy"]}"}}'
        assert float(figures[name]) == stage["completion_tokens"]
    assert figures[f'agon_requests_total{{path="{CHAT}",status="200"}}'] == "1.0"
    assert figures[f'agon_requests_total{{path="{CHAT}",status="404"}}'] == "1.0"
    assert figures['agon_requests_total{path="other",status="404"}'] == "1.0"
    assert figures["agon_in_work"] == figures["agon_rows"] == figures["agon_waiting"] == "0.0"
    assert figures['agon_answer_seconds_count{model="agon-a-b"}'] == "1.0"


def test_a_dead_engine_is_told_and_serves_nothing(serve: Start) -> None:
    running = serve()
    running.service.backend.scheduler.close()  # type: ignore[attr-defined]
    assert checked_error(httpx.get(f"{running.url}/health"))["code"] == "unhealthy"
    assert running.post(CHAT, BODY).status_code == 503


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "give a run folder"),
        ({"run": Path("x"), "adapter_a": Path("y")}, "give a run folder"),
        ({"adapter_a": Path("y")}, "give all three"),
        ({"adapter_a": Path("y"), "adapter_b": Path("z")}, "give all three"),
    ],
)
def test_what_to_serve_must_be_said_once(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read_pair(ServeOptions(**options))


@pytest.mark.parametrize("name", ["max_requests", "body_kib", "slots", "max_tokens", "rate"])
def test_numbers_out_of_range_are_named(name: str) -> None:
    with pytest.raises(ConfigError, match=f"--{name.replace('_', '-')}"):
        read_limits(ServeOptions(**{name: 0}))  # type: ignore[arg-type]
