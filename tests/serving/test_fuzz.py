"""Requests made from the API's own schema, valid ones and others: none is answered with a fault."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from conftest import Running

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")

pytestmark = pytest.mark.slow

EXAMPLES = 60
"""Requests of each kind for each operation."""


def fuzz(operation: Any, mode: Any) -> list[int]:
    """Make requests of one operation and check each response; returns the statuses.

    Whether a question has the form that the model was taught is not for the schema to say, so
    valid data may be refused.
    """
    statuses: list[int] = []

    def check(case: Any) -> None:
        if mode is schemathesis.GenerationMode.POSITIVE and isinstance(case.body, dict):
            case.body["model"] = "b"  # a name by chance would never get further than that
        excluded = [schemathesis.checks.positive_data_acceptance]
        statuses.append(case.call_and_validate(excluded_checks=excluded).status_code)

    rules = settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    rules(given(operation.as_strategy(generation_mode=mode))(check))()
    return statuses


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("mode", list(schemathesis.GenerationMode))
def test_no_body_that_the_schema_can_make_finds_a_fault(
    served: Running, path: str, mode: Any
) -> None:
    schema = schemathesis.openapi.from_url(f"{served.url}/openapi.json")
    statuses = fuzz(schema[path]["POST"], mode)
    assert len(statuses) >= EXAMPLES // 2
    assert set(statuses) <= {200, 400, 404, 405, 415}
    assert 400 in statuses
    continues = mode is schemathesis.GenerationMode.POSITIVE and path == "/v1/completions"
    assert (200 in statuses) >= continues
    assert served.idle


def test_no_other_request_finds_a_fault(served: Running) -> None:
    schema = schemathesis.openapi.from_url(f"{served.url}/openapi.json")
    for path in ("/v1/models", "/v1/models/{name}", "/health", "/metrics"):
        statuses = fuzz(schema[path]["GET"], schemathesis.GenerationMode.POSITIVE)
        assert set(statuses) <= {200, 404}
