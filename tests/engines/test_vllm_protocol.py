"""What is said to vLLM servers, and what is done when they fail.

The servers are real HTTP servers with a small model behind them (`mirror.serve`), which answer as
vLLM does; tests/engines/test_vllm_real.py asks vLLM itself.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

import mirror
import models
from agon.config import EngineConfig
from agon.engines.adapter_store import AdapterStore
from agon.engines.base import Sampling
from agon.engines.calls import Address
from agon.engines.following import FollowingEngine, Request
from agon.engines.opening import api_key, check_engine
from agon.engines.vllm_engine import engine_arguments, lora_rank
from agon.engines.vllm_server import ServerBackend, ask_server, spread
from agon.errors import ConfigError, EngineError, SamplerLost, Unreachable
from agon.policies import Policies
from agon.recipes import build_config

SAMPLING = Sampling(8)
KEYS = [f"k{i}" for i in range(12)]
PROMPTS = mirror.PROMPTS * 6


def connect(
    servers: Sequence[mirror.Served], place: Path, seconds: float = 20.0, slots: int = 4
) -> tuple[FollowingEngine, Policies]:
    policies = models.tiny_policies()
    backend = ServerBackend([s.url for s in servers], (mirror.END,), slots, seconds)
    return mirror.follow(policies, backend, place), policies


def test_two_servers_sample_what_one_model_in_this_process_would(tmp_path: Path) -> None:
    with mirror.serve() as one, mirror.serve() as two:
        engine, policies = connect([one, two], tmp_path / "a")
        engine.prove()
        found = engine.generate(PROMPTS, "b", SAMPLING, KEYS)
        assert one.completions > 4
        assert two.completions > 4
    near = mirror.follow(policies, mirror.Mirror(), tmp_path / "b")
    expected = near.generate(PROMPTS, "b", SAMPLING, KEYS)
    for got, want in zip(found, expected, strict=True):
        assert got.token_ids == want.token_ids
        assert got.policy == want.policy
        assert got.logprobs == pytest.approx(want.logprobs, abs=1e-5)


def test_equal_prompts_go_to_the_same_server_and_shares_are_even() -> None:
    requests = [Request((p,), 0) for p in range(10) for _ in range(4)]
    shares = spread(requests, 3)
    assert sorted(index for share in shares.values() for index in share) == list(range(40))
    prompts = [{requests[i].token_ids for i in share} for share in shares.values()]
    assert not prompts[0] & prompts[1]
    assert not prompts[1] & prompts[2]
    assert max(map(len, shares.values())) - min(map(len, shares.values())) <= 4


def test_every_server_gets_every_adapter_and_loses_the_old_ones(tmp_path: Path) -> None:
    with mirror.serve() as one, mirror.serve() as two:
        engine, policies = connect([one, two], tmp_path)
        engine.sync()
        first = one.mirror.loaded
        assert two.mirror.loaded == first
        policies.set_version("a", 1)
        engine.sync()
        assert one.mirror.loaded == two.mirror.loaded != first
        engine.close()
        assert one.mirror.loaded == two.mirror.loaded == []
    assert list(tmp_path.iterdir()) == []


def test_one_server_of_two_that_ignores_adapters_is_named(tmp_path: Path) -> None:
    with mirror.serve() as one, mirror.serve(mirror.Mirror(ignores="")) as two:
        engine, _ = connect([one, two], tmp_path)
        with pytest.raises(EngineError, match=f"the server at {two.url} ignores the adapter"):
            engine.prove()


def test_tokens_are_streamed_to_a_listener(tmp_path: Path) -> None:
    with mirror.serve() as server:
        engine, _ = connect([server], tmp_path)
        whole = engine.generate(PROMPTS, "a", SAMPLING, KEYS)
        heard: dict[int, list[int]] = {}
        streamed = engine.generate(
            PROMPTS, "a", SAMPLING, KEYS, lambda i, token: heard.setdefault(i, []).append(token)
        )
    assert streamed == whole
    assert [tuple(heard[i]) for i in range(len(PROMPTS))] == [c.token_ids for c in whole]


def test_no_more_requests_are_open_at_a_server_than_it_has_slots(tmp_path: Path) -> None:
    with mirror.serve(hold=0.05) as server:
        engine, _ = connect([server], tmp_path, slots=3)
        most = 0

        def watch() -> None:
            nonlocal most
            while not over.is_set():
                names = [thread.name for thread in threading.enumerate()]
                most = max(most, sum(name.startswith("agon-vllm") for name in names))
                time.sleep(0.005)

        over = threading.Event()
        watcher = threading.Thread(target=watch)
        watcher.start()
        engine.generate(PROMPTS, "base", SAMPLING, KEYS)
        over.set()
        watcher.join()
    assert most == 3


def test_a_server_that_breaks_off_is_lost_and_the_other_s_requests_are_cut(tmp_path: Path) -> None:
    """The slow server holds each completion for longer than the test waits."""
    with mirror.serve() as slow, mirror.serve() as broken:
        engine, _ = connect([slow, broken], tmp_path)
        engine.sync()
        slow.hold, broken.vanish_after = 5.0, broken.completions + 1
        started = time.perf_counter()
        with pytest.raises(SamplerLost, match=f"vLLM server at {broken.url} is gone.*--resume"):
            engine.generate(PROMPTS, "a", SAMPLING, KEYS)
        assert time.perf_counter() - started < 4


def test_a_server_that_hangs_is_lost_after_the_stated_time(tmp_path: Path) -> None:
    with mirror.serve(hold=5.0) as server:
        engine, _ = connect([server], tmp_path, seconds=0.3)
        with pytest.raises(SamplerLost, match=r"did not answer within 0\.3 s .*--resume"):
            engine.generate(PROMPTS[:2], "base", SAMPLING, KEYS[:2])


def test_an_adapter_that_the_server_cannot_read_names_folder_and_remedy(tmp_path: Path) -> None:
    with mirror.serve(fail={"/v1/load_lora_adapter": (404, "No adapter found")}) as server:
        engine, _ = connect([server], tmp_path)
        with pytest.raises(EngineError, match=r"No adapter found\. Servers and trainer must see"):
            engine.sync()


def test_a_refused_completion_shows_the_server_s_words(tmp_path: Path) -> None:
    with mirror.serve(fail={"/v1/completions": (400, "this model is asleep")}) as server:
        engine, _ = connect([server], tmp_path)
        with pytest.raises(EngineError, match="answers 400: this model is asleep"):
            engine.generate(PROMPTS[:1], "base", SAMPLING, KEYS[:1])


def test_a_server_without_token_ids_is_refused(tmp_path: Path) -> None:
    with mirror.serve(without_ids=True) as server:
        engine, _ = connect([server], tmp_path)
        with pytest.raises(EngineError, match="return_token_ids"):
            engine.generate(PROMPTS[:1], "base", SAMPLING, KEYS[:1])


def test_adapters_of_a_killed_trainer_are_unloaded_at_the_server(tmp_path: Path) -> None:
    with mirror.serve() as server:
        left, _ = connect([server], tmp_path)
        left.sync()
        [folder] = tmp_path.iterdir()
        other = AdapterStore(tmp_path)
        # As if that process had been another one, which is gone.
        gone = folder.with_name(folder.name.replace(f"-{os.getpid()}-", "-99999999-"))
        folder.rename(gone)
        server.roots = {
            name: root.replace(str(folder), str(gone)) for name, root in server.roots.items()
        }
        assert len(server.mirror.loaded) == 2
        engine, _ = connect([server], tmp_path)
        engine.prove()
        assert server.mirror.loaded == []
        assert not gone.exists()
        assert other.folder.exists()


def test_a_server_started_without_run_time_lora_is_refused_before_anything_is_loaded() -> None:
    with (
        mirror.serve(without_lora=True) as server,
        pytest.raises(EngineError, match="VLLM_ALLOW_RUNTIME_LORA_UPDATING=True vllm serve"),
    ):
        ask_server(server.url, None, 5.0)


def test_what_is_no_vllm_server_is_refused() -> None:
    with (
        mirror.serve(fail={"/v1/models": (404, "who?")}) as server,
        pytest.raises(EngineError, match="answers 404: who"),
    ):
        ask_server(server.url, None, 5.0)


# Settings


def engine(**settings: object) -> EngineConfig:
    values = {"model": {"name_or_path": "m"}, "engine": settings}
    return build_config(values).engine


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"kind": "vllm-server"}, "needs engine.urls"),
        ({"kind": "vllm", "urls": ["http://x:1"]}, "engine.urls has no meaning"),
        ({"urls": ["http://x:1"]}, "engine.urls has no meaning"),
        ({"kind": "vllm-server", "urls": ["x:1"]}, r"engine.urls: got \['x:1'\]"),
        ({"kind": "vllm-server", "urls": ["http://x:1", "http://x:1"]}, "names a server twice"),
        ({"kind": "vllm-server", "urls": ["http://x"], "kv_cache_gib": 1}, "kv_cache_gib has no"),
        ({"kind": "torch", "gap_limit": 0.5}, "gap_limit has no meaning"),
        ({"kind": "vllm", "options": {"logprobs_mode": "raw_logprobs"}}, "logprobs_mode cannot be"),
        ({"kind": "vllm", "url": "http://x"}, "no such setting"),
    ],
)
def test_impossible_settings_are_named(settings: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        engine(**settings)


def test_the_embedded_model_and_vllm_are_refused_together() -> None:
    with pytest.raises(ConfigError, match="cannot sample the embedded model"):
        build_config({"engine": {"kind": "vllm"}})


def test_vllm_gets_the_whole_distribution_and_room_for_the_rank() -> None:
    config = build_config(
        {
            "model": {"name_or_path": "m", "dtype": "bfloat16"},
            "adapters": {"rank": 20},
            "engine": {"kind": "vllm", "options": {"enforce_eager": True}, "kv_cache_gib": 0.5},
        }
    )
    arguments = engine_arguments(config)
    assert arguments["logprobs_mode"] == "processed_logprobs"
    assert arguments["generation_config"] == "vllm"
    assert arguments["max_lora_rank"] == 32
    assert arguments["kv_cache_memory_bytes"] == 2**29
    assert arguments["enforce_eager"] is True
    assert arguments["dtype"] == "bfloat16"


def test_ranks_are_rounded_up_to_what_vllm_has_room_for() -> None:
    assert [lora_rank(rank) for rank in (1, 2, 8, 9, 512)] == [1, 8, 8, 16, 512]
    with pytest.raises(ConfigError, match=r"adapters\.rank = 513"):
        lora_rank(513)


def test_without_vllm_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agon.engines.vllm_engine.find_spec", lambda _: None)
    config = build_config({"model": {"name_or_path": "m"}, "engine": {"kind": "vllm"}})
    with pytest.raises(ConfigError, match=r"agon-rl\[vllm\]"):
        check_engine(config)


def test_nothing_imports_vllm_before_it_is_asked_for() -> None:
    code = (
        "import sys, agon.cli, agon.commands.train, agon.commands.evaluate, agon.engines.opening\n"
        "assert 'vllm' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_servers_are_described_before_a_run_and_missing_ones_are_unreachable() -> None:
    with mirror.serve() as server:
        settings = {"kind": "vllm-server", "urls": [server.url]}
        config = build_config({"model": {"name_or_path": "m"}, "engine": settings})
        assert check_engine(config) == [f"{server.url}: vLLM 0.32.0 with tiny, context 64 tokens"]
    with pytest.raises(
        Unreachable, match=f"engine.urls: the vLLM server at {server.url} is gone.*start it"
    ):
        check_engine(config)


def test_the_key_comes_from_the_environment_and_goes_to_the_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = engine(kind="vllm-server", urls=["http://x"], api_key_variable="AGON_TEST_KEY")
    monkeypatch.delenv("AGON_TEST_KEY", raising=False)
    with pytest.raises(ConfigError, match="AGON_TEST_KEY is not set"):
        api_key(settings)
    monkeypatch.setenv("AGON_TEST_KEY", "open sesame")
    with mirror.serve() as server:
        ask_server(server.url, api_key(settings), 5.0)
        assert {headers["Authorization"] for headers in server.headers} == {"Bearer open sesame"}


def test_addresses_are_read_with_their_path_and_port() -> None:
    address = Address.of("https://host/prefix/")
    assert (address.secure, address.host, address.port, address.path) == (
        True,
        "host",
        443,
        "/prefix",
    )
    assert Address.of("http://localhost:8000").near
    assert not address.near
    assert json.dumps(Address.of("http://127.0.0.1").port) == "80"
