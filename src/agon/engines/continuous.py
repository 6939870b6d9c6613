"""Requests that arrive at any time, batched continuously: one worker thread owns the model.

Every policy has a decoder, so requests of one adapter share a batch; decoders take turns of a few
steps. New requests take free slots between two token steps, later stages before earlier ones, so
that what has been begun is finished first. A cancelled request leaves its slot before the next
step. What is sampled is told to each request's listener, once a step for all of them.

The arithmetic is `TorchEngine.generate`'s: a request has the tokens that it would have there under
the same key, but for rounding (see `torch_engine`).

What this module does not do: decode text, count requests, or refuse them because there are many.
"""

from __future__ import annotations

import heapq
import itertools
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from agon.engines.base import BASE
from agon.engines.decoder import Decoder
from agon.engines.prefill import Prefilled, chunks, prefill
from agon.engines.prefixes import Prefixes
from agon.engines.torch_engine import TorchEngine
from agon.errors import EngineError

TURN = 8
"""Token steps of one policy before another one that has work gets its turn."""


@dataclass(frozen=True, slots=True)
class Told:
    """News of one request.

    Attributes:
        token: What was sampled; None where the request failed.
        finished: Nothing more comes.
        truncated: Finished by its limit.
        cached: Prompt tokens that an earlier prompt's keys and values stood for.
        error: Why it failed.
    """

    token: int | None
    finished: bool
    truncated: bool = False
    cached: int = 0
    error: Exception | None = None


@dataclass(eq=False, slots=True)
class Request:
    """One completion to be sampled.

    Attributes:
        prompt_ids: The prompt.
        policy: `base`, `a` or `b`.
        key: Its randomness hangs on this alone.
        temperature: 0 is greedy.
        limit: Most tokens of the completion.
        stage: Later stages enter first.
        listener: Called with its news on whatever thread `post` runs things.
    """

    prompt_ids: tuple[int, ...]
    policy: str
    key: str
    temperature: float
    limit: int
    stage: int
    listener: Callable[[Told], None]
    cancelled: bool = field(default=False, init=False)
    cached: int = field(default=0, init=False)


News = list[tuple[Request, Told]]


def tell(news: News) -> None:
    """Call the listeners."""
    for request, told in news:
        request.listener(told)


class Scheduler:
    """The worker thread and its decoders."""

    def __init__(
        self,
        engine: TorchEngine,
        post: Callable[[News], None] = tell,
        prefix_tokens: int = 16_384,
        shortest_prefix: int = 32,
    ) -> None:
        """Prepare; `start` begins to work.

        Args:
            engine: The model; nothing else may use it while the worker runs. Its slots bound the
                rows of all policies together.
            post: Hands the news of a step over, from the worker's thread.
            prefix_tokens: Prompt tokens whose keys and values are kept for each policy.
            shortest_prefix: Least common beginning of two prompts that is worth sharing.
        """
        self.engine, self.post = engine, post
        self.policies = (BASE, *engine.policies.model.peft_config)
        self._lanes = {
            name: _PolicyLane(engine, Prefixes(prefix_tokens, shortest_prefix))
            for name in self.policies
        }
        self._wake = threading.Condition()
        self._inbox: deque[Request] = deque()
        self._cancelled = False
        self._closing = False
        self._arrivals = itertools.count()
        self._threads = torch.get_num_threads()
        # A daemon: a program that fails elsewhere shall not hang on its worker.
        self._thread = threading.Thread(target=self._run, name="agon-engine", daemon=True)

    @property
    def running(self) -> bool:
        """Whether the worker is alive."""
        return self._thread.is_alive()

    @property
    def live(self) -> int:
        """Rows that decode, of all policies."""
        return sum(lane.decoder.live for lane in self._lanes.values())

    @property
    def waiting(self) -> int:
        """Requests without a slot."""
        return len(self._inbox) + sum(len(lane.waiting) for lane in self._lanes.values())

    @property
    def prefix_tokens(self) -> int:
        """Prompt tokens whose keys and values are kept."""
        return sum(lane.prefixes.tokens for lane in self._lanes.values())

    def start(self) -> None:
        """Start the worker."""
        self._thread.start()

    def close(self) -> None:
        """End the worker after its step; unfinished requests are told that they failed."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        if self._thread.is_alive():
            self._thread.join()

    def check(self, request: Request) -> None:
        """Refuse what can never be sampled.

        Raises:
            EngineError: Unknown policy, empty prompt, or prompt and limit exceed the context.
        """
        if request.policy not in self.policies:
            raise EngineError(f"unknown policy {request.policy!r}")
        if not request.prompt_ids:
            raise EngineError("a prompt has no tokens: there is nothing to continue")
        size = len(request.prompt_ids) + request.limit
        if request.limit < 1 or size > self.engine.context_limit:
            raise EngineError(
                f"a prompt of {len(request.prompt_ids)} tokens and a limit of {request.limit} do "
                f"not fit the model's context of {self.engine.context_limit}"
            )

    def submit(self, request: Request) -> None:
        """Queue a request, from any thread.

        Raises:
            EngineError: It can never be sampled, or the worker has ended.
        """
        self.check(request)
        with self._wake:
            if self._closing or not self._thread.is_alive():
                raise EngineError("the engine has been shut down")
            self._inbox.append(request)
            self._wake.notify()

    def cancel(self, request: Request) -> None:
        """Take a request back, from any thread; no news of it is posted any more."""
        with self._wake:
            request.cancelled = True
            self._cancelled = True
            self._wake.notify()

    def _run(self) -> None:
        torch.set_num_threads(self._threads)  # OpenMP keeps the number for each thread
        order = deque(self.policies)
        try:
            while self._take_in(block=True):
                name = next(name for name in order if self._has_work(name))
                order.remove(name)
                order.append(name)
                try:
                    with self.engine.sampling(name):
                        self._turn(name)
                except Exception as error:  # the worker must outlive whatever a request meets
                    self.post(self._lanes[name].fail(error))
        finally:
            ended = EngineError("the engine has been shut down")
            with self._wake:
                self._closing = True
            for lane in self._lanes.values():
                self.post(lane.fail(ended))
            self.post([(r, Told(None, True, error=ended)) for r in self._inbox])
            self._inbox.clear()

    def _take_in(self, block: bool) -> bool:
        """Move arrivals to their policies and cancelled requests out; False once closed.

        Args:
            block: Whether to wait until there is work.
        """
        while True:
            with self._wake:
                while block and not (self._closing or self._inbox or self._cancelled):
                    if self._any_work():
                        break
                    self._wake.wait()
                arrived, self._inbox = self._inbox, deque()
                cancelled, self._cancelled = self._cancelled, False
                closing = self._closing
            for request in arrived:
                rank = (-request.stage, next(self._arrivals))
                heapq.heappush(self._lanes[request.policy].waiting, (rank, request))
            if cancelled:
                for lane in self._lanes.values():
                    lane.drop_cancelled()
            if closing or not block or self._any_work():
                return not closing

    def _any_work(self) -> bool:
        return any(self._has_work(name) for name in self.policies)

    def _has_work(self, name: str) -> bool:
        lane = self._lanes[name]
        return bool(lane.decoder.live or (lane.waiting and self.live < self.engine.slots))

    def _turn(self, name: str) -> None:
        """Steps of one policy, for as long as no other has work or its turn lasts."""
        lane, steps = self._lanes[name], 0
        while self._has_work(name):
            free = self.engine.slots - self.live
            if lane.waiting and free:
                lane.admit(free)
            if lane.decoder.live:
                lane.decoder.step()
            news = lane.take_news()
            if news:
                self.post(news)
            steps += 1
            if not self._take_in(block=False):
                return
            others = any(self._has_work(other) for other in self.policies if other != name)
            if others and steps >= TURN:
                return


class _PolicyLane:
    """One policy's queue, decoder and prefixes; used by the worker alone."""

    def __init__(self, engine: TorchEngine, prefixes: Prefixes) -> None:
        self.engine, self.prefixes = engine, prefixes
        self.waiting: list[tuple[tuple[int, int], Request]] = []
        self._begin()

    def _begin(self) -> None:
        self.decoder = Decoder(self.engine, self.engine.context_limit, self._note)
        self.seated: dict[int, Request] = {}
        self.entering: list[Request] = []
        self.news: News = []

    def admit(self, free: int) -> None:
        """Let waiting requests into so many free slots."""
        self.entering = [
            heapq.heappop(self.waiting)[1] for _ in range(min(free, len(self.waiting)))
        ]
        decoder = self.decoder
        rows, had = decoder.live + len(self.entering), decoder.cache.rows_wanted
        # Room for as many again, so that rows that come one by one are not copied each time.
        decoder.expect(had if rows <= had else min(2 * rows, self.engine.slots))
        done = self._prefill({request.prompt_ids: None for request in self.entering})
        by_prompt: dict[int, list[int]] = {}
        for request in self.entering:
            place = next(i for i, many in enumerate(done) if request.prompt_ids in many[0].rows)
            request.cached = done[place][1]
            seat = decoder.seat(request.prompt_ids, request.key, request.temperature, request.limit)
            self.seated[seat] = request
            by_prompt.setdefault(place, []).append(seat)
        self.entering = []
        for place, seats in by_prompt.items():
            decoder.enter(done[place][0], seats)

    def _prefill(self, prompts: dict[tuple[int, ...], None]) -> list[tuple[Prefilled, int]]:
        """Every prompt, with how many of its tokens were known."""
        done: list[tuple[Prefilled, int]] = []
        new = []
        for ids in prompts:
            whole = self.prefixes.whole(ids)
            if whole is not None:
                done.append((whole, len(ids)))
                continue
            shared = self.prefixes.longest(ids)
            if shared is None:
                new.append(ids)
                continue
            states_L, known = shared
            made = prefill(self.engine, [ids], states_L)
            self.prefixes.keep(made)
            done.append((made, known))
        for chunk in chunks(sorted(new, key=len, reverse=True)):
            made = prefill(self.engine, chunk)
            self.prefixes.keep(made)
            done.append((made, 0))
        return done

    def _note(self, seat_B: np.ndarray, noted_3B: np.ndarray, finished_B: np.ndarray) -> None:
        rows: Sequence[tuple[int, float, bool]] = list(
            zip(seat_B.tolist(), noted_3B[0].tolist(), finished_B.tolist(), strict=True)
        )
        for seat, value, finished in rows:
            token, request = int(value), self.seated[seat]
            truncated = finished and token not in self.engine.end_token_ids
            if not request.cancelled:
                self.news.append((request, Told(token, finished, truncated, request.cached)))
            if finished:
                del self.seated[seat]
                self.decoder.give_back(seat)

    def take_news(self) -> News:
        """What has happened since the last call."""
        news, self.news = self.news, []
        return news

    def drop_cancelled(self) -> None:
        """Free what cancelled requests hold."""
        kept = [entry for entry in self.waiting if not entry[1].cancelled]
        if len(kept) < len(self.waiting):
            heapq.heapify(kept)
            self.waiting = kept
        seats = [seat for seat, request in self.seated.items() if request.cancelled]
        if seats:
            self.decoder.cancel(seats)
            for seat in seats:
                del self.seated[seat]
                self.decoder.give_back(seat)

    def fail(self, error: Exception) -> News:
        """Give everything up and begin anew; returns the news of it."""
        lost = [*self.seated.values(), *self.entering, *(entry[1] for entry in self.waiting)]
        self.waiting = []
        self._begin()
        return [(r, Told(None, True, error=error)) for r in lost if not r.cancelled]
