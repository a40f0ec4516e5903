"""Vector environments with every kind of observation, action and mask: as `serial`, and restored exactly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from batch_toys import Many, find
from mission_gym.data import StepBatch
from mission_gym.env.probe import probe, probe_vector
from mission_gym.env.resume import pack_states, unpack_states
from mission_gym.policy.sampling import draw_random
from mission_gym.vector.batched import BatchedVec
from mission_gym.vector.serial import SerialVec
from observation_toys import FORMS

ACTIONS: list[tuple[str, dict[str, Any]]] = [
    ("action_toys:Throw", {}),
    ("action_toys:Levers", {}),
    ("action_toys:Guarded", {}),
    ("action_toys:Guarded", {"force": False, "form": "obs"}),
    ("action_toys:Guarded", {"form": "tuple"}),
    *[("action_toys:Couples", {"form": form}) for form in ("flat", "grid", "obs")],
]
CASES = [("observation_toys:Shown", {"form": form}) for form in FORMS] + ACTIONS
FIELDS = ("env_ids", "reward", "terminated", "truncated", "valid", "mask", "ended", "final_mask")


def seed_once(env_id: int, episode: int) -> int | None:
    return 5 + env_id if episode == 0 else None


def assert_equal(one: StepBatch, two: StepBatch) -> None:
    for mine, theirs in zip((*one.obs, *one.final_obs), (*two.obs, *two.final_obs), strict=True):
        np.testing.assert_array_equal(mine, theirs)
        assert mine.dtype == theirs.dtype
    for name in FIELDS:
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name), name)
    assert [episode._replace(seed=-1) for episode in one.episodes] == two.episodes


@pytest.mark.parametrize(("toy", "kwargs"), CASES)
@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_rows_are_those_of_single_environments(mode: AutoresetMode, toy: str, kwargs: dict[str, Any]) -> None:
    make = find(toy, length=4, **kwargs)
    spec = probe_vector(lambda num_envs: Many([make] * num_envs, autoreset_mode=mode), "toy")
    single = probe(make, "toy")
    assert (spec.leaves, spec.action, spec.mask_source) == (single.leaves, single.action, single.mask_source)
    vectors = [BatchedVec(Many([make] * 3, autoreset_mode=mode), spec, seed_once) for _ in range(2)]
    straight, other = vectors
    rng = np.random.default_rng(0)
    with SerialVec(make, spec, 3, seed_once) as serial, straight, other:
        one, two = serial.reset(), straight.reset()
        for step in range(13):
            if mode != AutoresetMode.NEXT_STEP:  # which shows another rule, and resets in a step of its own
                assert_equal(one, two)
            if step == 6:
                states = unpack_states(*pack_states(straight.state()))
                three, how = other.restore(states)
                assert how == ["state"] * 3
            actions = spec.action.to_env(draw_random(spec.action, two.mask, rng, 3))
            two = straight.step(actions)
            if mode != AutoresetMode.NEXT_STEP:
                one = serial.step(actions)
            if step >= 6:
                three = other.step(actions)
                assert_equal(two, three)
        assert sum(straight.episode_numbers()) >= 6
