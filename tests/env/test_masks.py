"""Every form of an action mask becomes the same flat array, and what does not fit is refused."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

from action_toys import Couples, Guarded
from mission_gym.algorithms.dqn.algorithm import Dqn
from mission_gym.data import EnvSpec
from mission_gym.env.masks import MaskLayout, fit_masks
from mission_gym.env.probe import probe
from mission_gym.env.slot import EnvSlot
from mission_gym.env.spaces import action_spec
from mission_gym.errors import EnvContractError

PAIR = spaces.MultiDiscrete([2, 3])
PARTS = spaces.Dict(
    {"a": spaces.Discrete(2), "b": spaces.Tuple((spaces.MultiDiscrete([2, 3]), spaces.Box(0, 1, (1,))))}
)


def make_spec(space: spaces.Space, sample: object) -> EnvSpec:
    action = fit_masks(action_spec(space), space, sample, (), "the mask")
    return EnvSpec("toy", (), action, None, space, "info")


@pytest.mark.parametrize("form", ["flat", "grid", "method", "obs"])
def test_a_joint_mask_is_one_choice_among_combinations(form):
    spec = probe(lambda: Couples(form), "toy")
    assert (spec.action.nvec, spec.action.joint, spec.mask_size) == ((12,), (4, 3), 12)
    slot = EnvSlot(lambda: Couples(form), spec, 0, lambda episode: episode)
    slot.reset(0)
    np.testing.assert_array_equal(slot.mask, slot.env.free.ravel())
    legal = np.flatnonzero(slot.mask)
    slot.step(spec.action.to_env(legal[:1, None])[0])


def test_a_flat_mask_of_equal_sum_and_product_is_one_of_parts():
    square = spaces.MultiDiscrete([2, 2])
    assert make_spec(square, np.ones(4)).action.nvec == (2, 2)
    assert make_spec(square, np.ones((2, 2))).action.nvec == (4,)


def test_masks_of_parts_are_laid_out_in_the_order_of_the_space():
    spec = make_spec(PARTS, {"a": [1, 1], "b": (np.ones(5), None)})
    assert spec.action.nvec == (2, 2, 3)
    lay_out = MaskLayout(spec)
    assert lay_out({"a": [0, 1], "b": (np.array([1, 0, 0, 1, 1]), None)}).tolist() == [0, 1, 1, 0, 0, 1, 1]
    assert lay_out({"a": [0, 1]}).tolist() == [0, 1, 1, 1, 1, 1, 1]
    assert lay_out([0, 1, 1, 0, 0, 1, 1]).shape == (7,)
    assert lay_out({"a": [0, 1, 1], "b": (np.ones(4), None)}).shape != (7,)
    batched = {"a": np.ones((3, 2)), "b": (np.zeros((3, 5)), None)}
    assert lay_out(batched, (3,)).tolist() == [[1, 1, 0, 0, 0, 0, 0]] * 3


def test_masks_that_are_joint_over_all_parts_do_not_come_part_by_part():
    square = spaces.Tuple((spaces.Discrete(2), spaces.Discrete(2)))
    lay_out = MaskLayout(make_spec(square, np.ones((2, 2))))
    assert lay_out(np.array([[0, 1], [1, 1]])).tolist() == [0, 1, 1, 1]
    assert lay_out((np.array([0, 1, 1]), np.array([1]))).shape != (4,)


def test_a_part_may_have_a_joint_mask_of_its_own():
    for given in (np.ones(6), np.ones((2, 3))):
        spec = make_spec(PARTS, {"b": (given, None)})
        assert spec.action.nvec == (2, 6)
        assert MaskLayout(spec)({"b": (given, None)}).shape == (8,)
    assert spec.action.to_env(np.array([[1, 5, 0.5]])).tolist() == [[1, 1, 2, 0.75]]


def test_one_choice_of_all_parts_gets_the_masks_of_each():
    """As DQN acts: entry (a, b0, b1, bit) is legal where every part's own is; bits are always free."""
    space = spaces.Tuple((spaces.MultiBinary(1), PAIR, spaces.Discrete(2)))
    spec = Dqn().adapt_actions(make_spec(space, np.ones(7)))
    assert (spec.action.nvec, spec.mask_nvec, spec.mask_size) == ((24,), (2, 3, 2), 24)
    given = np.array([1, 0, 1, 1, 0, 0, 1], bool)
    expected = np.einsum("i,j,k,l->ijkl", given[:2], given[2:5], given[5:], np.ones(2, bool)).ravel()
    assert MaskLayout(spec)(given).tolist() == expected.tolist()
    assert MaskLayout(spec)(np.stack([given, given]), (2,)).tolist() == [expected.tolist()] * 2
    joint = Dqn().adapt_actions(make_spec(space, np.ones((2, 3, 2))))
    assert MaskLayout(joint)(np.eye(12, dtype=bool)[5].reshape(2, 3, 2)).nonzero()[0].tolist() == [10, 11]


@pytest.mark.parametrize(
    ("space", "sample", "message"),
    [
        (PAIR, np.ones(4), r"has shape \(4,\), expected \(5,\); .* or one over all combinations.*\[6\]"),
        (spaces.Discrete(3), np.ones(4), r"has shape \(4,\), expected \(3,\); a mask is flat"),
        (spaces.MultiDiscrete([300, 300]), np.ones(90000), "joint over 90000 combinations; at most 65536"),
        (PARTS, {"a": [1, 1], "b": (None, [1])}, r"has an entry for 'b\.1', which has no categories"),
        (PARTS, {"c": [1, 1]}, "has an entry 'c'.*, which is not a part of the action; it has a, b.0"),
        (PARTS, {"a": [1, 1, 1]}, r"'a', has shape \(3,\), expected \(2,\)"),
        (PARTS, np.ones(8), r"has shape \(8,\), expected \(7,\); .*\[12\]"),
        (spaces.Tuple((spaces.Box(0, 1),)), np.ones(1), "is for a composite action space; masks are for"),
    ],
)
def test_what_does_not_fit_is_refused(space, sample, message):
    with pytest.raises(EnvContractError, match=message):
        make_spec(space, sample)


def test_a_mask_that_changes_its_form_stops_the_run():
    spec = probe(Guarded, "toy")

    class Lazy(Guarded):
        def info(self):
            mask = super().info()["action_mask"]
            return {"action_mask": mask | {"tool": np.ones(self.steps + 3, bool)}}

    slot = EnvSlot(Lazy, spec, 0, lambda episode: episode)
    slot.reset(0)
    tool, row, column = slot.env.wanted  # the space has its keys in alphabetical order
    action = spec.action.to_env(np.array([[3 * row + column, tool, 0.0]]))[0]
    with pytest.raises(EnvContractError, match="expected a flat array of 9 zeros and ones, or a dict"):
        slot.step(action)


def test_a_part_without_a_legal_entry_is_refused():
    spec = probe(Guarded, "toy")

    class Stuck(Guarded):
        def info(self):
            return {"action_mask": {"place": np.zeros(6, bool)}}

    slot = EnvSlot(Stuck, spec, 0, lambda episode: episode)
    with pytest.raises(EnvContractError, match="has no legal action"):
        slot.reset(0)
