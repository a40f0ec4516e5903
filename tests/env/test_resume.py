"""States on disk: arrays by name and JSON, nothing else."""

import json
import math

import numpy as np
import pytest

from mission_gym.env.resume import SlotState, copy_plain, pack_states, unpack_states


def test_pack_and_back():
    tree = {
        "array": np.arange(6, dtype=np.int16).reshape(2, 3),
        "scalar": np.float32(0.1),
        7: (None, True, 2**100, "text", b"\x00\xff", [math.inf, 0.1]),
        "a/b": {"c": np.zeros(1)},
    }
    states = [
        SlotState("replay", 2, 5, 3, 0.1, (np.ones(2, np.float32),), actions=np.array([1, 0, 1])),
        SlotState("state", 0, None, 0, math.nan, (np.zeros(()),), np.ones(3, bool), {"x": 1.5}, saved=tree),
    ]
    arrays, document = pack_states(states)
    assert {"env/0/actions", "env/0/obs/0", "env/1/mask", "env/1/saved/array"} <= set(arrays)
    first, second = unpack_states(arrays, json.loads(json.dumps(document, allow_nan=False)))
    assert (first.how, first.episode, first.seed, first.steps, first.ret) == ("replay", 2, 5, 3, 0.1)
    np.testing.assert_array_equal(first.actions, states[0].actions)
    assert math.isnan(second.ret)
    assert second.terms == {"x": 1.5}
    assert second.saved[7] == tree[7]
    assert second.saved["scalar"] == tree["scalar"]
    assert second.saved["scalar"].dtype == np.float32
    np.testing.assert_array_equal(second.saved["array"], tree["array"])


def test_a_copy_is_deep():
    tree = {"array": np.zeros(2)}
    copied = copy_plain(tree)
    tree["array"][0] = 1.0
    assert copied["array"][0] == 0.0


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": {1, 2}}, "state/a holds a set"),
        ([object()], "state/0 holds a object"),
        (np.array([None]), "state holds an array of dtype object"),
    ],
)
def test_what_is_not_plain_is_refused(value, message):
    with pytest.raises(TypeError, match=message):
        copy_plain(value)
