"""The reference vector: protocol, auto-reset, seeds, resume."""

from functools import partial

import gymnasium as gym
import numpy as np
import pytest

from hazards import Hazard
from mission_gym.env.factory import EnvRequest, make_factory
from mission_gym.env.probe import probe
from mission_gym.env.resume import pack_states, unpack_states
from mission_gym.errors import EnvFailure, UsageError
from mission_gym.streams import episode_seed
from mission_gym.vector.record import Limits, VectorOptions
from mission_gym.vector.serial import SerialVec
from toys import Binary, Constant, DictMask, Faulty, Identity, Pointer, Stateful, Unseeded


def seed_of(env_id, episode):
    return episode_seed(1, "train", env_id, episode)


def make(factory, num_envs=3, *, max_restarts=0, **options):
    options = VectorOptions(limits=Limits(max_restarts=max_restarts), **options)
    return SerialVec(factory, probe(factory, "toy"), num_envs, seed_of, options)


def legal_actions(vec, batch, rng):
    spec = vec.spec.action
    if spec.kind != "categories":
        return spec.to_env(rng.integers(0, 2, (len(batch.env_ids), spec.num_stored)))
    mask = np.ones((len(batch.env_ids), sum(spec.nvec)), bool) if batch.mask is None else batch.mask
    parts = np.split(mask, np.cumsum(spec.nvec)[:-1], axis=1)
    picks = [(part * rng.random(part.shape)).argmax(axis=1) for part in parts]
    return spec.to_env(np.stack(picks, axis=1))


def play(vec, batch, num_steps, seed):
    """Play on and return every number seen, and the last batch."""
    rng, trace = np.random.default_rng(seed), []
    for _ in range(num_steps):
        batch = vec.step(legal_actions(vec, batch, rng))
        arrays = [*batch.obs, batch.reward, batch.terminated, batch.truncated, batch.ended, *batch.final_obs]
        arrays += [] if batch.mask is None else [batch.mask, batch.final_mask]
        trace.append(([array.tolist() for array in arrays], batch.episodes))
    return trace, batch


def test_an_ended_row_shows_the_next_episode():
    with make(Stateful, 2) as vec:
        first = vec.reset()
        assert first.env_ids.tolist() == [0, 1]
        assert first.ended.size == 0
        assert first.final_obs[0].shape == (0, 2)
        for _ in range(49):
            vec.step(np.zeros(2, np.int64))
        last = vec.step(np.zeros(2, np.int64))
        assert last.ended.tolist() == [0, 1]
        assert last.truncated.all()
        assert not last.terminated.any()
        assert last.valid.all()
        assert [episode.seed for episode in last.episodes] == [seed_of(0, 0), seed_of(1, 0)]
        assert [episode.length for episode in last.episodes] == [50, 50]
        for row in range(2):
            env = Stateful()
            env.reset(seed=seed_of(row, 0))
            for _ in range(50):
                final = env.step(0)[0]
            np.testing.assert_array_equal(last.final_obs[0][row], final)
            np.testing.assert_array_equal(last.obs[0][row], env.reset(seed=seed_of(row, 1))[0])
        assert vec.episode_numbers() == [1, 1]
        after = vec.step(np.zeros(2, np.int64))
        assert (after.ended.size, after.episodes) == (0, [])
        assert not (after.terminated | after.truncated).any()
        alone = [vec.step(np.zeros(2, np.int64)) for _ in range(48)][-1]
        vec.send(np.zeros(1, np.int64), [1])
        assert vec.recv().truncated.tolist() == [True]
        assert alone.ended.size == 0


def test_masks_and_final_masks():
    with make(DictMask, 4) as vec:
        batch = vec.reset()
        assert batch.mask.shape == (4, 5)
        _, batch = play(vec, batch, 10, seed=0)
        assert batch.ended.tolist() == [0, 1, 2, 3]
        assert batch.final_mask.shape == (4, 5)
        assert [leaf.shape[0] for leaf in batch.final_obs] == [4] * len(vec.spec.leaves)
        assert {episode.outcome for episode in batch.episodes} <= {"won", "lost"}


def test_a_final_observation_survives_an_environment_that_reuses_its_array():
    class Reuses(Constant):
        def __init__(self):
            super().__init__()
            self.array = np.zeros(1, np.float32)

        def observe(self):
            self.array[0] = self.steps / 10
            return self.array

    with make(Reuses, 1) as vec:
        vec.reset()
        for _ in range(10):
            batch = vec.step(np.zeros(1, np.int64))
        assert (batch.final_obs[0].item(), batch.obs[0].item()) == (1.0, 0.0)


def test_single_rows_can_be_stepped_and_actions_arrive_as_they_should():
    seen = []

    class Looks(Pointer):
        def step(self, action):
            seen.append(action)
            return super().step(action)

    with make(Looks, 3) as vec:
        vec.reset()
        vec.send(np.ones((2, 2)), [2, 0])
        batch = vec.recv()
        assert batch.env_ids.tolist() == [2, 0]
        assert batch.obs[0].shape == (2, 2)
        assert seen[0].dtype == np.float32
    with make(Identity, 2) as vec:
        batch = vec.reset()
        assert vec.step(batch.obs[0]).reward.tolist() == [1.0, 1.0]


def test_infos_where_asked_for():
    with make(DictMask, 2, infos=True) as vec:
        batch = vec.reset()
        assert set(batch.infos) == {0, 1}
        _, batch = play(vec, batch, 10, seed=0)
        assert set(batch.final_infos[1]) == {"action_mask", "reward_terms", "outcome", "episode_metrics"}
        assert set(batch.infos[1]) == {"action_mask"}


def test_without_autoreset_rows_wait():
    with make(Constant, 2, autoreset="disabled") as vec:
        vec.reset()
        for _ in range(10):
            batch = vec.step(np.zeros(2, np.int64))
        assert batch.ended.tolist() == [0, 1]
        assert vec.reset([1]).env_ids.tolist() == [1]
        vec.send(np.zeros(1, np.int64), [1])
        assert vec.recv().episodes == []
        with pytest.raises(UsageError, match=r"environment 0, .* the episode is over"):
            vec.step(np.zeros(2, np.int64))


def test_calls_out_of_order():
    actions = np.zeros(2, np.int64)
    vec = make(Constant, 2)
    with pytest.raises(UsageError, match=r"send\(\) before reset\(\)"):
        vec.send(actions)
    with pytest.raises(UsageError, match="reset all first"):
        vec.reset([1])
    with pytest.raises(UsageError, match=r"state\(\) before reset\(\)"):
        vec.state()
    vec.reset()
    with pytest.raises(UsageError, match=r"recv\(\) without send\(\)"):
        vec.recv()
    with pytest.raises(UsageError, match=r"actions have shape \(3,\), expected \(2,\)"):
        vec.send(np.zeros(3, np.int64))
    vec.send(actions)
    with pytest.raises(UsageError, match=r"send\(\) twice"):
        vec.send(actions)
    with pytest.raises(UsageError, match=r"reset\(\) between"):
        vec.reset()
    with pytest.raises(UsageError, match="1 saved environments can't be restored in 2"):
        vec.restore([None])
    vec.close()
    with pytest.raises(UsageError, match="the vector is closed"):
        vec.recv()


def test_a_failure_asks_for_a_reset():
    with make(lambda: Faulty("raise", at=2), 2) as vec:
        vec.reset()
        vec.step(np.zeros(2, np.int64))
        with pytest.raises(EnvFailure, match=r"environment 0, seed .*the simulator fell over"):
            vec.step(np.zeros(2, np.int64))
        with pytest.raises(UsageError, match="or after a failure; reset or restore"):
            vec.step(np.zeros(2, np.int64))
        vec.reset()


def test_closing_never_fails():
    class Sticky(Constant):
        def close(self):
            raise OSError("device busy")

    vec = SerialVec(Sticky, probe(Constant, "toy"), 2, seed_of)
    vec.close()
    vec.close()
    assert vec.close_errors == [f"environment {i}: OSError: device busy" for i in range(2)]


def test_environments_built_before_a_failing_one_are_closed():
    closed = []

    class Closing(Constant):
        def close(self):
            closed.append(True)

    with pytest.raises(RuntimeError, match="no licence"):
        SerialVec([Closing, lambda: Faulty("constructor")], probe(Constant, "toy"), 2, seed_of)
    assert closed == [True]


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1", "LunarLander-v3", DictMask, Stateful, Binary])
def test_resume_equals_going_on(env):
    factory = make_factory(EnvRequest(env) if isinstance(env, str) else env)
    with make(factory) as straight, make(factory) as resumed:
        _, before = play(straight, straight.reset(), 33, seed=0)
        arrays, document = pack_states(straight.state())
        after, how = resumed.restore(unpack_states(arrays, document))
        assert set(how) == {"state" if env is Stateful else "replay"}
        for one, two in zip(after.obs, before.obs, strict=True):
            np.testing.assert_array_equal(one, two)
        assert play(resumed, after, 60, seed=1)[0] == play(straight, before, 60, seed=1)[0]


def test_resume_of_an_unseeded_environment_says_so_and_the_budget_is_shared():
    with make(Unseeded, 2) as vec:
        vec.reset()
        vec.step(np.zeros(2, np.int64))
        batch, how = vec.restore(vec.state())
        assert all(
            text.startswith("boundary: the replay of 1 steps gave another observation") for text in how
        )
        assert batch.reward.tolist() == [0.0, 0.0]
        assert [state.episode for state in vec.state()] == [1, 1]
    with make(Constant, 2) as vec:
        vec.reset()
        vec.step(np.zeros(2, np.int64))
        states = vec.state()
        for state in states:
            state.step_s = 20.0
        _, how = vec.restore(states)
        assert how[0] == "replay"
        assert how[1] == "boundary: replaying 1 steps would take 20.0 s, over the 10.0 s allowed"


def test_equal_seeds_equal_traces_of_an_own_loop():
    factory = make_factory(EnvRequest("CartPole-v1"))
    rng = np.random.default_rng(0)
    with make(factory, 1) as vec:
        vec.reset()
        env, episode = gym.make("CartPole-v1"), 0
        env.reset(seed=seed_of(0, 0))
        for _ in range(200):
            action = rng.integers(0, 2, 1)
            batch = vec.step(action)
            obs, reward, terminated, truncated, _ = env.step(int(action[0]))
            if terminated or truncated:
                np.testing.assert_array_equal(batch.final_obs[0][0], obs)
                episode += 1
                obs, _ = env.reset(seed=seed_of(0, episode))
            np.testing.assert_array_equal(batch.obs[0][0], obs)
            assert (batch.reward[0], batch.terminated[0]) == (reward, terminated)


def test_a_raise_without_a_text_costs_one_episode(tmp_path):
    with make(partial(Hazard, kind="mute", once=str(tmp_path / "x")), 2, max_restarts=1) as vec:
        vec.reset()
        lost = [vec.step(np.zeros(2, np.int64)).valid.tolist() for _ in range(4)]
    assert sum(valid.count(False) for valid in lost) == 1
