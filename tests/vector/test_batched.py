"""A vector environment of the user's behind our protocol, in every auto-reset mode."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from action_toys import Guarded, Throw
from mission_gym.env.probe import probe
from mission_gym.env.resume import pack_states, unpack_states
from mission_gym.errors import EnvContractError, EnvFailure, UsageError
from mission_gym.policy.sampling import draw_random
from mission_gym.vector.batched import BatchedVec
from mission_gym.vector.serial import SerialVec
from toys import Constant, DictMask, Faulty, Stateful


def first_seed(env_id, episode):
    return 5 + env_id


def make(factory, mode=AutoresetMode.SAME_STEP, num_envs=3):
    return BatchedVec(
        SyncVectorEnv([factory] * num_envs, autoreset_mode=mode), probe(factory, "toy"), first_seed
    )


def right_actions(vec):
    return np.array([[env.colour, env.side] for env in vec._env.envs])


class Uneven(DictMask):
    """Rows end at different times: the length of an episode is drawn at its begin."""

    def begin(self):
        if self.steps == 0:
            self.length = int(self.np_random.integers(3, 9))
        super().begin()


@pytest.mark.parametrize("toy", [Throw, Guarded])
def test_actions_with_parts_equal_the_serial_vector(toy):
    """As a Dict of batches, with masks that are one, too."""
    spec, rng = probe(toy, "toy"), np.random.default_rng(0)
    with SerialVec(toy, spec, 3, first_seed) as serial, make(toy) as batched:
        one, two = serial.reset(), batched.reset()
        paid = 0.0
        for _ in range(19):
            np.testing.assert_array_equal(one.obs[0], two.obs[0])
            np.testing.assert_array_equal(one.reward, two.reward)
            paid += np.abs(one.reward).sum()
            assert one.mask is None or (one.mask == two.mask).all()
            actions = spec.action.to_env(draw_random(spec.action, one.mask, rng, 3))
            one, two = serial.step(actions), batched.step(actions)
        assert paid > 0


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
def test_equal_to_the_serial_vector(mode):
    """Both reset in the same step, so transitions, masks, episodes and final rows are the same."""
    spec = probe(Uneven, "toy")

    def seed_once(env_id, episode):
        return 5 + env_id if episode == 0 else None

    with SerialVec(Uneven, spec, 3, seed_once) as serial, make(Uneven, mode) as batched:
        one, two = serial.reset(), batched.reset()
        num_ended = 0
        for _ in range(60):
            for mine, theirs in zip((*one.obs, *one.final_obs), (*two.obs, *two.final_obs), strict=True):
                np.testing.assert_array_equal(mine, theirs)
                assert mine.dtype == theirs.dtype
            for name in (
                "env_ids",
                "reward",
                "terminated",
                "truncated",
                "valid",
                "mask",
                "ended",
                "final_mask",
            ):
                np.testing.assert_array_equal(getattr(one, name), getattr(two, name), name)
            assert [e._replace(seed=-1) for e in one.episodes] == two.episodes
            num_ended += len(two.episodes)
            actions = right_actions(batched)
            one, two = serial.step(actions), batched.step(actions)
        assert num_ended > 15
        assert batched.episode_numbers() == serial.episode_numbers()


def test_next_step_rows_show_the_last_observation_and_then_an_invalid_reset():
    with make(Uneven, AutoresetMode.NEXT_STEP) as vec:
        batch = vec.reset()
        lengths = np.zeros(3, int)
        episodes = []
        for _ in range(60):
            before = batch
            batch = vec.step(right_actions(vec))
            was_ended = before.terminated | before.truncated
            np.testing.assert_array_equal(batch.valid, ~was_ended)
            assert not batch.reward[was_ended].any()
            for leaf, final in zip(batch.obs, batch.final_obs, strict=True):
                np.testing.assert_array_equal(leaf[batch.ended], final)
            lengths += batch.valid
            for episode in batch.episodes:
                assert episode.length == lengths[episode.env_id]
                assert episode.metrics["reward_terms/colour"] == 0.5 * episode.length
                lengths[episode.env_id] = 0
            episodes += batch.episodes
        assert [e.number for e in episodes if e.env_id == 0] == list(
            range(sum(e.env_id == 0 for e in episodes))
        )
        assert sum(vec.episode_numbers()) == len(episodes)


def test_gymnasiums_own_vector_cartpole():
    env = gym.make_vec("CartPole-v1", 4, "vector_entry_point")
    spec = probe(lambda: gym.make("CartPole-v1"), "CartPole-v1")
    with BatchedVec(env, spec, first_seed) as vec:
        vec.reset()
        episodes = []
        for _ in range(100):
            batch = vec.step(np.zeros(4, np.int64))
            episodes += batch.episodes
        assert batch.reward.dtype == np.float64
        assert {e.length for e in episodes} <= set(range(8, 12))
        assert all(e.terminated and e.ret == e.length for e in episodes)


class Walk(VectorEnv):
    """A vector of walks with a mask, its own state, and final observations as one array."""

    def __init__(self, num_envs=2, legal=True):
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.num_envs = num_envs
        self.legal = legal
        self.single_observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
        self.single_action_space = spaces.Discrete(2)

    def mask(self):
        return {"action_mask": np.full((self.num_envs, 2), self.legal)}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.position = self.np_random.normal(size=(self.num_envs, 1))
        return self.position.astype(np.float32), self.mask()

    def step(self, actions):
        self.position = self.position + self.np_random.normal(size=(self.num_envs, 1))
        last = self.position.copy()
        done = np.abs(last[:, 0]) > 2
        self.position[done] = 0.0
        infos = {
            **self.mask(),
            "final_obs": last.astype(np.float32),
            "reward_terms": {"distance": last[:, 0]},
        }
        return self.position.astype(np.float32), last[:, 0], done, np.zeros_like(done), infos

    def get_state(self):
        return {"position": self.position}

    def set_state(self, state):
        self.position = state["position"]


def walk_spec():
    class Single(Constant):
        def __init__(self):
            super().__init__()
            self.observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)

        def info(self):
            return {"action_mask": np.ones(2, bool)}

    return probe(Single, "walk")


def test_resume_through_the_vectors_own_state():
    actions = np.zeros(2, np.int64)
    straight, resumed = (BatchedVec(Walk(), walk_spec(), first_seed) for _ in range(2))
    straight.reset()
    for _ in range(7):
        straight.step(actions)
    states = unpack_states(*pack_states(straight.state()))
    batch, how = resumed.restore(states)
    assert how == ["state", "state"]
    np.testing.assert_array_equal(batch.obs[0][:, 0], [state.obs[0][0] for state in states])
    for _ in range(30):
        one, two = straight.step(actions), resumed.step(actions)
        np.testing.assert_array_equal(one.obs[0], two.obs[0])
        np.testing.assert_array_equal(one.final_obs[0], two.final_obs[0])
        assert one.episodes == two.episodes
        for episode in one.episodes:
            assert episode.metrics["reward_terms/distance"] == pytest.approx(episode.ret)


def test_resume_without_a_state_begins_new_episodes():
    with make(Stateful) as vec:
        vec.reset()
        vec.step(np.zeros(3, np.int64))
        batch, how = vec.restore(vec.state())
        assert (
            how
            == ["boundary: a batched environment without get_state() and set_state() can't be replayed"] * 3
        )
        assert [state.episode for state in vec.state()] == [1, 1, 1]
        assert batch.valid.all()


def test_a_state_that_fails_begins_new_episodes():
    class Fussy(Walk):
        def set_state(self, state):
            raise RuntimeError("another version")

    vec = BatchedVec(Fussy(), walk_spec(), first_seed)
    vec.reset()
    assert vec.restore(vec.state())[1] == ["boundary: set_state() raised RuntimeError: another version"] * 2


class Broken(Walk):
    """Replaces parts of what `step` returns."""

    def __init__(self, **changes):
        super().__init__()
        self.changes = changes

    def step(self, actions):
        names = ("obs", "reward", "terminated", "truncated", "infos")
        result = dict(zip(names, super().step(actions), strict=True))
        return tuple({**result, **self.changes}.values())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"obs": np.zeros((2, 3))},
            r"observation '' of the batch has shape \(2, 3\) and dtype float64, expected",
        ),
        ({"reward": np.zeros(3)}, r"reward of the batch has shape \(3,\)"),
        ({"infos": {}}, r"rows \[0, 1\] of the batch have no legal action"),
        ({"infos": {"action_mask": np.ones(2)}}, "the action masks of the batch have shape"),
        ({"truncated": np.ones(2, bool), "infos": {}}, r'rows \[0, 1\] ended without infos\["final_obs"\]'),
    ],
)
def test_broken_contracts(changes, message):
    vec = BatchedVec(Broken(**changes), walk_spec(), first_seed)
    vec.reset()
    with pytest.raises(EnvContractError, match=message):
        vec.step(np.zeros(2, np.int64))


def test_terminated_rows_need_no_last_observation():
    """Nothing is bootstrapped from it, and many simulators in JAX have none."""
    infos = {"action_mask": np.ones((2, 2), bool)}
    vec = BatchedVec(Broken(terminated=np.ones(2, bool), infos=infos), walk_spec(), first_seed)
    vec.reset()
    batch = vec.step(np.zeros(2, np.int64))
    assert batch.terminated.all()
    assert batch.final_obs[0].shape == batch.obs[0].shape


def test_other_errors():
    with pytest.raises(EnvContractError, match="no legal action"):
        BatchedVec(Walk(legal=False), walk_spec(), first_seed).reset()
    env = Walk()
    env.metadata = {}
    with pytest.raises(
        EnvContractError, match=r'metadata\["autoreset_mode"\] is None; a vector environment must'
    ):
        BatchedVec(env, walk_spec(), first_seed)
    with make(lambda: Faulty("raise", at=1)) as vec:
        vec.reset()
        with pytest.raises(
            EnvFailure, match=r"step\(\) of the batched environment toy raised RuntimeError: the sim"
        ):
            vec.step(np.zeros(3, np.int64))


def test_calls_out_of_order():
    vec, actions = make(Constant), np.zeros(3, np.int64)
    with pytest.raises(UsageError, match=r"send\(\) before reset\(\)"):
        vec.send(actions)
    vec.reset()
    with pytest.raises(UsageError, match=r"recv\(\) without send\(\)"):
        vec.recv()
    with pytest.raises(UsageError, match="steps all its rows at once"):
        vec.send(actions[:1], [1])
    with pytest.raises(UsageError, match=r"actions have shape \(2,\), expected \(3,\)"):
        vec.send(actions[:2])
    vec.send(actions)
    with pytest.raises(UsageError, match=r"send\(\) twice"):
        vec.send(actions)
    with pytest.raises(UsageError, match=r"reset\(\) between"):
        vec.reset()
    with pytest.raises(UsageError, match=r"state\(\) before"):
        vec.state()
    vec.recv()
    with pytest.raises(UsageError, match="1 saved environments can't be restored in 3"):
        vec.restore([None])
    vec.close()
    vec.close()
    with pytest.raises(UsageError, match="the vector is closed"):
        vec.reset()


def test_a_raising_close_is_noted():
    class Sticky(Walk):
        def close(self, **kwargs):
            raise OSError("device busy")

    vec = BatchedVec(Sticky(), walk_spec(), first_seed)
    vec.close()
    assert vec.close_errors == ["OSError: device busy"]
