"""Runs of vector environments equal those of single ones, while no episode needs a seed of its own.

`test_exact_resume.py` stops and resumes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from runs import NO_EVALS, assert_equal_arrays, last_policy, rows, train

SHORT = {"timesteps": 128, "checkpoint_freq": 1000, "acting_rows": 4, "device": "cpu", "threads": 1}
SHORT |= {"overlap": "off"} | NO_EVALS


@pytest.mark.parametrize(
    ("toy", "flags"),
    [
        ({"toy": "observation_toys:Shown", "form": "mission"}, {}),
        ({"toy": "action_toys:Guarded", "form": "tuple"}, {}),
        ({"toy": "action_toys:Couples"}, {"algo": "dqn"}),
    ],
)
def test_batched_runs_are_those_of_single_environments(
    toy: dict[str, Any], flags: dict[str, Any], tmp_path: Path
) -> None:
    given = SHORT | flags | {"env_kwargs": toy | {"length": 1000}}
    single = train(tmp_path, "batch_toys:make_one", vector="serial", **given)
    batched = train(tmp_path, "batch_toys:make_many", vector="batched", **given)
    assert_equal_arrays(last_policy(single), last_policy(batched))
    assert rows(single) == rows(batched)
