from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from mission_gym.config.schema import parse_stop_when
from mission_gym.config.types import Comparison
from mission_gym.errors import ConfigError
from mission_gym.run.config import resolve, schema


def value_of(name: str, raw: Any) -> Any:
    path = next(field.path for field in schema().fields if field.name == name)
    return resolve("Env-v0", {name: raw}).config.value(path)


@pytest.mark.parametrize(
    ("name", "raw", "value"),
    [
        ("n_envs", "16", 16),
        ("timesteps", "50M", 50_000_000),
        ("batch_size", "AUTO", "auto"),
        ("batch_size", "1k", 1000),
        ("eval_freq", 0, 0),
        ("learning_rate", "3e-4", 3e-4),
        ("target_kl", "none", None),
        ("target_kl", None, None),
        ("target_kl", "0.02", 0.02),
        ("network_arch", "1024,512,256", (1024, 512, 256)),
        ("network_arch", [64], (64,)),
        ("network_arch", 64, (64,)),
        ("network", "nets:make", "nets:make"),
        ("network", "none", None),
        ("wrap", ["a:b", "c.d:e"], ("a:b", "c.d:e")),
        ("wrap", "a:b", ("a:b",)),
        ("env_kwargs", {"size": 5, "corner": (0, 1)}, {"size": 5, "corner": [0, 1]}),
        (
            "env_kwargs",
            ["size=5", "name=a=b", "on=true", "gap="],
            {"size": 5, "name": "a=b", "on": True, "gap": None},
        ),
        ("env_kwargs", "size=5", {"size": 5}),
        ("max_time", "5m", 300.0),
        ("stop_when", "return>=475", "return>=475"),
        ("tensorboard", "no", False),
        ("run_name", 7, "7"),
    ],
)
def test_raw_values_become_typed(name: str, raw: Any, value: Any) -> None:
    assert value_of(name, raw) == value


@pytest.mark.parametrize(
    ("name", "raw", "message"),
    [
        ("n_envs", 0, r"n_envs: 0 is below 1; use 1 or more, or auto \[flag --n-envs\]"),
        ("n_envs", "lots", r"n_envs: 'lots' is not a whole number.*\[flag --n-envs\]"),
        ("n_envs", True, "n_envs: True is not a whole number"),
        ("batch_size", 0, "batch_size: 0 is below 1; use 1 or more, or auto"),
        ("batch_size", "big", "'big' is not a whole number from 0 up; .* or 1e6, or auto"),
        ("gamma", 1.5, "gamma=1.5 should be less than or equal to 1"),
        ("gamma", "high", "gamma: 'high' is not a finite number; write it like 0.5 or 3e-4"),
        ("learning_rate", float("nan"), "nan is not a finite number"),
        ("learning_rate", True, "True is not a finite number"),
        ("target_kl", -1, "target_kl=-1 should be greater than 0"),
        ("network_arch", "64,0", "network_arch=64,0 should be greater than or equal to 1"),
        ("network_arch", "", "network_arch= should have at least 1 item"),
        ("network", "nets", "'nets' does not name a callable; write it like my_module:my_function"),
        ("activation", "rel", "activation=rel should be 'tanh', 'relu' or 'elu'"),
        ("env_kwargs", ["size"], "'size' is not key=value; write it like size=5"),
        ("env_kwargs", {"rng": object()}, "can't be stored; use numbers, text, lists and mappings"),
        ("env_kwargs", ["x=!!python/name:os.system"], r"only plain YAML .*\[--env-kwargs x\]"),
        ("max_time", 0, "max_time=0 should be greater than 0"),
        ("max_time", "soon", "'soon' is not a duration"),
        ("stop_when", "winning", "'winning' is not a stop rule; write it like captured>=0.8 or return>=475"),
        ("run_name", "a/b", "'a/b' can't name a run; use letters, digits"),
        ("run_name", "latest", "'latest' can't name a run"),
        ("tensorboard", "maybe", "tensorboard=maybe should be a valid boolean"),
    ],
)
def test_bad_values_are_refused(name: str, raw: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        value_of(name, raw)


def test_a_config_is_frozen() -> None:
    config = resolve("Env-v0", {}).config
    with pytest.raises(ValidationError, match="frozen"):
        config.algorithm.gamma = 0.5  # type: ignore[misc]


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("captured>=0.8", Comparison("captured", ">=", 0.8)),
        ("return >= -95", Comparison("return", ">=", -95.0)),
        ("zone held>1e-1", Comparison("zone held", ">", 0.1)),
    ],
)
def test_parse_stop_when(text: str, rule: Comparison) -> None:
    assert parse_stop_when(text) == rule


@pytest.mark.parametrize(
    "text", ["", ">=1", "return", "return<5", "return>=much", "return>=1 or 2", "return==5"]
)
def test_parse_stop_when_refuses(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a stop rule"):
        parse_stop_when(text)


def test_a_stop_rule_compares() -> None:
    assert Comparison("return", ">=", 475).holds(475)
    assert not Comparison("return", ">", 475).holds(475)


def test_field_names_are_unique_and_described() -> None:
    fields = list(schema().fields)
    for algo, paths in ((algo, schema().paths(algo)) for algo in schema().algorithms):
        own = [field for field in fields if field.path in paths]
        assert any(field.section == algo for field in own)
        names = [name for field in own for name in (field.name, *field.aliases)]
        assert len(set(names)) == len(names)
    assert all(field.path.endswith(f".{field.name}") for field in fields)
    assert all(field.description.endswith(".") for field in fields)


def test_type_texts() -> None:
    texts = {
        field.name: field.type_text
        for field in schema().fields
        if not field.path.startswith(("dqn.", "sac."))
    }
    wanted = {
        "n_epochs": "int",
        "n_envs": "int|auto",
        "batch_size": "int|auto|none",
        "target_kl": "float|none",
        "network_arch": "int,...",
        "wrap": "str ...",
        "env_kwargs": "key=value ...",
        "vector": "auto|serial|workers|threads|aio|batched|ray",
        "tensorboard": "bool",
    }
    assert wanted.items() <= texts.items()


def test_aliases_and_defaults_are_described() -> None:
    fields = {field.path: field for field in schema().fields}
    assert fields["ppo.n_steps_per_env"].aliases == fields["dqn.n_steps_per_env"].aliases == ("n_steps",)
    assert fields["ppo.n_steps_per_env"].default == 128
    assert fields["env.env_id"].default == "mission_gym/Capture-v0"
