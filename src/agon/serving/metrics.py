"""Figures for Prometheus, in a registry of each server's own."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from agon.serving.backends import Backend, EngineBackend
from agon.serving.play import Answer

_SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)


class Metrics:
    """Counters, gauges and histograms; docs/serving.md lists them."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "agon_requests", "HTTP requests by path and status.", ["path", "status"],
            registry=self.registry,
        )  # fmt: skip
        self.tokens = Counter(
            "agon_tokens", "Tokens by policy and kind (prompt, cached, generated).",
            ["policy", "kind"], registry=self.registry,
        )  # fmt: skip
        self.answers = Counter(
            "agon_answers", "Finished tries by model and outcome (answer, none, skipped).",
            ["model", "outcome"], registry=self.registry,
        )  # fmt: skip
        self.disconnects = Counter(
            "agon_disconnects", "Requests whose client went away.", registry=self.registry
        )
        self.first_token = Histogram(
            "agon_first_token_seconds", "From the request to its first token.", ["model"],
            buckets=_SECONDS, registry=self.registry,
        )  # fmt: skip
        self.seconds = Histogram(
            "agon_answer_seconds", "From the request to the answer of one try.", ["model"],
            buckets=_SECONDS, registry=self.registry,
        )  # fmt: skip
        self.in_work = Gauge(
            "agon_in_work", "Completions in work or waiting.", registry=self.registry
        )
        self.rows = Gauge("agon_rows", "Rows that decode.", registry=self.registry)
        self.waiting = Gauge("agon_waiting", "Stages that wait for a slot.", registry=self.registry)
        self.prefixes = Gauge(
            "agon_prefix_tokens", "Prompt tokens whose keys and values are kept.",
            registry=self.registry,
        )  # fmt: skip

    def answered(self, model: str, answer: Answer, seconds: float) -> None:
        """Count one finished try."""
        outcome = "skipped" if answer.skipped else "answer" if answer.answered else "none"
        self.answers.labels(model, outcome).inc()
        self.seconds.labels(model).observe(seconds)
        for stage in answer.stages:
            written = stage.written
            self.count(stage.policy, written.prompt_tokens, written.cached, written.generated)

    def count(self, policy: str, prompt: int, cached: int, generated: int) -> None:
        """Count one stage's tokens."""
        self.tokens.labels(policy, "prompt").inc(prompt)
        self.tokens.labels(policy, "cached").inc(cached)
        self.tokens.labels(policy, "generated").inc(generated)

    def text(self, backend: Backend, in_work: int) -> bytes:
        """All figures in Prometheus' text format."""
        self.in_work.set(in_work)
        if isinstance(backend, EngineBackend):
            self.rows.set(backend.scheduler.live)
            self.waiting.set(backend.scheduler.waiting)
            self.prefixes.set(backend.scheduler.prefix_tokens)
        return generate_latest(self.registry)
