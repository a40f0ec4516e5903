"""Dict and Tuple actions: rows of numbers and the space's own form are the same action."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import batch_space

from mission_gym.env.spaces import action_spec, make_action_decoder, make_action_encoder
from mission_gym.policy import PolicySpec
from mission_gym.policy.sampling import draw_random

HYBRID = spaces.Dict(
    {
        "aim": spaces.Box(-np.array([2.0, np.inf]), np.array([2.0, np.inf]), dtype=np.float64),
        "hand": spaces.Discrete(3, start=-(2**50)),
        "rest": spaces.Tuple((spaces.MultiBinary((2, 2)), spaces.MultiDiscrete([[2, 3], [4, 5]]))),
    }
)


@pytest.mark.parametrize("space", [HYBRID, spaces.Tuple((spaces.Discrete(4), spaces.Dict({"a": HYBRID})))])
def test_rows_and_actions_are_the_same(space):
    form, to_row, action = make_action_decoder(space), make_action_encoder(space), action_spec(space)
    space.seed(0)
    samples = [space.sample() for _ in range(20)]
    rows = np.stack([to_row(sample) for sample in samples])
    assert rows.shape == (20, *action.shape)
    for row, sample in zip(rows, samples, strict=True):
        again = form(row)
        assert space.contains(again)
        assert str(again) == str(sample)
    batch = form(rows)
    assert batch_space(space, 20).contains(batch)
    np.testing.assert_array_equal(to_row(batch), rows)


def test_a_number_alone_is_a_number_and_arrays_are_new():
    row = np.zeros(12)
    one, other = make_action_decoder(HYBRID)(row), make_action_decoder(HYBRID)(row)
    assert type(one["hand"]) is np.int64
    one["aim"][:] = 5.0
    assert (row == 0).all()
    assert (other["aim"] == 0).all()


def test_a_space_that_is_an_array_has_no_other_form():
    assert make_action_decoder(spaces.Box(0, 1, (2,))) is None
    assert make_action_encoder(spaces.Discrete(3))(2).tolist() == 2


def test_what_is_drawn_is_of_the_space_however_the_categories_are_joined():
    action, rng = action_spec(HYBRID), np.random.default_rng(0)
    form = make_action_decoder(HYBRID)
    assert (action.kind, action.num_stored, PolicySpec((), action).num_outputs) == (
        "composite",
        11,
        3 + 14 + 4 + 2,
    )
    for each in (action, action.joined()):
        stored = draw_random(each, None, rng, 50)
        assert (stored.dtype, stored.shape) == (np.float32, (50, each.num_stored))
        assert all(HYBRID.contains(form(row)) for row in each.to_env(stored))
    assert action.joined().nvec == (3 * 2 * 3 * 4 * 5,)


def test_joined_categories_and_bits_count_through_all_combinations():
    space = spaces.Tuple((spaces.MultiBinary(2), spaces.Discrete(3, start=7)))
    joined, form = action_spec(space).joined(with_bits=True), make_action_decoder(space)
    assert (joined.kind, joined.num_stored, PolicySpec((), joined).num_outputs) == ("categories", 1, 12)
    seen = {str(form(row)) for row in joined.to_env(np.arange(12)[:, None])}
    assert len(seen) == 12
    bits, number = form(joined.to_env(np.array([[1 * 4 + 2]]))[0])
    assert (bits.tolist(), number) == ([1, 0], 8)


INTEGERS = ["uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("bounds", [(0, 100), "all"])
def test_integer_actions_are_monotone_and_within_bounds(dtype, bounds, nested):
    limits = np.iinfo(dtype)
    low, high = (limits.min, limits.max) if bounds == "all" else bounds
    box = spaces.Box(low, high, (1,), dtype)
    space = spaces.Dict({"a": spaces.Tuple((spaces.Discrete(2), box))}) if nested else box
    stored = np.concatenate([np.linspace(-3, 3, 601), [1e20]]).astype(np.float32)[:, None]
    if nested:
        stored = np.column_stack([np.zeros(len(stored), np.float32), stored])
    rows = action_spec(space).to_env(stored)
    actions = [int(decoded["a"][1][0]) for decoded in map(make_action_decoder(space), rows)] if nested else (
        rows[:, 0].tolist()
    )  # fmt: skip
    assert actions == sorted(actions)
    assert all(low <= action <= high for action in actions)
    if high < 1e6:
        assert (actions[0], actions[-1]) == (low, high)


def test_integer_actions_are_rounded():
    action = action_spec(spaces.Box(-2, 2, (1,), np.int64))
    policy = np.array([-1.0, -0.76, -0.74, -0.26, -0.24, 0.24, 0.26, 0.74, 0.76], np.float32)
    assert action.to_env(policy[:, None])[:, 0].tolist() == [-2, -2, -1, -1, 0, 0, 1, 1, 2]


def test_actions_at_the_bounds_of_a_float_space_are_the_bounds():
    space = spaces.Box(np.float32(-0.1), np.float32(0.7), (1,))
    found = action_spec(space).to_env(np.array([[-5.0], [-1.0], [1.0], [5.0]], np.float32))
    assert found[:, 0].tolist() == [space.low[0], space.low[0], space.high[0], space.high[0]]
