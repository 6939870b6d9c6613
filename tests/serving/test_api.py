"""The API: models, shapes, streams, usage, and parameters that are honoured or refused by name."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from agon.serving.schema import IGNORED
from conftest import PROBLEM, WAIT, Running, Start

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": PROBLEM}]


def stream(served: Running, body: dict[str, Any], path: str = CHAT) -> list[dict[str, Any]]:
    """The events of a stream, which must end as it should."""
    options = {"json": {"stream": True, **body}, "timeout": WAIT}
    with httpx.stream("POST", f"{served.url}{path}", **options) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in answer.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def test_models_are_the_pair_its_directions_its_adapters_and_the_base(served: Running) -> None:
    listed = httpx.get(f"{served.url}/v1/models").json()
    assert listed["object"] == "list"
    systems = {model["id"]: model["agon"]["system"] for model in listed["data"]}
    assert systems == {
        "agon": "a->b",
        "agon-a-b": "a->b",
        "agon-b-a": "b->a",
        "a": "a",
        "b": "b",
        "base": "base",
    }
    one = httpx.get(f"{served.url}/v1/models/agon").json()
    assert one in listed["data"]
    assert "no dev evaluation" in one["agon"]["about"]
    assert httpx.get(f"{served.url}/v1/models/c").status_code == 404


def test_the_answer_is_the_content_and_the_way_to_it_is_reasoning(served: Running) -> None:
    answer = served.chat("agon-b-a")
    (choice,) = answer["choices"]
    message = choice["message"]
    assert message["reasoning"] == message["reasoning_content"]
    draft, _, rest = message["reasoning"].partition("\n\n[summary passed on]\n")
    summary, _, challenge = rest.partition("\n\n[challenge by a]\n")
    assert draft.startswith("[draft by b]\n<think>")
    assert f"<summary>{summary}</summary>" in draft
    assert challenge.endswith(f"<answer>{message['content']}</answer>")
    assert [s["policy"] for s in choice["agon"]["stages"]] == ["b", "a"]
    stages, usage = choice["agon"]["stages"], answer["usage"]
    assert usage["prompt_tokens"] == sum(stage["prompt_tokens"] for stage in stages)
    assert usage["completion_tokens"] == sum(stage["completion_tokens"] for stage in stages)
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    reasoning = usage["completion_tokens_details"]["reasoning_tokens"]
    assert 0 < reasoning < usage["completion_tokens"]


@pytest.mark.parametrize("model", ["agon-a-b", "a", "base"])
def test_a_stream_joins_to_the_whole_answer(served: Running, model: str) -> None:
    whole = served.chat(model, n=2)
    options = {"stream_options": {"include_usage": True}}
    events = stream(served, {"model": model, "messages": MESSAGES, "seed": 7, "n": 2, **options})
    assert events[-1]["choices"] == []
    for field in ("prompt_tokens", "completion_tokens"):
        assert events[-1]["usage"][field] == whole["usage"][field]
    assert all(event["usage"] is None for event in events[:-1])
    for expected in whole["choices"]:
        mine = [c for e in events for c in e["choices"] if c["index"] == expected["index"]]
        assert mine[0]["delta"] == {"role": "assistant", "content": ""}
        deltas = [choice["delta"] for choice in mine]
        for field in ("content", "reasoning", "reasoning_content"):
            joined = "".join(delta.get(field, "") for delta in deltas)
            assert joined == expected["message"][field]
        assert mine[-1]["finish_reason"] == expected["finish_reason"]
        parts = {c["agon"]["part"] for c in mine if "part" in c.get("agon", {})}
        cascade = {"heading", "draft", "summary", "challenge"}
        assert parts == (cascade if model == "agon-a-b" else {"reply"})


def test_a_seed_repeats_and_choices_differ(served: Running) -> None:
    one, again = (served.chat("a", n=4) for _ in range(2))
    assert one["choices"] == again["choices"]
    assert len({choice["message"]["reasoning"] for choice in one["choices"]}) > 1
    first = served.chat("a")["choices"][0]["message"]
    assert first == one["choices"][0]["message"]
    free = [served.chat("a", seed=None)["agon"]["seed"] for _ in range(2)]
    assert free[0] != free[1]


def test_all_systems_share_the_draft_of_a_seed(served: Running) -> None:
    alone = served.chat("a")["choices"][0]["message"]["reasoning"]
    assert served.chat("agon-a-b")["choices"][0]["message"]["reasoning"].startswith(
        f"[draft by a]\n{alone}\n\n["
    )


def test_max_tokens_bounds_every_stage(served: Running) -> None:
    for name in ("max_tokens", "max_completion_tokens"):
        answer = served.chat("agon-a-b", **{name: 5})
        (choice,) = answer["choices"]
        assert [s["completion_tokens"] for s in choice["agon"]["stages"]] == [5, 5]
        assert choice["finish_reason"] == "length"
        assert choice["message"]["content"] == ""
        assert choice["agon"]["answered"] is False
    assert (
        served.chat("a", max_tokens=9, max_completion_tokens=4)["usage"]["completion_tokens"] == 4
    )


def test_a_stop_string_ends_the_last_stage_alone(served: Running) -> None:
    whole = served.chat("agon-a-b")["choices"][0]["message"]["reasoning"]
    answer = served.chat("agon-a-b", stop=["</think>", "never"])
    (choice,) = answer["choices"]
    cut = choice["message"]["reasoning"]
    before, _, challenge = cut.partition("[challenge by b]\n")
    assert "</think>" in before
    assert whole.startswith(cut)
    assert "</think>" not in challenge
    assert choice["finish_reason"] == "stop"
    drafts, last = choice["agon"]["stages"]
    full = served.chat("agon-a-b")["choices"][0]["agon"]["stages"]
    assert drafts["completion_tokens"] == full[0]["completion_tokens"]
    assert last["completion_tokens"] < full[1]["completion_tokens"]


def test_greedy_replies_hang_on_no_seed(served: Running) -> None:
    one = served.chat("b", seed=1, temperature=0)["choices"][0]["message"]
    assert one == served.chat("b", seed=2, temperature=0)["choices"][0]["message"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("top_p", 0.9),
        ("top_p", True),
        ("top_k", 50),
        ("min_p", 0.1),
        ("presence_penalty", 0.5),
        ("frequency_penalty", -1),
        ("repetition_penalty", 1.1),
        ("logit_bias", {"5": 1}),
        ("logprobs", True),
        ("tools", [{"type": "function"}]),
        ("tool_choice", "required"),
        ("response_format", {"type": "json_object"}),
        ("reasoning_effort", "high"),
        ("modalities", ["audio"]),
        ("skip_special_tokens", True),
    ],
)
def test_what_is_not_honoured_is_refused_by_name(served: Running, name: str, value: Any) -> None:
    body = {"model": "a", "messages": MESSAGES, name: value}
    error = served.refused(400, CHAT, body)
    assert error["param"] == name
    assert error["type"] == "invalid_request_error"
    assert error["code"] == "unsupported_parameter"
    assert "only" in error["message"]


def test_values_that_do_nothing_and_harmless_parameters_are_accepted(served: Running) -> None:
    plain = served.chat("a")["choices"]
    nothing = {
        "top_p": 1, "top_k": -1, "presence_penalty": 0.0, "frequency_penalty": 0, "tools": [],
        "logit_bias": {}, "logprobs": False, "response_format": {"type": "text"}, "stop": None,
    }  # fmt: skip
    ignored = dict.fromkeys(IGNORED, "anything")
    assert served.chat("a", **nothing, **ignored)["choices"] == plain


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"temperature": "1"}, "temperature"),
        ({"n": 0}, "n"),
        ({"n": 2.5}, "n"),
        ({"n": True}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"seed": 2**70}, "seed"),
        ({"stop": ["a"] * 5}, "stop"),
        ({"stop": ""}, "stop"),
        ({"stream": "yes"}, "stream"),
        ({"model": 3}, "model"),
        ({"messages": []}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages.0.content"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, "messages"),
        ({"messages": [{"role": "user", "content": " "}]}, "messages"),
        ({"no_such": 1}, "no_such"),
        ({"stream_options": {"no_such": 1}}, "stream_options.no_such"),
    ],
)
def test_wrong_values_are_answered_with_the_parameter_at_fault(
    served: Running, change: dict[str, Any], param: str
) -> None:
    error = served.refused(400, CHAT, {"model": "a", "messages": MESSAGES, **change})
    assert error["param"] is not None
    assert error["param"].startswith(param)
    assert param.split(".", maxsplit=1)[0] in error["message"]


def test_an_unknown_model_is_answered_with_the_known_ones(served: Running) -> None:
    error = served.refused(404, CHAT, {"model": "gpt-4", "messages": MESSAGES})
    assert error["code"] == "model_not_found"
    assert "agon-a-b" in error["message"]


def test_a_question_of_another_form_is_refused_since_the_model_was_taught_one(
    served: Running,
) -> None:
    body = {"model": "a", "messages": [{"role": "user", "content": "What is 2 + 2?"}]}
    error = served.refused(400, CHAT, body)
    assert error["param"] == "messages"
    assert "make 22 from" in error["message"]


def test_text_parts_are_joined_and_other_parts_are_refused(served: Running) -> None:
    parts = [{"type": "text", "text": "make 22 "}, {"type": "text", "text": "from 4,7,6"}]
    body = {"model": "a", "messages": [{"role": "user", "content": parts}], "seed": 7}
    answer = served.post(CHAT, body).json()
    assert answer["choices"] == served.chat("a")["choices"]
    image = {"type": "image_url", "image_url": {"url": "http://127.0.0.1/x.png"}}
    body["messages"][0]["content"].append(image)  # type: ignore[index]
    assert "messages.0.content" in served.refused(400, CHAT, body)["param"]


# Completions


def test_policies_continue_texts_and_token_ids_and_cascades_do_not(served: Running) -> None:
    ids = served.service.prompter.raw(PROBLEM).token_ids
    bodies: list[Any] = [PROBLEM, list(ids), [PROBLEM], [list(ids)]]
    texts = []
    options = {"seed": 1, "max_tokens": 6, "n": 2, "temperature": 3}
    for prompt in bodies:
        body = {"model": "b", "prompt": prompt, **options}
        answer = served.post("/v1/completions", body).json()
        assert answer["object"] == "text_completion"
        assert answer["usage"]["prompt_tokens"] == 2 * len(ids)
        assert answer["usage"]["completion_tokens"] == 12
        texts.append([choice["text"] for choice in answer["choices"]])
    assert texts == [texts[0]] * 4
    assert texts[0][0] != texts[0][1]
    body = {"model": "b", "prompt": PROBLEM, **options}
    events = stream(served, body, "/v1/completions")
    for index in (0, 1):
        mine = [c for e in events for c in e["choices"] if c["index"] == index]
        assert "".join(choice["text"] for choice in mine) == texts[0][index]
    error = served.refused(400, "/v1/completions", {"model": "agon", "prompt": PROBLEM})
    assert error["param"] == "model"


@pytest.mark.parametrize(
    "prompt", ["", [], [999_999], [-1], [[1], []], {"a": 1}, None, ["x", 1], [["x"]]]
)
def test_prompts_that_are_none_are_refused(served: Running, prompt: Any) -> None:
    served.refused(400, "/v1/completions", {"model": "a", "prompt": prompt})


def test_text_writes_no_control_token_into_a_prompt(served: Running) -> None:
    """The text of every control token of the embedded model is ordinary text in a request."""
    tokenizer = served.service.language.tokenizer
    control = {t: i for t, i in tokenizer.get_added_vocab().items() if not t.isspace()}
    assert control
    hostile = "".join(control)
    assert not set(served.service.prompter.raw(hostile).token_ids) & set(control.values())
    body = {"model": "a", "prompt": f"make 2 {hostile}", "max_tokens": 2}
    assert served.post("/v1/completions", body).status_code == 200


# Shortcuts


def test_a_cut_draft_ends_at_its_summary_and_changes_no_challenge(
    served: Running, serve: Start
) -> None:
    quick = serve(cut_drafts=True)
    plain, cut = served.chat("agon-a-b", n=8), quick.chat("agon-a-b", n=8)
    for one, other in zip(plain["choices"], cut["choices"], strict=True):
        assert one["message"]["content"] == other["message"]["content"]
        assert other["message"]["reasoning"].count("</answer>") <= 1
        first, second = one["agon"]["stages"], other["agon"]["stages"]
        if second[0]["finish"] == "cut":
            assert second[0]["completion_tokens"] < first[0]["completion_tokens"]
        for field in ("completion_tokens", "prompt_tokens", "policy", "finish"):
            assert first[1][field] == second[1][field]
    finishes = {choice["agon"]["stages"][0]["finish"] for choice in cut["choices"]}
    assert "cut" in finishes
    assert quick.idle


def test_agreeing_drafts_skip_the_challenge_and_others_do_not(
    served: Running, serve: Start
) -> None:
    quick = serve(early_exit=True)
    skipped = 0
    for problem in ("make 2 from 1,1,1", "make 9 from 2,3,4"):
        alone = [served.chat(name, problem, n=8)["choices"] for name in ("a", "b")]
        pair = served.chat("agon-a-b", problem, n=8)["choices"]
        for index, choice in enumerate(quick.chat("agon-a-b", problem, n=8)["choices"]):
            a, b = (many[index]["message"]["content"] for many in alone)
            agree = a != "" and a == b
            skipped += agree
            expected = a if agree else pair[index]["message"]["content"]
            assert choice["message"]["content"] == expected
            assert choice["agon"]["skipped_challenge"] == agree
            assert len(choice["agon"]["stages"]) == (2 if agree else 3)
    assert 0 < skipped < 16


def test_a_repeated_problem_is_not_run_again_under_the_same_adapter(served: Running) -> None:
    served.chat("b", "make 30 from 5,4,2")
    again = served.chat("agon-a-b", "make 30 from 5,4,2")["choices"][0]["agon"]["stages"]
    assert again[0]["cached_tokens"] == 0
    assert again[1]["cached_tokens"] > 0
    assert again[1]["cached_tokens"] < again[1]["prompt_tokens"]
