"""Curriculum files: what they say, and everything that is wrong in one, at once, by line and nearest name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mission_gym.config.curriculum import Curriculum, list_shipped, read_curriculum
from mission_gym.config.layers import format_config
from mission_gym.config.rules import apply_rules
from mission_gym.errors import ConfigError
from mission_gym.run.config import resolve

BOTS = """earlier: 0.2
stages:
- {kwargs: {num_bots: 10}, until: {steps: 100k}}
- {name: crowd, kwargs: {num_bots: 25}, until: {metric: "victory >= 0.8", episodes: 200, steps: 300k}}
- {options: {map: 3}, back: {metric: victory<0.2}}
"""
TWO = {"stages": [{"kwargs": {"bots": 1}, "until": {"steps": 64}}, {"kwargs": {"bots": 2}}]}


def read(folder: Path, text: str) -> Curriculum:
    path = folder / "bots.yaml"
    path.write_text(text)
    made = read_curriculum(str(path))
    assert made is not None
    return made


def problems(folder: Path, text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read(folder, text)
    return [problem.replace(str(folder), "") for problem in caught.value.problems]


def test_a_file_is_read(tmp_path: Path) -> None:
    made = read(tmp_path, BOTS)
    assert (made.name, made.earlier) == ("bots", 0.2)
    assert made.labels == ["num_bots=10", "crowd", "map=3"]
    assert [str(stage.until) for stage in made.stages] == [
        "100,000 steps", "victory >= 0.8 over 200 episodes or 300,000 steps", "None",
    ]  # fmt: skip
    assert str(made.stages[2].back) == "victory < 0.2 over 100 episodes"
    assert made.location(1) == f"{tmp_path}/bots.yaml, line 4"
    assert [made.find(text) for text in ("last", "1", "crowd", "4", "0", "crowds")] == [
        2,
        0,
        1,
        None,
        None,
        None,
    ]


def test_all_invalid_values_are_reported_at_once(tmp_path: Path) -> None:
    text = """nmae: x
earlier: 1.5
stages:
- {kwarg: {num_bots: 10}, until: {step: 100k}}
- kwargs: [1]
  until: {metric: "won=>0.8", episodes: many}
  name: last
- {kwargs: {num_bots: 3}}
- {kwargs: {num_bots: 3}, until: {}, back: {steps: 3, metric: won<0.1}}
- 7
- {name: a, until: {episodes: 5}, back: {metric: 3}}
"""
    assert problems(tmp_path, text) == [
        "earlier=1.5: input should be less than 1; correct it [/bots.yaml, line 2]",
        "unknown key 'step' (did you mean 'steps'?) in stages.0.until; remove it or correct its name"
        " [/bots.yaml, line 4]",
        "unknown key 'kwarg' (did you mean 'kwargs'?) in stages.0; remove it or correct its name"
        " [/bots.yaml, line 4]",
        "stages.1.name: 'last' can't name a stage: it is a number, blank or 'last'; use a word"
        " [/bots.yaml, line 7]",
        "stages.1.kwargs is a list: input should be a valid dictionary; correct it [/bots.yaml, line 5]",
        "stages.1.until.metric: 'won=>0.8' is not a comparison; write it like captured>=0.8 or return<-95"
        " [/bots.yaml, line 6]",
        "stages.1.until.episodes: 'many' is not a whole number from 0 up; write it like 5000, 500k, 50M or"
        " 1e6 [/bots.yaml, line 6]",
        "stages.3.until: the rule is empty; give steps or metric [/bots.yaml, line 9]",
        "stages.4=7: input should be a valid dictionary; correct it [/bots.yaml, line 10]",
        "stages.5.until: episodes is the number of episodes in a metric's mean; add metric"
        " [/bots.yaml, line 11]",
        "stages.5.back.metric: '3' is not a comparison; write it like captured>=0.8 or return<-95"
        " [/bots.yaml, line 11]",
        "unknown key 'nmae' (did you mean 'name'?) in the file; remove it or correct its name"
        " [/bots.yaml, line 1]",
    ]  # fmt: skip


def test_all_problems_with_the_order_of_stages_are_reported(tmp_path: Path) -> None:
    text = """stages:
- {kwargs: {num_bots: 3}}
- {kwargs: {num_bots: 3}, until: {steps: 2}, back: {steps: 3, metric: won<0.1}}
- {name: a, until: {steps: 5}}
"""
    assert problems(tmp_path, text) == [
        "stage 1 has no until, and stages follow it; add `until: {steps: 100k}` or"
        ' `until: {metric: "return>=100", episodes: 200}` [/bots.yaml, line 2]',
        "back of stage 2 can't count steps; give a metric [/bots.yaml, line 3]",
        "stages 1 and 2 are both 'num_bots=3'; give them names [/bots.yaml, line 3]",
        "stage 3 is the last one and lasts until the run ends; remove its until [/bots.yaml, line 4]",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("- a\n", "the file is a list: input should be a valid dictionary; correct it [/bots.yaml, line 1]"),
        ("stages: []\n", "stages is a list: tuple should have at least 1 item .* [/bots.yaml, line 1]"),
        ("stages: [{back: {metric: won<1}}]\n", "stage 1 has no stage before it; remove its back .*line 1]"),
        ("stages: [}\n", "this is not plain YAML: .*line 1]"),
        (
            "stages:\n- {name: a, until: {steps: 1}}\n- {name: a}\n",
            "stages 1 and 2 are both 'a'; give them names [/bots.yaml, line 3]",
        ),
        (
            "stages: [{until: {steps: 0}}, {}]\n",
            "stages.0.until.steps=0: input should be greater than or equal to 1; correct it .*",
        ),
    ],
)
def test_single_mistakes(tmp_path: Path, text: str, expected: str) -> None:
    (problem,) = problems(tmp_path, text)
    begin, _, end = expected.partition(".*")
    assert problem.startswith(begin)
    assert problem.endswith(end)


def test_a_name_a_mapping_and_nothing() -> None:
    for name in list_shipped():
        assert read_curriculum(name) is not None
    assert read_curriculum(TWO) == read_curriculum(TWO)
    assert [read_curriculum(nothing) for nothing in (None, False, "none")] == [None] * 3
    with pytest.raises(
        ConfigError, match=r"'level' is neither .* \(did you mean 'levels'\?\); shipped: bots, levels"
    ):
        read_curriculum("level")
    with pytest.raises(ConfigError, match="3 is not a curriculum; give a name, a file or a mapping"):
        read_curriculum(3)


def test_bots_takes_from_ten_to_fifty() -> None:
    made = read_curriculum("bots")
    assert made is not None
    told = [(stage.kwargs, stage.until.steps if stage.until else None) for stage in made.stages]
    bots = [{"num_bots": number} for number in (10, 25, 50)]
    assert told == list(zip(bots, (100_000, 300_000, None), strict=True))


def test_a_file_without_its_ending_is_suggested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("robots.yaml").write_text(BOTS)
    with pytest.raises(ConfigError, match=r"did you mean the file robots\.yaml\?"):
        read_curriculum("robots")


def test_a_config_holds_it_whole(tmp_path: Path) -> None:
    """The file may change or go: the run has its own."""
    path = tmp_path / "bots.yaml"
    path.write_text(BOTS)
    resolved = resolve("CartPole-v1", {"curriculum": str(path)})
    stored = tmp_path / "config.yaml"
    stored.write_text(format_config(resolved))
    path.unlink()
    again = resolve(None, {}, config_file=stored)
    assert again.config.env.curriculum == resolved.config.env.curriculum
    assert again.sources["env.curriculum"].startswith("flag --curriculum via config")
    assert resolve(None, {"curriculum": False}, config_file=stored).config.env.curriculum is None


def test_problems_of_a_file_and_of_other_flags_are_reported_together(tmp_path: Path) -> None:
    path = tmp_path / "bots.yaml"
    path.write_text("stagse: 1\n")
    with pytest.raises(ConfigError) as caught:
        resolve("CartPole-v1", {"curriculum": str(path), "gamma": "x"})
    assert len(caught.value.problems) == 3
    assert caught.value.problems[1].startswith("curriculum: unknown key 'stagse' (did you mean 'stages'?)")
    assert caught.value.problems[1].endswith("line 1] [flag --curriculum]")


def refuse(flags: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        apply_rules(resolve("CartPole-v1", {"curriculum": TWO} | flags))
    return str(caught.value)


def test_contradictions_are_refused() -> None:
    assert refuse({"env_kwargs": {"bots": 5, "size": 2}}) == (
        "bots=5 is given for all stages, and the stages of curriculum stages (bots=1 -> bots=2) set it too;"
        " remove one of them, or train without stages with --no-curriculum [flag --env-kwargs]"
    )
    assert refuse({"eval_stage": "bots=3"}) == (
        "eval_stage=bots=3 is not a stage (did you mean 'bots=1'?); use last or one of 1 (bots=1), 2 (bots=2)"
        " [flag --eval-stage]"
    )
    apply_rules(resolve("CartPole-v1", {"curriculum": TWO, "env_kwargs": {"size": 2}, "eval_stage": "1"}))
    apply_rules(resolve("CartPole-v1", {"curriculum": False, "env_kwargs": {"bots": 5}}))


def test_arguments_override_a_curriculum_of_weaker_sources_with_a_note() -> None:
    given = resolve("CartPole-v1", {"env_kwargs": {"bots": 5}})
    shipped = given.with_values({"env.curriculum": TWO}, "settings CartPole-v1")
    resolved, notes = apply_rules(shipped)
    assert resolved.config.env.curriculum is None
    assert "curriculum stages (bots=1 -> bots=2) is not used, since bots=5 is given" in notes


def test_a_run_that_ends_before_the_last_stage_gets_a_note() -> None:
    long = {"stages": [{"name": "a", "until": {"steps": "900k"}}, {"name": "b"}]}
    _, notes = apply_rules(resolve("CartPole-v1", {"curriculum": long, "timesteps": "100k"}))
    assert any(
        "the last stage is not reached: the stages before it take 900,000 steps" in note for note in notes
    )
