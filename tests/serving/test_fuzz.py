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


@pytest.mark.parametrize("mode", list(schemathesis.GenerationMode))
def test_no_request_that_the_schema_can_make_finds_a_fault(served: Running, mode: Any) -> None:
    """Whether a question has the form that the model was taught is not for the schema to say."""
    schema = schemathesis.openapi.from_url(f"{served.url}/openapi.json")
    tried: dict[str, list[int]] = {}
    for result in schema.get_all_operations():
        operation = result.ok()
        statuses = tried.setdefault(operation.label, [])

        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate],
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def fuzz(case: Any, statuses: list[int] = statuses) -> None:
            excluded = [schemathesis.checks.positive_data_acceptance]
            statuses.append(case.call_and_validate(excluded_checks=excluded).status_code)

        fuzz()
    posted = [*tried["POST /v1/chat/completions"], *tried["POST /v1/completions"]]
    assert len(posted) >= EXAMPLES
    assert set(posted) <= {200, 400, 404, 415}
    assert 400 in posted
    assert served.idle
