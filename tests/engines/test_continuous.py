"""The scheduler: requests that come at any time get what a call of `generate` gives them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from test_torch_engine import (
    CONTEXT,
    PAD,
    StandInPolicies,
    config_of,
    engine_of,
    keys_of,
    policies_of,
    prompts_of,
)

from agon.engines.base import Sampling
from agon.engines.continuous import Request, Scheduler, Told
from agon.engines.prefill import prefill
from agon.engines.prefixes import Prefixes
from agon.engines.torch_engine import TorchEngine
from agon.errors import EngineError

WAIT = 60.0


class Listener:
    """Collects one request's news."""

    def __init__(self) -> None:
        self.told: list[Told] = []
        self.done = threading.Event()
        self.some = threading.Event()

    def __call__(self, told: Told) -> None:
        self.told.append(told)
        self.some.set()
        if told.finished:
            self.done.set()

    @property
    def tokens(self) -> tuple[int, ...]:
        assert self.done.wait(WAIT)
        assert [told.error for told in self.told] == [None] * len(self.told)
        return tuple(told.token for told in self.told if told.token is not None)


def request_of(
    ids: tuple[int, ...], listener: Listener, policy: str = "a", key: str = "key", **options: Any
) -> Request:
    given = {"temperature": 1.0, "limit": 30, "stage": 0} | options
    return Request(prompt_ids=ids, policy=policy, key=key, listener=listener, **given)


@pytest.fixture
def schedulers() -> Iterator[list[Scheduler]]:
    made: list[Scheduler] = []
    yield made
    for scheduler in made:
        scheduler.close()
        assert not scheduler.running


def scheduler_of(
    schedulers: list[Scheduler], architecture: str = "llama", slots: int = 6, **options: Any
) -> Scheduler:
    policies = options.pop("policies", None) or policies_of(architecture)
    ends = options.pop("ends", (1, 2, 3, 4))
    engine = TorchEngine(policies, ends, PAD, slots, CONTEXT, copies_each=True)
    schedulers.append(Scheduler(engine, **options))
    schedulers[-1].start()
    return schedulers[-1]


def until(condition: Any) -> None:
    end = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


@pytest.mark.parametrize("architecture", ["llama", "gemma3", "gemma4"])
def test_requests_that_come_one_by_one_get_the_tokens_of_a_batch(
    schedulers: list[Scheduler], architecture: str
) -> None:
    """Three policies mixed, more requests than slots, submitted while others decode."""
    prompts = prompts_of(5, 2, 30, 9, 9, 14, 3, 8, 17, 4, 90, 6) * 2
    keys = keys_of(len(prompts))
    policies = ["base", "a", "b"] * 8
    scheduler = scheduler_of(schedulers, architecture, slots=5)
    listeners = [Listener() for _ in prompts]
    for index, (prompt, key) in enumerate(zip(prompts, keys, strict=True)):
        scheduler.submit(request_of(prompt.token_ids, listeners[index], policies[index], key))
        if index % 5 == 0:
            listeners[index].some.wait(WAIT)
    tokens = [listener.tokens for listener in listeners]  # before the model is used again
    engine = engine_of(architecture, ends=(1, 2, 3, 4))
    for name in ("base", "a", "b"):
        mine = [index for index, policy in enumerate(policies) if policy == name]
        expected = engine.generate(
            [prompts[i] for i in mine], name, Sampling(30), [keys[i] for i in mine]
        )
        for index, completion in zip(mine, expected, strict=True):
            assert tokens[index] == completion.token_ids
            assert listeners[index].told[-1].truncated == completion.truncated
    until(lambda: scheduler.live == scheduler.waiting == 0)


def test_a_batch_mixes_temperatures_and_limits(schedulers: list[Scheduler]) -> None:
    scheduler = scheduler_of(schedulers, ends=())
    (prompt,) = prompts_of(7)
    settings = [(0.0, 9), (1.0, 12), (0.5, 5), (1.0, 1)]
    listeners = [Listener() for _ in settings]
    for index, (temperature, limit) in enumerate(settings):
        options = {"temperature": temperature, "limit": limit, "key": f"{index}"}
        scheduler.submit(request_of(prompt.token_ids, listeners[index], **options))
    tokens = [listener.tokens for listener in listeners]  # before the model is used again
    engine = engine_of("llama", ends=())
    for index, (temperature, limit) in enumerate(settings):
        sampling = Sampling(limit, temperature)
        (alone,) = engine.generate([prompt], "a", sampling, [f"{index}"])
        assert tokens[index] == alone.token_ids


def test_a_cancelled_request_frees_its_slot_and_is_told_nothing_more(
    schedulers: list[Scheduler],
) -> None:
    scheduler = scheduler_of(schedulers, slots=1, ends=())
    (prompt,) = prompts_of(5)
    long, next_one = Listener(), Listener()
    running = request_of(prompt.token_ids, long, limit=240)
    scheduler.submit(running)
    assert long.some.wait(WAIT)
    scheduler.submit(request_of(prompt.token_ids, next_one, limit=3))
    scheduler.cancel(running)
    assert len(next_one.tokens) == 3
    assert not long.done.is_set()
    heard = len(long.told)
    until(lambda: scheduler.live == scheduler.waiting == 0)
    assert len(long.told) == heard < 240


def test_a_request_can_be_cancelled_while_it_waits(schedulers: list[Scheduler]) -> None:
    scheduler = scheduler_of(schedulers, slots=1, ends=())
    (prompt,) = prompts_of(5)
    first, second = Listener(), Listener()
    scheduler.submit(request_of(prompt.token_ids, first, limit=60))
    waiting = request_of(prompt.token_ids, second)
    scheduler.submit(waiting)
    scheduler.cancel(waiting)
    assert len(first.tokens) == 60
    until(lambda: scheduler.live == scheduler.waiting == 0)
    assert second.told == []


def test_later_stages_go_first_where_slots_are_short(schedulers: list[Scheduler]) -> None:
    scheduler = scheduler_of(schedulers, slots=1, ends=())
    (prompt,) = prompts_of(5)
    order: list[str] = []

    class Named(Listener):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

        def __call__(self, told: Told) -> None:
            super().__call__(told)
            if told.finished:
                order.append(self.name)

    names = ["running", "draft", "challenge"]
    listeners = {name: Named(name) for name in names}
    scheduler.submit(request_of(prompt.token_ids, listeners["running"], limit=100))
    assert listeners["running"].some.wait(WAIT)
    scheduler.submit(request_of(prompt.token_ids, listeners["draft"], limit=2))
    scheduler.submit(request_of(prompt.token_ids, listeners["challenge"], limit=2, stage=1))
    for listener in listeners.values():
        assert listener.tokens
    assert order == ["running", "challenge", "draft"]


def test_what_can_never_be_sampled_is_refused_at_once(schedulers: list[Scheduler]) -> None:
    scheduler = scheduler_of(schedulers)
    (prompt,) = prompts_of(5)
    for ids, options, words in (
        ((), {}, "no tokens"),
        (prompt.token_ids, {"limit": CONTEXT}, "do not fit"),
        (prompt.token_ids, {"limit": 0}, "do not fit"),
        (prompt.token_ids, {"policy": "c"}, "unknown policy"),
    ):
        with pytest.raises(EngineError, match=words):
            scheduler.submit(request_of(ids, Listener(), **options))


def test_a_failure_is_told_to_those_it_hits_and_the_worker_goes_on(
    schedulers: list[Scheduler],
) -> None:
    policies = StandInPolicies(config_of("llama"))
    scheduler = scheduler_of(schedulers, policies=policies)
    (prompt,) = prompts_of(5)
    with torch.no_grad():
        for name, parameter in policies.model.named_parameters():
            if "lora_B.a" in name:
                parameter.fill_(float("inf"))
    bad, good = Listener(), Listener()
    scheduler.submit(request_of(prompt.token_ids, bad))
    assert bad.done.wait(WAIT)
    assert isinstance(bad.told[-1].error, EngineError)
    scheduler.submit(request_of(prompt.token_ids, good, policy="b"))
    assert good.tokens
    assert scheduler.live == scheduler.waiting == 0


def test_closing_tells_the_unfinished_and_refuses_the_new(schedulers: list[Scheduler]) -> None:
    scheduler = scheduler_of(schedulers, slots=1, ends=())
    (prompt,) = prompts_of(5)
    listeners = [Listener() for _ in range(3)]
    for listener in listeners:
        scheduler.submit(request_of(prompt.token_ids, listener, limit=240))
    assert any(listener.some.wait(WAIT) for listener in listeners[:1])
    scheduler.close()
    for listener in listeners:
        assert listener.done.wait(WAIT)
    assert sum(listener.told[-1].error is not None for listener in listeners) >= 2
    with pytest.raises(EngineError, match="shut down"):
        scheduler.submit(request_of(prompt.token_ids, Listener()))


# Prefixes


@pytest.mark.parametrize("architecture", ["llama", "mistral", "gemma3", "gemma4"])
def test_a_prompt_continued_from_a_prefix_gives_the_logits_of_the_whole(architecture: str) -> None:
    engine = engine_of(architecture)
    (short, other) = (prompt.token_ids for prompt in prompts_of(20, 11))
    longer = (*short[:15], short[15] % 50 + 3, *other)
    prefixes = Prefixes(tokens=100, shortest=8)
    with engine.sampling("b"):
        prefixes.keep(prefill(engine, [short, other]))
        found = prefixes.longest(longer)
        assert found is not None
        states_L, known = found
        assert known == 15
        continued = prefill(engine, [longer], states_L)
        whole = prefill(engine, [longer])
    torch.testing.assert_close(continued.logits_UV, whole.logits_UV, atol=1e-4, rtol=0)
    for one, two in zip(continued.states_L, whole.states_L, strict=True):
        assert (one is None) == (two is None)
        if one is not None and two is not None:
            torch.testing.assert_close(one[0], two[0], atol=1e-4, rtol=0)


def test_prefixes_are_bounded_and_forget_the_oldest() -> None:
    engine = engine_of("llama")
    prompts = [prompt.token_ids for prompt in prompts_of(*[10] * 5)]
    prefixes = Prefixes(tokens=30, shortest=4)
    with engine.sampling("a"):
        for ids in prompts[:3]:
            prefixes.keep(prefill(engine, [ids]))
        assert prefixes.whole(prompts[0]) is not None  # used, so not the oldest any more
        prefixes.keep(prefill(engine, [prompts[3]]))
    assert prefixes.tokens == 30
    assert prefixes.whole(prompts[1]) is None
    assert prefixes.whole(prompts[0]) is not None
    another = prompts[3][3] % 50 + 3
    assert prefixes.longest((*prompts[3][:3], another, 2)) is None  # shorter than is worth it
    assert Prefixes(0, 4).longest(prompts[0]) is None


def test_a_prefix_serves_its_own_policy_alone(schedulers: list[Scheduler]) -> None:
    """The same prompt again is known; under another adapter it is not."""
    scheduler = scheduler_of(schedulers, shortest_prefix=4)
    (prompt,) = prompts_of(12)
    cached = []
    for policy in ("a", "a", "b"):
        listener = Listener()
        scheduler.submit(request_of(prompt.token_ids, listener, policy=policy, key="same"))
        assert listener.tokens
        cached.append((listener.told[0].cached, listener.tokens))
    assert [known for known, _ in cached] == [0, 12, 0]
    assert cached[0][1] == cached[1][1]


def test_seats_and_memory_do_not_grow_with_the_requests(schedulers: list[Scheduler]) -> None:
    scheduler = scheduler_of(schedulers, slots=4, prefix_tokens=50, shortest_prefix=4)
    prompts = prompts_of(*np.random.default_rng(0).integers(2, 30, 60).tolist())
    for start in range(0, 60, 10):
        listeners = [Listener() for _ in range(10)]
        for listener, prompt in zip(listeners, prompts[start : start + 10], strict=True):
            scheduler.submit(request_of(prompt.token_ids, listener, limit=4))
        assert all(listener.tokens for listener in listeners)
    lane = scheduler._lanes["a"]
    assert len(lane.decoder.prompts) <= 8
    assert lane.seated == {}
    assert scheduler.prefix_tokens <= 50
