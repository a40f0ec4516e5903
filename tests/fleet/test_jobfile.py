"""Job files: the runs that they define, and all problems of a file at once, by line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mission_gym.cli.groups import find_problems, list_flag_names, resolve_values
from mission_gym.errors import ConfigError
from mission_gym.fleet.jobfile import JobFile, make_example, read_job_file
from mission_gym.fleet.requests import Draft, find_needs, inherit, make_arguments

SMALL = "defaults: {env: CartPole-v1, timesteps: 20k}\n"


def read(folder: Path, text: str) -> JobFile:
    path = folder / "q.yaml"
    path.write_text(text)
    return read_job_file(path, list_flag_names(), find_problems)


def names(file: JobFile) -> list[str]:
    return [draft.name for draft in file.drafts]


def problems(folder: Path, text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read(folder, text)
    return [problem.replace(str(folder), "") for problem in caught.value.problems]


def test_each_job_overrides_the_defaults(tmp_path: Path) -> None:
    file = read(tmp_path, SMALL + "jobs:\n- name: a\n- {name: b, timesteps: 30k, priority: 2, retries: 0}\n")
    values = {"env": "CartPole-v1", "timesteps": "20k"}
    assert file == JobFile(
        "q", (Draft("a", "a", values), Draft("b", "b", values | {"timesteps": "30k"}, priority=2, retries=0))
    )


def test_grid_and_seeds_multiply(tmp_path: Path) -> None:
    file = read(
        tmp_path,
        "name: mine\nseeds: 2\ngrid: {gamma: [0.9, 0.99]}\n"
        + SMALL
        + "jobs:\n- name: a\n- {name: b, seeds: [7], grid: {network_arch: [[8], [16, 16]]}}\n",
    )
    assert file.name == "mine"
    assert names(file) == [
        "a-gamma-0.9-s0", "a-gamma-0.9-s1", "a-gamma-0.99-s0", "a-gamma-0.99-s1",
        "b-network_arch-8-s7", "b-network_arch-16-16-s7",
    ]  # fmt: skip
    assert [draft.variant for draft in file.drafts][:2] == ["a-gamma-0.9"] * 2
    assert file.drafts[-1].values["network_arch"] == [16, 16]


def test_a_branch_takes_its_parents_seeds(tmp_path: Path) -> None:
    text = "jobs:\n- {name: more, branch: base@last, timesteps: 40k}\n- {name: base, seeds: '3,5'}\n"
    file = read(tmp_path, SMALL + text)
    assert [(each.name, each.parent, each.point) for each in file.drafts] == [
        ("base-s3", None, "best"), ("base-s5", None, "best"),
        ("more-s3", "base-s3", "last"), ("more-s5", "base-s5", "last"),
    ]  # fmt: skip


BRANCHES = """jobs:
- {name: base, env: CartPole-v1, algo: dqn, set: [dqn.gamma=0.9], num_workers: 2}
- {name: more, branch: base, replay_size: 50k, set: dqn.tau=0.5}
- {name: other, branch: more, env: Acrobot-v1}
"""


def test_a_branch_is_checked_with_the_values_of_its_parent(tmp_path: Path) -> None:
    """`replay_size` is DQN's, and the branch itself does not name the algorithm."""
    drafts = read(tmp_path, BRANCHES).drafts
    assert [draft.name for draft in drafts] == ["base", "more", "other"]
    whole = inherit(inherit(drafts[0].values, drafts[1].values), drafts[2].values)
    assert whole == {
        "algo": "dqn", "num_workers": 2, "replay_size": "50k",
        "set": ["dqn.gamma=0.9", "dqn.tau=0.5", "env.env_id=Acrobot-v1"],
    }  # fmt: skip
    assert find_needs(resolve_values(whole)).cores == 2


@pytest.mark.parametrize(
    "value", [1e-5, None, "3", 3, "none", True, "true", "a\nb", "", [1, "x"], 2.5, "ä: #"]
)
def test_arguments_keep_the_types_of_environment_arguments(value: Any) -> None:
    flag, word = make_arguments({"env_kwargs": {"key": value}})
    assert flag == "--env-kwargs"
    found = resolve_values({"env_kwargs": [word]}).config.env.env_kwargs["key"]
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ["the file is empty; write values into it [/q.yaml, line 1]"]),
        ("jobs: []\n", ["the file has no jobs; write a list of them below `jobs:` [/q.yaml, line 1]"]),
        ("- a\n", ["the file must be a mapping; write `jobs:` and a list below it [/q.yaml, line 1]"]),
        ("jobs: [}\n", None),
        (
            "jobs:\n- {name: a}\n- {name: a}\n",
            ["job 'a' is defined twice, first in /q.yaml, line 2; rename one [/q.yaml, line 3]"],
        ),
        (
            "jobs:\n- {name: a, branch: c}\n- {name: b, branch: a}\n- {name: c, branch: b@best}\n",
            ["the branches form a cycle: a <- c <- b <- a; remove one of them [/q.yaml, line 2]"],
        ),
        (
            "jobs:\n- {name: base}\n- {name: b, branch: bsae@best}\n- {name: c, branch: base@5}\n",
            [
                "branch: there is no job 'bsae' (did you mean 'base'?); use one of this file"
                " [/q.yaml, line 3]",
                "branch: '5' is not a checkpoint; write base@best or base@last [/q.yaml, line 4]",
            ],
        ),
        (
            "jobs:\n- {name: a, seeds: 2}\n- {name: b, branch: a, seeds: '5,6'}\n",
            [
                "job 'b' has seed 5, but its parent 'a' does not; seed k branches from seed k; give both the"
                " same seeds [/q.yaml, line 3]"
            ],
        ),
        (
            "gamma: 0.9\njbos: []\njobs: [{name: a}]\n",
            [
                "'gamma' is not a key of a job file; write it below `defaults:`; use name, defaults, grid,"
                " seeds, jobs [/q.yaml, line 1]",
                "'jbos' is not a key of a job file (did you mean 'jobs'?); use name, defaults, grid,"
                " seeds, jobs [/q.yaml, line 2]",
            ],
        ),
        (
            "jobs:\n- name: a\n  run_name: x\n  learing_rate: 1\n- wide\n- {gamma: 1}\n- {name: latest}\n",
            [
                "run_name is not for job 'a': runs are named after their job; use name [/q.yaml, line 3]",
                "unknown key 'learing_rate' (did you mean 'learning_rate'?) in job 'a'; correct it"
                " [/q.yaml, line 4]",
                "a job must be a mapping, not 'wide'; write `- name: ...` [/q.yaml, line 5]",
                "a job has no name; add `name:` [/q.yaml, line 6]",
                "name='latest' is not valid; use letters, digits, '_', '-' and '.' [/q.yaml, line 7]",
            ],
        ),
        (
            "defaults:\n  gamma: high\njobs:\n- {name: a, retries: -1}\n- {name: b, seeds: x}\n",
            [
                "retries=-1 is not a whole number of at least 0; correct it [/q.yaml, line 4]",
                "seeds='x' can't be read; write 5, 1..5 or 3,7,11 [/q.yaml, line 5]",
                "job 'a': gamma: 'high' is not a finite number; write it like 0.5 or 3e-4 [/q.yaml, line 2]",
                "job 'b': gamma: 'high' is not a finite number; write it like 0.5 or 3e-4 [/q.yaml, line 2]",
            ],
        ),
        (
            "jobs:\n- name: a\n  n_envs: 8\n  batch_size: 100\n",
            None,  # the rollout, with the nearest sizes
        ),
        (
            "jobs:\n- {name: a, grid: {gamma: 0.9}}\n- {name: b, grid: {seeds: [1]}}\n",
            [
                "grid must have a list of values for each flag, like `gamma: [0.98, 0.99]` [/q.yaml, line 2]",
                "seeds can't be part of a grid; remove it there [/q.yaml, line 3]",
            ],
        ),
        (
            "grid: {gamma: 0.9}\njobs:\n- {name: a}\n- {name: a}\n- {name: b, branch: c}\n- {nome: d}\n",
            [
                "grid must have a list of values for each flag, like `gamma: [0.98, 0.99]` [/q.yaml, line 1]",
                "job 'a' is defined twice, first in /q.yaml, line 3; rename one [/q.yaml, line 4]",
                "unknown key 'nome' (did you mean 'name'?) in a job without a name; correct it"
                " [/q.yaml, line 6]",
                "a job has no name; add `name:` [/q.yaml, line 6]",
                "branch: there is no job 'c'; use one of this file [/q.yaml, line 5]",
            ],
        ),
        ("jobs:\n- {name: a}\nname: a/b\n", None),
        (
            "jobs:\n- {name: a, seeds: 2}\n- {name: a-s1}\n",
            ["the run name 'a-s1' is used twice, first in /q.yaml, line 2; rename one job [/q.yaml, line 3]"],
        ),
        (
            "jobs:\n- name: a\n  set: 3\n- name: b\n  preset: [1]\n- name: c\n  config: 3\n",
            [
                "job 'a': set=[3] is not a text; write it as for `train --set` [/q.yaml, line 3]",
                "job 'b': preset=[1] is not a text; write it as for `train --preset` [/q.yaml, line 5]",
                "job 'c': config=3 is not a text; write it as for `train --config` [/q.yaml, line 7]",
            ],
        ),
        ("jobs:\n- {name: a}\n- {name: b, branch: a, set: 3}\n", None),
        ("jobs:\n- {name: a, grid: {preset: [[1]]}}\n", None),
        (f"jobs:\n- {{name: {'a' * 199}}}\n", None),
        (f"name: {'a' * 240}\njobs:\n- {{name: b}}\n", None),
        ("jobs:\n- {name: a, seeds: 600}\n- {name: b, seeds: 600}\n", None),
        ("jobs:\n- {name: a, name: b}\n", None),
    ],
)
def test_all_problems_are_reported_at_once(tmp_path: Path, text: str, expected: list[str] | None) -> None:
    found = problems(tmp_path, text)
    assert found == (found if expected is None else expected)
    assert all("/q.yaml, line " in problem for problem in found)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="can't be read"):
        read_job_file(tmp_path / "none.yaml", list_flag_names(), find_problems)


@pytest.mark.parametrize("cores", [1, 2, 16])
def test_the_example_is_a_valid_file(tmp_path: Path, cores: int) -> None:
    text = make_example("four-jobs", cores)
    file = read(tmp_path, text)
    assert file.name == "four-jobs"
    assert names(file) == ["baseline", "large-batch", "wide", "deep"]
    archs: dict[str, Any] = {draft.name: draft.values["network_arch"] for draft in file.drafts}
    assert (archs["wide"], archs["deep"]) == ([1536, 768, 384], [512] * 5)
    assert [draft.values["n_epochs"] for draft in file.drafts] == [10, 10, 25, 30]
    assert f"sized for {cores} core" in text


@pytest.mark.parametrize(
    "values",
    [
        "env: --trust",
        "env: CartPole-v1, critic_keys: [--trust]",
        "env: CartPole-v1, wrap: [--trust]",
        "env: CartPole-v1, env_kwargs: {--trust: 1}",
    ],
)
def test_a_value_can_not_be_a_flag(tmp_path: Path, values: str) -> None:
    (problem,) = problems(tmp_path, f"defaults: {{{values}, timesteps: 20k}}\njobs:\n- name: a\n")
    assert "begins with '-', like a flag" in problem


def test_trust_is_no_key_and_no_argument(tmp_path: Path) -> None:
    assert "unknown key 'trust'" in problems(tmp_path, SMALL + "jobs:\n- {name: a, trust: true}\n")[0]
    assert make_arguments({"env": "CartPole-v1", "trust": True}) == ("CartPole-v1",)
