"""What code written for Gymnasium's and SB3's vectors expects of ours, beyond equal numbers."""

from __future__ import annotations

import multiprocessing
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from mission_gym.errors import UsageError
from mission_gym.vector.make_vec import make_vec
from toys import Constant, Toy

BACKENDS = ["serial", "workers", "threads"]


class Counter(Toy):
    """Shows how many steps its episode has made, as a Python int; ends after `length` of them."""

    def __init__(self, length=3, high=100):
        self.length = length
        self.observation_space, self.action_space = spaces.Discrete(high), spaces.Discrete(2)

    def observe(self):
        return self.steps

    def step(self, action):
        return self.advance(1.0, terminated=self.steps + 1 >= self.length)


class Bounded(Toy):
    """A Box whose upper bound is given."""

    def __init__(self, high=1.0, size=2):
        self.observation_space = spaces.Box(0, high, (size,))
        self.action_space = spaces.Discrete(2)

    def observe(self):
        return self.observation_space.high

    def step(self, action):
        return self.advance(0.0)


class Asking(Toy):
    """Keeps the options of its last reset, and tells the action it was given."""

    observation_space = spaces.Discrete(2)
    action_space = spaces.Tuple((spaces.Discrete(3), spaces.Box(-1, 1, (2,))))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.options = options
        return 0, {}

    def observe(self):
        return 0

    def step(self, action):
        return 0, 0.0, False, False, {"given": repr(action)}


@pytest.mark.parametrize("backend", BACKENDS)
def test_seeds_and_generators_are_those_of_the_environments(backend: str) -> None:
    vec = make_vec("CartPole-v1", 3, backend=backend)
    vec.reset(seed=42)
    assert vec.np_random_seed == (42, 43, 44)
    vec.reset()
    assert vec.np_random_seed == (42, 43, 44)
    theirs = SyncVectorEnv([lambda: gym.make("CartPole-v1")] * 3)
    theirs.reset(seed=42)
    theirs.reset()
    states = [generator.bit_generator.state for generator in theirs.np_random]
    assert [generator.bit_generator.state for generator in vec.np_random] == states
    vec.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_first_reset_by_a_mask_of_all_rows(backend: str) -> None:
    vec = make_vec("CartPole-v1", 3, backend=backend, autoreset_mode="disabled")
    with pytest.raises(gym.error.ResetNeeded, match="reset all first"):
        vec.reset(options={"reset_mask": np.array([True, False, True])})
    obs, _ = vec.reset(seed=5, options={"reset_mask": np.ones(3, bool)})
    np.testing.assert_array_equal(obs, vec.reset(seed=5)[0])
    vec.close()


@pytest.mark.parametrize("backend", ["serial", "workers"])
def test_last_observations_have_the_types_that_environments_give(backend: str) -> None:
    vec = make_vec([Counter, partial(Counter, 2)], backend=backend, autoreset_mode="same_step")
    vec.reset(seed=0)
    vec.step([0, 0])
    infos = vec.step([0, 0])[4]
    assert infos["final_obs"].tolist() == [None, 2]
    assert type(infos["final_obs"][1]) is int
    vec.close()


def test_errors_are_those_that_ported_code_catches() -> None:
    vec = make_vec("CartPole-v1", 2, backend="serial", autoreset_mode="disabled")
    with pytest.raises(gym.error.ResetNeeded):
        vec.step([0, 0])
    vec.reset(seed=0)
    for actions, error in ([[0], ValueError], [[0, 0, 0], ValueError], [0, TypeError]):
        with pytest.raises(error, match=r"expected \(2,\): one row for each"):
            vec.step(actions)
    with pytest.raises(ValueError, match="3 seeds for 2"):
        vec.reset(seed=[1, 2, 3])
    with pytest.raises(TypeError, match="reset_mask"):
        vec.reset(options={"reset_mask": np.array([1, 0])})
    with pytest.raises(ValueError, match="reset_mask"):
        vec.reset(options={"reset_mask": np.zeros(2, bool)})
    with pytest.raises(ValueError, match="values of 'gravity'"):
        vec.set_attr("gravity", [1.0])
    vec.close()
    with pytest.raises(gym.error.ClosedEnvironmentError, match="closed"):
        vec.reset()
    with pytest.raises(gym.error.ClosedEnvironmentError, match="closed"):
        vec.get_attr("gravity")
    with pytest.raises(ValueError, match="unknown backend"):
        make_vec("CartPole-v1", 2, backend="async")
    with pytest.raises(RuntimeError, match="all environments must be alike"):
        make_vec([Constant, Counter], backend="serial")


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_instance_in_several_rows_is_refused(backend: str) -> None:
    env = Constant()
    with pytest.raises(ValueError, match="environments 0 and 1 are one and the same instance"):
        make_vec([lambda: env] * 3, backend=backend, num_workers=1)


@pytest.mark.parametrize("backend", ["serial", "workers"])
def test_spaces_with_other_bounds_are_refused(backend: str) -> None:
    envs = [partial(Bounded, high) for high in (1.0, 2.0, 3.0)]
    with pytest.raises(RuntimeError, match="must be alike"):
        make_vec(envs, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("mode", AutoresetMode)
def test_steps_in_two_halves(backend: str, mode: AutoresetMode) -> None:
    envs = [partial(Counter, 3), partial(Counter, 4), partial(Counter, 3)]
    whole, halves = (make_vec(envs, backend=backend, autoreset_mode=mode) for _ in range(2))
    for vec in (whole, halves):
        vec.reset(seed=0)
    for _ in range(3):
        expected = whole.step([0, 1, 0])
        halves.step_async([0, 1, 0])
        got = halves.step_wait(timeout=60)
        for mine, other in zip(got[:4], expected[:4], strict=True):
            np.testing.assert_array_equal(mine, other)
    if mode == AutoresetMode.NEXT_STEP:  # the step after the end only resets
        obs, reward, terminated, _, _ = halves.step([0, 1, 0])
        assert (obs.tolist(), reward.tolist(), terminated.tolist()) == (
            [0, 4, 0],
            [0.0, 1.0, 0.0],
            [False, True, False],
        )
    whole.close()
    halves.close()


@pytest.mark.parametrize("backend", ["serial", "workers"])
def test_calls_out_of_order(backend: str) -> None:
    vec = make_vec([Counter] * 3, backend=backend)
    vec.reset(seed=0)
    with pytest.raises(gym.error.NoAsyncCallError, match=r"step_wait.* without step_async"):
        vec.step_wait()
    vec.step_async([0, 0, 0])
    for call in (vec.reset, partial(vec.step, [0, 0, 0]), partial(vec.get_attr, "length")):
        with pytest.raises(gym.error.AlreadyPendingCallError, match="first"):
            call()
    assert vec.step_wait()[0].tolist() == [1, 1, 1]
    vec.step_async([0, 0, 0])
    vec.close()  # with steps under way


class Gated(Counter):
    """Steps when a file is there."""

    def __init__(self, gate):
        super().__init__(100)
        self.gate = gate

    def step(self, action):
        import time

        while not self.gate.exists():
            time.sleep(0.005)
        return super().step(action)


def test_waiting_for_steps_has_an_end(tmp_path) -> None:
    vec = make_vec([partial(Gated, tmp_path / "gate")] * 2, backend="workers", num_workers=2)
    vec.reset(seed=0)
    vec.step_async([0, 0])
    with pytest.raises(
        multiprocessing.TimeoutError, match=r"did not end within 0.01 s; call step_wait\(\) again"
    ):
        vec.step_wait(timeout=0.01)
    (tmp_path / "gate").touch()
    assert vec.step_wait()[0].tolist() == [1, 1]
    vec.close()


def test_environments_are_at_hand_where_they_run_here() -> None:
    vec = make_vec("CartPole-v1", 2, backend="serial")
    vec.envs[1].unwrapped.gravity = 3.0
    assert vec.get_attr("gravity") == (9.8, 3.0)
    assert "autoreset_mode" not in vec.envs[0].metadata
    vec.close()
    vec = make_vec("CartPole-v1", 2, backend="workers")
    assert not hasattr(vec, "envs")
    with pytest.raises(AttributeError, match=r"run in other processes; use call\(\)"):
        _ = vec.envs
    with pytest.raises(UsageError, match=r"no attribute 'reset_async': step_async\(\) and step_wait\(\)"):
        vec.reset_async()
    vec.close()


def test_an_error_of_one_call_does_not_answer_the_next() -> None:
    vec = make_vec([Counter] * 4, backend="workers", num_workers=2)
    with pytest.raises(AttributeError, match="no_such_thing"):
        vec.get_attr("no_such_thing")
    assert vec.get_attr("length") == (3, 3, 3, 3)
    vec.close()


@pytest.mark.parametrize("given", [tuple, list])
def test_tuple_actions_in_a_list(given: type) -> None:
    vec, theirs = make_vec(Asking, 2, backend="serial"), SyncVectorEnv([Asking] * 2)
    theirs.action_space.seed(3)
    actions = given(theirs.action_space.sample())
    for each in (vec, theirs):
        each.reset(seed=0)
    assert vec.step(actions)[4]["given"].tolist() == theirs.step(actions)[4]["given"].tolist()


class TestSB3:
    @pytest.fixture
    def make(self):
        pytest.importorskip("stable_baselines3")
        import mission_gym as mg

        made = []

        def make(envs, backend):
            made.append(mg.vector.SB3VecEnv(envs, backend=backend, num_workers=2))
            return made[-1]

        yield make
        for vec in made:
            vec.close()

    @pytest.mark.parametrize("backend", BACKENDS)
    def test_options_of_each_environment(self, make, backend) -> None:
        vec = make([Asking] * 3, backend)
        options = [{"a": 1}, {}, {"b": 2}]
        vec.set_options(options)
        vec.reset()
        assert vec.get_attr("options") == [{"a": 1}, None, {"b": 2}]
        vec.reset()
        assert vec.get_attr("options") == [None] * 3

    def test_tuple_actions_are_given_one_for_each_environment(self, make) -> None:
        vec = make([Asking] * 3, "workers")
        vec.reset()
        actions = [vec.action_space.sample() for _ in range(3)]
        infos = vec.step(actions)[3]
        assert [info["given"] for info in infos] == [repr(action) for action in actions]
        with pytest.raises(ValueError, match=r"actions have shape \(2, 3\), expected \(3, 3\)"):
            vec.step(actions[:2])

    def test_indices_count_from_the_end_too(self, make) -> None:
        vec = make([partial(Counter, length) for length in (3, 4, 5)], "workers")
        assert vec.get_attr("length", indices=[0, -1]) == [3, 5]
        vec.set_attr("length", 9, indices=-1)
        assert vec.get_attr("length") == [3, 4, 9]

    def test_environments_and_attributes(self, make) -> None:
        vec = make([Counter] * 2, "serial")
        assert vec.envs[1].unwrapped.length == 3
        assert not vec.has_attr("dummy")
        vec.set_attr("dummy", 7)
        assert vec.envs[0].dummy == 7
        with pytest.raises(AttributeError, match="run in other processes"):
            _ = make([Counter] * 2, "workers").envs
