"""Settings: documented, sourced, frozen, and wrong ones refused by name before anything loads."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from agon import recipes
from agon.config import SOURCES, Config, Section, default_source, leaves
from agon.errors import ConfigError
from agon.recipes import (
    RESUMABLE,
    build_config,
    change_config,
    find_recipe,
    load_recipe,
    parse_override,
    sources_of,
)

REPOSITORY = Path(__file__).parents[1]
RECIPES = sorted((REPOSITORY / "recipes").glob("*.toml"))
ONE_POLICY = ("game.policies=1", "reward.credit=correctness")
NO_SECOND_STAGE = (*ONE_POLICY, "game.exchange=none")


def sections() -> list[tuple[str, type[Section]]]:
    """Name and class of every table."""
    return [
        (name, field.annotation)
        for name, field in Config.model_fields.items()
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section)
    ]


SETTINGS = [(f"{s}.{name}", f) for s, cls in sections() for name, f in cls.model_fields.items()]
EACH_SETTING = pytest.mark.parametrize(("name", "field"), SETTINGS, ids=[n for n, _ in SETTINGS])


def text_of(error: pytest.ExceptionInfo[ConfigError]) -> str:
    """An error's message on one line."""
    return " ".join(str(error.value).split())


@EACH_SETTING
def test_every_setting_is_documented(name: str, field: Any) -> None:
    assert field.description
    assert field.description.rstrip().endswith((".", ")"))


@EACH_SETTING
def test_every_setting_has_exactly_one_source(name: str, field: Any) -> None:
    tags = [item for item in field.metadata if isinstance(item, str)]
    assert len(tags) == 1
    assert tags[0] in SOURCES
    assert default_source(name) == tags[0]


def test_every_section_is_documented_and_every_leaf_is_a_setting() -> None:
    assert all(cls.__doc__ and cls.__doc__ != Section.__doc__ for _, cls in sections())
    assert [name for name, _ in leaves(Config())] == [name for name, _ in SETTINGS]
    assert {name for name, _ in sections()} | {"sources"} == set(Config.model_fields)


def test_the_defaults_are_the_published_ones_where_the_paper_states_them() -> None:
    defaults = dict(leaves(Config()))
    published = {
        "adapters.rank": 16,
        "game.policies": 2,
        "game.exchange": "paired",
        "game.rotate": True,
        "reward.credit": "conversion",
        "reward.rival": "paired",
        "reward.format_weight": 0.5,
        "reward.tiebreak": 0.0,
        "sampling.group_size": 8,
        "optimizer.learning_rate": 5e-5,
        "optimizer.warmup": 0.1,
        "training.steps": None,
        "task.drop_binary": True,
        "task.test_problems": 300,
    }
    assert {name: defaults[name] for name in published} == published
    assert all(default_source(name) == "paper" for name in published)


@EACH_SETTING
def test_settings_are_frozen(name: str, field: Any) -> None:
    section, key = name.split(".")
    config = Config()
    with pytest.raises(ValidationError, match="frozen"):
        setattr(getattr(config, section), key, None)
    with pytest.raises(ValidationError, match="frozen"):
        setattr(config, section, getattr(config, section))


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"game": {"exhange": 1}}, "game.exhange: there is no such setting; did you mean "
         "game.exchange?"),
        ({"optimizer": {"learning_rte": 1}}, "did you mean optimizer.learning_rate?"),
        ({"training": {"learning_rate": 1}}, "did you mean optimizer.learning_rate?"),
        ({"smapling": {}}, "smapling: there is no such setting; did you mean sampling?"),
        ({"game": {"xyzzy": 1}}, "game.xyzzy: there is no such setting"),
        ({"game": 3}, "game: input should be a valid dictionary"),
        ({"game": {"policies": 3}}, "game.policies: input should be 1 or 2, got 3"),
        ({"game": {"exchange": "open"}}, "'shuffled' or 'filler', got 'open'"),
        ({"sampling": {"group_size": 1}}, "sampling.group_size: input should be greater than or "
         "equal to 2, got 1"),
        ({"sampling": {"temperature": 0}}, "sampling.temperature: input should be greater than 0"),
        ({"optimizer": {"warmup": 1.5}}, "optimizer.warmup: input should be less than or equal"),
        ({"objective": {"clip": 1}}, "objective.clip: input should be less than 1, got 1"),
        ({"training": {"steps": 2.5}}, "training.steps: input should be a valid integer"),
        ({"logging": {"trackers": ["pen"]}}, "logging.trackers.0: input should be 'tensorboard'"),
        ({"adapters": {"target_modules": 3}}, "adapters.target_modules"),
    ],
)  # fmt: skip
def test_a_wrong_setting_is_refused_by_name(tables: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        build_config(tables, origin="file.toml")
    assert text_of(error).startswith("file.toml cannot be used: ")
    assert message in text_of(error)


def test_all_wrong_settings_are_named_at_once() -> None:
    with pytest.raises(ConfigError) as error:
        build_config({"game": {"policies": 3}, "reward": {"tiebreak": -1}, "stop": {"windo": 1}})
    for name in ("game.policies", "reward.tiebreak", "stop.windo"):
        assert name in str(error.value)


IMPOSSIBLE = {
    "own data without a file": (("task.name=jsonl",), "needs task.path"),
    "a verifier without own data": (
        ("task.name=gsm8k", "task.verifier=text"),
        "task.verifier has no meaning for the task gsm8k",
    ),
    "no verifier's name": (
        ("task.name=jsonl", "task.path=x", "task.verifier=maths"),
        "package.module:function",
    ),
    "a generated data set without its name": (
        ("task.name=reasoning_gym",),
        'task.name = "reasoning_gym" and task.dataset = "NAME" belong together',
    ),
    "conversion without a second stage": (
        ("game.exchange=none", "game.policies=1"),
        'reward.credit = "conversion" needs a second stage',
    ),
    "margin without a second stage": (
        ("game.exchange=none", "game.policies=1", "reward.credit=margin"),
        'reward.credit = "margin" needs a second stage',
    ),
    "tiebreak without a second stage": (
        (*NO_SECOND_STAGE, "reward.tiebreak=0.5"),
        "reward.tiebreak compares a challenge with its draft",
    ),
    "two policies without a second stage": (
        ("game.exchange=none", "reward.credit=correctness"),
        "game.policies = 2 needs a second stage",
    ),
    "one policy against itself": (
        ("game.policies=1",),
        'reward.credit = "conversion" sets a policy against itself',
    ),
    "a second adapter for one policy": (
        (*ONE_POLICY, "adapters.warm_b=somewhere"),
        "adapters.warm_b names a second adapter",
    ),
    "a shared rival that is not shown": (
        ("reward.rival=shared",),
        'reward.rival = "shared" credits against a draft',
    ),
    "shuffling one problem": (
        ("game.exchange=shuffled", "training.problems_per_step=1"),
        "training.problems_per_step must be at least 2",
    ),
    "training on math500": (("task.name=math500",), "evaluation only"),
    "training on humaneval": (("task.name=humaneval",), "evaluation only"),
    "sharing out a quantised base": (
        ("model.shard=true", "model.quantization=nf4"),
        "4-bit weights cannot be shared out",
    ),
    "one test longer than all": (
        ("code.seconds=30", "code.total_seconds=20"),
        "code.total_seconds = 20",
    ),
    "a cap on the sampler's own ratio": (
        ("objective.importance_cap=2",),
        'objective.importance_cap needs objective.old_logprobs = "trainer"',
    ),
    "vLLM for the embedded model": (("engine.kind=vllm",), "cannot sample the embedded model"),
    "a path for countdown": (("task.path=data.parquet",), "task.path has no meaning"),
}


@pytest.mark.parametrize(("overrides", "message"), IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_an_impossible_combination_is_refused_with_its_remedy(overrides, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        build_config({}, overrides)
    assert message in text_of(error)


def test_each_rule_has_a_case_here() -> None:
    rules = len(Config()._rules()) + len(Config().task._rules())
    # Two cases share the rule of a credit without a second stage.
    assert len(IMPOSSIBLE) - 1 == rules


def test_possible_neighbours_of_impossible_combinations_load() -> None:
    for overrides in (
        NO_SECOND_STAGE,
        ONE_POLICY,
        ("reward.rival=shared", "game.exchange=hidden"),
        ("game.exchange=shuffled", "training.problems_per_step=2"),
        ("adapters.warm_b=somewhere",),
        ("reward.tiebreak=0.5",),
        ("task.name=gsm8k", "task.path=data"),
    ):
        build_config({}, overrides)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("training.steps=150", ("training", "steps", 150)),
        ("optimizer.learning_rate=3e-4", ("optimizer", "learning_rate", 3e-4)),
        ("training.steps=1_000", ("training", "steps", 1000)),
        ("game.rotate=false", ("game", "rotate", False)),
        ("training.steps=null", ("training", "steps", None)),
        ("game.exchange=none", ("game", "exchange", "none")),
        ("game.exchange=hidden", ("game", "exchange", "hidden")),
        ('game.exchange="hidden"', ("game", "exchange", "hidden")),
        ("model.name_or_path=Qwen/Qwen3-0.6B", ("model", "name_or_path", "Qwen/Qwen3-0.6B")),
        ("optimizer.betas=[0.9, 0.95]", ("optimizer", "betas", [0.9, 0.95])),
        ('logging.trackers=["wandb"]', ("logging", "trackers", ["wandb"])),
        (
            "model.chat_template_kwargs={enable_thinking = true}",
            ("model", "chat_template_kwargs", {"enable_thinking": True}),
        ),
        ("prompts.plain={problem} = ?", ("prompts", "plain", "{problem} = ?")),
        (" game.filler = a b ", ("game", "filler", "a b")),
        ("game.filler=a=b", ("game", "filler", "a=b")),
        ("model.revision=", ("model", "revision", "")),
    ],
)
def test_an_override_is_read_as_toml_and_else_as_text(text: str, expected) -> None:
    assert parse_override(text) == expected


@pytest.mark.parametrize("text", ["", "steps=3", "training.steps", "=3", ".steps=3", "training.=3"])
def test_an_override_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--set: got .* expected section\.field=value"):
        parse_override(text)


def test_overrides_win_over_the_recipe_and_the_last_over_the_first() -> None:
    config = build_config({"training": {"steps": 5}}, ["training.steps=7", "training.steps=9"])
    assert config.training.steps == 9


def test_overrides_leave_the_given_tables_alone() -> None:
    tables = {"training": {"steps": 5}, "sources": {"training.steps": "ours"}}
    before = json.dumps(tables)
    build_config(tables, ["training.steps=7", "game.rotate=false"])
    assert json.dumps(tables) == before


def test_an_override_of_an_unknown_setting_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"training\.setps.*did you mean training\.steps"):
        build_config({}, ["training.setps=3"])
    with pytest.raises(ConfigError, match=r"did you mean model\.chat_template_kwargs"):
        build_config({}, ["model.chat_template_kwargs.enable_thinking=true"])


@pytest.mark.parametrize("tables", [{"training": 3}, {"sources": "paper"}])
def test_a_table_that_is_none_is_refused_with_overrides_too(tables: dict[str, Any]) -> None:
    for overrides in ((), ("training.steps=3",)):
        with pytest.raises(ConfigError, match=next(iter(tables))):
            build_config(tables, overrides)


@pytest.mark.parametrize("source", ["paper", "ours", "inferred: it fits the figures", "ours: why"])
def test_a_source_is_paper_ours_or_inferred_with_a_reason(source: str) -> None:
    build_config({"sources": {"sampling.group_size": source}})


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        ({"sampling.group_size": "inferred"}, "expected 'paper', 'ours' or 'inferred: the reason"),
        ({"sampling.group_size": "inferred:  "}, "sources.'sampling.group_size': got 'inferred:"),
        ({"sampling.group_size": "guessed"}, "got 'guessed'"),
        ({"sampling.group": "paper"}, "sources: there is no setting named 'sampling.group'"),
        ({"sampling": "paper"}, "sources: there is no setting named 'sampling'"),
    ],
)
def test_a_source_of_another_form_is_refused(sources: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        build_config({"sources": sources})
    assert message in text_of(error)


def test_sources_rank_command_line_recipe_tag_default_tag_recipe() -> None:
    tables = {
        "optimizer": {"learning_rate": 1e-3},
        "sampling": {"group_size": 8, "max_new_tokens": 99, "temperature": 0.9},
        "sources": {
            "optimizer.learning_rate": "ours",
            "sampling.group_size": "inferred: as before",
            "sampling.temperature": "ours",
        },
    }
    overrides = ["sampling.temperature=0.8", "training.steps=null"]
    config = build_config(tables, overrides)
    found = sources_of(config, overrides)
    expected = {
        "sampling.temperature": "command line",  # although the recipe tags it
        "training.steps": "command line",  # although it is the default
        "optimizer.learning_rate": "ours",
        "sampling.group_size": "inferred: as before",  # although it is the default
        "sampling.max_new_tokens": "recipe",
        "adapters.rank": "paper",
        "objective.clip": "inferred",
        "sampling.slots": "ours",
    }
    assert {name: found[name] for name in expected} == expected
    assert list(found) == [name for name, _ in leaves(config)]
    assert "sampling.temperature" not in config.sources


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_loads_by_path_and_by_name(path: Path) -> None:
    assert load_recipe(str(path)) == load_recipe(path.stem) == load_recipe(f"recipes/{path.name}")


def test_there_are_recipes() -> None:
    assert RECIPES


def test_an_unknown_recipe_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=RECIPES[0].stem):
        find_recipe("no-such-recipe")


def test_a_recipe_of_ones_own_is_read_and_its_errors_name_the_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("[training]\nsteps = 3\n")
    assert load_recipe(str(path)).training.steps == 3
    assert load_recipe(str(path), ["training.steps=4"]).training.steps == 4
    path.write_text("[training\n")
    with pytest.raises(ConfigError, match=r"mine\.toml is not valid TOML"):
        load_recipe(str(path))
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"mine\.toml is not valid TOML"):
        load_recipe(str(path))
    path.write_text("[training]\nstep = 3\n")
    with pytest.raises(ConfigError, match=r"mine\.toml cannot be used"):
        load_recipe(str(path))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_configuration_survives_json(path: Path) -> None:
    config = load_recipe(str(path), ["logging.trackers=['wandb']", "optimizer.betas=[0.8, 0.9]"])
    assert Config.model_validate(json.loads(config.model_dump_json())) == config


OTHER_VALUES: dict[str, str] = {
    "checkpoint.every": "7",
    "checkpoint.keep": "7",
    "engine.api_key_variable": "KEY",
    "engine.folder": "/shared",
    "engine.gpu_memory": "0.25",
    "engine.kv_cache_gib": "2.5",
    "engine.seconds": "60",
    "engine.urls": '["http://there:8000"]',
    "logging.project": "mine",
    "model.shard": "true",
    "logging.trackers": '["tensorboard"]',
    "stop.truncated_share": "0.5",
    "stop.unscored_share": "0.25",
    "stop.window": "7",
    "training.device": "cpu",
    "training.process_timeout": "30.0",
    "training.wait_timeout": "60.0",
    "training.threads": "1",
    "verifier.workers": "1",
}


SERVERS: dict[str, Any] = {"kind": "vllm-server", "urls": ["http://here:8000"]}
ENGINES: dict[str, dict[str, Any]] = {
    "engine.api_key_variable": SERVERS,
    "engine.folder": SERVERS,
    "engine.gpu_memory": {"kind": "vllm"},
    "engine.kv_cache_gib": {"kind": "vllm"},
    "engine.seconds": SERVERS,
    "engine.urls": SERVERS,
}
"""Engines for which these settings have a meaning."""


def test_a_resumed_run_may_change_what_is_no_part_of_the_method() -> None:
    assert set(OTHER_VALUES) == RESUMABLE
    tables = {"sources": {"stop.window": "ours", "adapters.rank": "paper"}}
    config = build_config(tables)
    for name, value in OTHER_VALUES.items():
        if name in ENGINES:
            given = {"model": {"name_or_path": "m"}, "engine": ENGINES[name]}
            config = build_config(tables | given)
        changed = dict(leaves(change_config(config, [f"{name}={value}"])))
        before = dict(leaves(config))
        assert {key for key in before if before[key] != changed[key]} == {name}
    assert change_config(config, []) == config
    assert change_config(config, ["stop.window=7"]).sources == {"adapters.rank": "paper"}


@pytest.mark.parametrize("name", sorted({name for name, _ in SETTINGS} - RESUMABLE))
def test_a_resumed_run_keeps_its_method(name: str) -> None:
    with pytest.raises(ConfigError, match=f"--set {name}: a resumed run keeps its settings"):
        change_config(Config(), ["stop.window=7", f"{name}=1"])


def test_resumable_settings_exist_and_are_ours() -> None:
    known = {name for name, _ in SETTINGS}
    assert known >= RESUMABLE
    assert all(default_source(name) == "ours" for name in RESUMABLE)


def test_recipes_are_looked_for_in_the_package_and_in_the_repository() -> None:
    places = [place.resolve() for place in recipes._PLACES]
    assert (REPOSITORY / "recipes").resolve() in places
    names = itertools.chain.from_iterable(place.glob("*.toml") for place in places)
    assert {path.name for path in RECIPES} <= {path.name for path in names}
