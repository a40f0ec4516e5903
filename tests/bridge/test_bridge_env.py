"""A game in another process in Gymnasium's form."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.wrappers import TimeLimit

import mission_gym as mg
from games import game, make_walk, processes
from mission_gym.bridge import BridgeEnv, EnginePool
from mission_gym.env.factory import EnvRequest, make_factory
from mission_gym.env.probe import find_announce, probe
from mission_gym.env.stages import Stages, StageVariant
from mission_gym.errors import UsageError
from mission_gym.vector.record import VectorOptions
from mission_gym.vector.serial import SerialVec
from timeouts import is_alive, wait_until

WALK = game("walk_game", "prints")


def test_a_game_is_an_environment_of_gymnasium() -> None:
    env = BridgeEnv(WALK, render_mode="rgb_array", length=9)
    try:
        first, info = env.reset(seed=3)
        again, _ = env.reset(seed=3)
        ahead, _ = env.reset(seed=3, options={"ahead": 2})
        assert env.observation_space.contains(first)
        assert first["place"].tolist() == again["place"].tolist() != ahead["place"].tolist()
        assert info["action_mask"].tolist() == [1, 1]
        obs, reward, terminated, truncated, _ = env.step(np.int64(1))
        assert obs["place"][0] == pytest.approx(ahead["place"][0] + 1 / 9)  # the keyword arrived
        assert (reward, terminated, truncated) == (-0.01, False, False)
        assert env.metadata["main_outcome"] == "home"
        assert env.spec is not None
        assert env.spec.max_episode_steps == 30
        assert env.render().tolist() == np.full((4, 6, 3), 1).tolist()
        state = env.get_state()
        forward = env.step(1)
        env.set_state(state)
        assert env.step(1)[0]["place"].tolist() == forward[0]["place"].tolist()
    finally:
        env.close()
    env.close()  # twice does no harm
    assert not processes()


@pytest.mark.filterwarnings("ignore")
def test_gymnasium_agrees() -> None:
    env = BridgeEnv(game("faulty_game", "none"))
    check_env(env, skip_render_check=True, skip_close_check=True)
    env.close()


def test_a_game_may_use_a_socket() -> None:
    env = BridgeEnv(f"{WALK} {{socket}}")
    env.reset(seed=1)
    assert env.step(1)[1] == -0.01
    env.close()
    assert not processes()


def test_games_that_a_stage_builds_anew_share_a_process() -> None:
    requests = [EnvRequest(f"bridge:{WALK}", {"length": length}) for length in (8, 9)]
    stages = Stages(tuple(StageVariant(each, make_factory(each)) for each in requests))
    first = stages.variants[0].factory
    with SerialVec(
        first, probe(first, "walk"), 2, lambda env_id, episode: episode, VectorOptions(stages=stages)
    ) as vec:
        for stage in (0, 1):
            vec.enter_stage(stage)
            vec.reset()
            one, two = (env.unwrapped for env in vec.envs)
            assert one._engine is two._engine
            assert len(processes()) == 2  # a subreaper and its game
    assert not processes()


def test_a_game_that_is_closed_twice_is_not_another_ones() -> None:
    pool = EnginePool()
    first, second = (pool.share(lambda: BridgeEnv(WALK))() for _ in range(2))
    first.announce_action(1)
    first.close()
    third = pool.share(lambda: BridgeEnv(WALK))()
    assert third._game == 0
    second.close()
    first.close()
    third.reset(seed=1)
    assert third.step(1)[1] == -0.01
    third.close()
    assert not processes()


def test_a_game_that_does_not_draw_is_not_asked_to() -> None:
    with pytest.raises(UsageError, match=r"^bridge:.* can't render: its answer to hello has no \"render\""):
        BridgeEnv(game("faulty_game", "none"), render_mode="rgb_array")
    assert not processes()


def test_games_of_a_vector_are_stepped_in_one_message() -> None:
    with_eight = mg.make_vec(partial(make_walk, "prints"), 8, backend="serial")
    alone = mg.make_vec(partial(make_walk, "prints"), 1, backend="serial")
    try:
        shown, _ = with_eight.reset(seed=[7] * 8)
        single, _ = alone.reset(seed=[7])
        engine = with_eight.envs[0].unwrapped._engine
        before = engine.num_messages
        assert len({id(env.unwrapped._engine) for env in with_eight.envs}) == 1
        for action in (1, 0, 1, 1):
            shown, rewards, *_ = with_eight.step(np.full(8, action))
            single, reward, *_ = alone.step(np.array([action]))
            assert (shown["place"] == single["place"]).all()
            assert (rewards == reward).all()
        assert engine.num_messages == before + 4
    finally:
        with_eight.close()
        alone.close()
    assert not processes()


def test_a_wrapper_that_may_change_actions_is_stepped_alone() -> None:
    from gymnasium.wrappers import TransformAction

    env = BridgeEnv(WALK)
    assert find_announce(TimeLimit(env, 5)) == env.announce_action
    assert find_announce(TransformAction(env, lambda action: 1 - action, None)) is None
    env.close()


def test_one_game_that_raises_costs_its_own_episode() -> None:
    vector = mg.make_vec(partial(make_walk, "raise"), 2, backend="serial", max_restarts=50)
    vector.reset(seed=[1, 2])
    pid = vector.envs[0].unwrapped._engine.pid
    for _ in range(4):
        *_, truncated, _ = vector.step(np.array([0, 0]))
    assert truncated.all()
    assert vector.envs[0].unwrapped._engine.pid == pid
    vector.close()


def test_an_environment_that_nobody_closes_leaves_no_process() -> None:
    env = BridgeEnv(game("faulty_game", "grandchild"))
    env.reset()
    before = processes()
    assert len(before) == 3  # subreaper, game, and its child in another session
    del env
    gc.collect()
    wait_until(lambda: not any(process.is_running() for process in before))


@pytest.mark.skipif(sys.platform != "linux", reason="the system reports the end to subreapers")
def test_nothing_outlives_a_process_that_is_killed(tmp_path: Path) -> None:
    told = tmp_path / "pids"
    script = (
        "import os, psutil\nfrom mission_gym.bridge import BridgeEnv\n"
        f"env = BridgeEnv({game('faulty_game', 'grandchild')!r}); env.reset()\n"
        "pids = [each.pid for each in psutil.Process().children(recursive=True)]\n"
        f"open({str(told)!r}, 'w').write(' '.join(map(str, pids)))\n"
        "os.kill(os.getpid(), 9)"
    )
    ended = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=False)
    assert ended.returncode == -signal.SIGKILL
    pids = [int(pid) for pid in told.read_text().split()]
    assert len(pids) == 3
    wait_until(lambda: not any(map(is_alive, pids)))


def test_what_cannot_be_started_is_told() -> None:
    with pytest.raises(UsageError, match=r"there is no program 'nodd' \(looked for in PATH"):
        BridgeEnv("nodd game.js")
    with pytest.raises(UsageError, match="needs a command"):
        BridgeEnv("")
    with pytest.raises(UsageError, match=r"can't be sent to the game: a object can't be sent"):
        BridgeEnv(WALK, thing=object())
    with pytest.raises(UsageError, match="needs no vector form: other vectors step all games"):
        mg.make_vec(f"bridge:{WALK}", 2, backend="batched")
    assert os.getpid() == psutil.Process().pid
    assert not processes()
