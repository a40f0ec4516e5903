"""The JavaScript engine behind the bridge: the same games as the compiled simulator."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest

from mission_gym.bridge import BridgeEnv
from mission_gym_missions import territory
from mission_gym_missions.territory.env import TerritoryEnv
from mission_gym_missions.territory.rules import SHIPPED

NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(NODE is None, reason="node is not installed: the engine is not tried")
COMMAND = shlex.join(["node", str(Path(territory.__file__).parent / "engine.cjs")])


def assert_equal(left, right):
    for name in ("map", "numbers"):
        assert left[0][name].dtype == right[0][name].dtype
        assert np.array_equal(left[0][name].reshape(-1), right[0][name].reshape(-1))
    assert left[1:-1] == right[1:-1]
    for key in set(left[-1]) | set(right[-1]):
        assert np.array_equal(left[-1][key], right[-1][key]), key


@pytest.mark.parametrize(("size", "num_bots", "seed"), [(64, 5, 3), (128, 12, 2**31 - 1)])
def test_both_play_the_same_games(size, num_bots, seed, tmp_path):
    short = tmp_path / "short.yaml"
    short.write_text(SHIPPED.read_text().replace("max_steps: 240", f"max_steps: {20 * 64 // size}"))
    ours = TerritoryEnv(size, num_bots, short)
    theirs = BridgeEnv(COMMAND, size=size, num_bots=num_bots, rules_file=str(short))
    try:
        assert theirs.observation_space == ours.observation_space
        assert theirs.action_space == ours.action_space
        assert theirs.metadata["outcomes"] == list(ours.metadata["outcomes"])
        rng = np.random.default_rng(seed)
        left, right = ours.reset(seed=seed), theirs.reset(seed=seed)
        ends = 0
        for _ in range(30):
            assert_equal(left, right)
            if left[-1]["outcome"] is not None:
                ends += 1
                left, right = ours.reset(), theirs.reset()
            else:
                action = np.int64((rng.random(13) * left[-1]["action_mask"]).argmax())
                left, right = ours.step(action), theirs.step(action)
        assert_equal(left, right)
        assert ends == 1
    finally:
        theirs.close()


def test_the_engine_reads_the_same_rules_and_goes_on_from_a_state(tmp_path):
    own = tmp_path / "own.yaml"
    own.write_text(
        SHIPPED.read_text()
        .replace("neutral_cost: 3", "neutral_cost: 1")
        .replace("time: -0.002", "time: -0.5")
    )
    ours, theirs = TerritoryEnv(rules_file=own), BridgeEnv(COMMAND, rules_file=str(own))
    try:
        left, right = ours.reset(seed=9), theirs.reset(seed=9)
        for action in (2, 5, 8, 11):
            left, right = ours.step(action), theirs.step(np.int64(action))
        assert_equal(left, right)
        state = theirs.get_state()
        ahead = theirs.step(np.int64(3))
        theirs.reset(seed=1)
        theirs.set_state(state)
        assert_equal(theirs.step(np.int64(3)), ahead)
        assert_equal(ours.step(3), ahead)
    finally:
        theirs.close()
