"""Spaces become layouts; observations become leaves and come back."""

import numpy as np
import pytest
from gymnasium import spaces

from mission_gym.env.leaves import leaf_specs
from mission_gym.env.spaces import action_spec, make_flattener, make_unflattener
from mission_gym.errors import EnvContractError

NESTED = spaces.Dict(
    {
        "zoom": spaces.Discrete(3, start=2),
        "camera": spaces.Box(0, 255, (16, 20, 3), np.uint8),
        "pose": spaces.Tuple((spaces.Box(-1, 1, (2,)), spaces.MultiBinary(4))),
        "gear": spaces.MultiDiscrete([[3, 2], [4, 5]]),
    }
)


def test_leaves_follow_the_order_of_the_space():
    leaves = leaf_specs(NESTED)
    names = {"zoom": ["zoom"], "camera": ["camera"], "pose": ["pose.0", "pose.1"], "gear": ["gear"]}
    assert [leaf.name for leaf in leaves] == [name for key in NESTED.spaces for name in names[key]]
    by_name = {leaf.name: leaf for leaf in leaves}
    assert by_name["zoom"].kind == "categories"
    assert (by_name["zoom"].nvec, by_name["zoom"].start) == ((3,), (2,))
    assert (by_name["gear"].shape, by_name["gear"].nvec) == ((2, 2), (3, 2, 4, 5))
    assert by_name["pose.1"].kind == "binary"
    assert by_name["pose.0"].dtype == "float32"


@pytest.mark.parametrize(
    ("shape", "dtype", "kind", "channels_last"),
    [
        ((16, 20, 3), np.uint8, "image", True),
        ((3, 16, 20), np.uint8, "image", False),
        ((84, 84), np.uint8, "image", False),
        ((8, 8, 1), np.uint8, "image", True),
        ((7, 8, 1), np.uint8, "vector", False),
        ((128,), np.uint8, "vector", False),
        ((16, 20, 3), np.float32, "image", True),
        ((3, 16, 20), np.float64, "image", False),
        ((16, 20), np.float32, "vector", False),
        ((17, 20, 17), np.float32, "vector", False),
        ((7, 20, 3), np.float32, "vector", False),
        ((10, 10, 6), np.bool_, "image", True),
        ((7, 7, 6), np.bool_, "binary", False),
        ((10, 10), np.bool_, "binary", False),
        ((4, 96, 96, 3), np.uint8, "image", True),
        ((4, 3, 96, 96), np.uint8, "image", False),
    ],
)
def test_what_counts_as_an_image(shape, dtype, kind, channels_last):
    (leaf,) = leaf_specs(spaces.Box(0, 1, shape, dtype))
    assert (leaf.kind, leaf.channels_last) == (kind, channels_last)


@pytest.mark.parametrize("space", [NESTED, NESTED["pose"], NESTED["camera"], spaces.Dict({"a": NESTED})])
def test_flatten_and_back(space):
    obs = space.sample()
    leaves = make_flattener(space)(obs)
    assert [np.shape(leaf) for leaf in leaves] == [leaf.shape for leaf in leaf_specs(space)]
    again = make_flattener(space)(make_unflattener(space)(leaves))
    assert all(one is two for one, two in zip(leaves, again, strict=True))


def test_a_mask_key_is_no_leaf():
    space = spaces.Dict({"action_mask": spaces.MultiBinary(2), "x": spaces.Box(0, 1, (1,))})
    assert [leaf.name for leaf in leaf_specs(space, "action_mask")] == ["x"]
    assert len(make_flattener(space, "action_mask")(space.sample())) == 1


def test_actions():
    discrete = action_spec(spaces.Discrete(4, start=-1))
    assert (discrete.kind, discrete.shape, discrete.nvec, discrete.start) == ("categories", (), (4,), (-1,))
    assert action_spec(spaces.MultiDiscrete([3, 2])).nvec == (3, 2)
    assert action_spec(spaces.MultiBinary(3)).num_stored == 3
    box = action_spec(spaces.Box(np.array([-2.0, -np.inf]), np.array([2.0, np.inf]), dtype=np.float32))
    assert (box.low, box.high) == ((-2.0, -np.inf), (2.0, np.inf))


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Graph(spaces.Discrete(2), None), "space Graph is not supported; .* give a Sequence of node"),
        (spaces.OneOf([spaces.Discrete(2)]), "space OneOf is not supported; .* give a Dict of all its parts"),
        (
            spaces.Dict({"a": spaces.Sequence(spaces.Sequence(spaces.Discrete(2)))}),
            "observation 'a.element' is a Sequence inside a Sequence, which is not supported; give one Seq",
        ),
        (
            spaces.Sequence(spaces.Dict({"b": spaces.Graph(spaces.Discrete(2), None)})),
            "observation 'element.b' space Graph is not supported",
        ),
        (spaces.Dict({}), "is empty; there is nothing to observe"),
        (spaces.Tuple(()), "is empty; there is nothing to observe"),
        (spaces.Box(0, 1, (0,)), "is empty; it needs at least one number"),
        (spaces.Discrete(2**40), "has 1099511627776 categories; at most 65536 are supported"),
    ],
)
def test_refused_observations(space, message):
    with pytest.raises(EnvContractError, match=message):
        leaf_specs(space)


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Text(5), "action space Text is not supported; .* in a wrapper .gymnasium.ActionWrapper"),
        (spaces.Sequence(spaces.Discrete(2)), "action space Sequence is not supported"),
        (spaces.Graph(spaces.Discrete(2), None), "action space Graph is not supported"),
        (
            spaces.Dict({"click": spaces.Discrete(2), "form": spaces.Dict({"text": spaces.Text(5)})}),
            r"action 'form\.text' space Text is not supported; .* fill this part in.*action_space_config",
        ),
        (spaces.Tuple(()), "is empty; there is nothing to choose"),
        (spaces.Dict({"a": spaces.Discrete(3, start=2**60)}), "action 'a' space .* below .*; start at 0"),
        (
            spaces.Tuple((spaces.Discrete(2**17),)),
            "action '0' space .* at most 65536.* choose it from a short",
        ),
        (spaces.Box(0, 1, (0,)), "action space .* is empty"),
        (spaces.Discrete(2**40), "action space .* at most 65536"),
    ],
)
def test_refused_actions(space, message):
    with pytest.raises(EnvContractError, match=message):
        action_spec(space)
