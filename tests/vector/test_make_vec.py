"""`make_vec` gives what Gymnasium's own SyncVectorEnv gives, bit for bit, in every auto-reset mode."""

import os
from copy import deepcopy
from functools import partial

import gymnasium as gym
import numpy as np
import psutil
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import mission_gym as mg
from mission_gym.errors import EnvContractError, UsageError
from mission_gym.vector.make_vec import make_vec
from toys import Constant, DictMask, Identity, Toy

MODES = {mode.name.lower(): mode for mode in AutoresetMode}


class Mixed(Toy):
    """Dict and Tuple observations, infos of many kinds, episodes of random length."""

    def __init__(self):
        self.observation_space = spaces.Dict(
            {
                "pair": spaces.Tuple((spaces.Box(-1, 1, (2, 2), np.float64), spaces.Discrete(5, start=3))),
                "bits": spaces.MultiBinary(3),
                "action_mask": spaces.MultiBinary(2),
            }
        )
        self.action_space = spaces.Discrete(2)

    def observe(self):
        rng = self.np_random
        pair = (rng.uniform(-1, 1, (2, 2)), int(rng.integers(3, 8)))
        return {"pair": pair, "bits": rng.integers(0, 2, 3, np.int8), "action_mask": np.ones(2, np.int8)}

    def info(self):
        info = {"count": self.steps, "name": f"step {self.steps}", "nested": {"x": float(self.steps)}}
        if self.steps % 3 == 0:
            info["array"] = np.arange(2) * self.steps
        return info

    def step(self, action):
        return self.advance(float(self.np_random.normal()), terminated=bool(self.np_random.random() < 0.1))


class Odd(Toy):
    """Shows samples of a space, and tells which action it was given; episodes of random length."""

    def __init__(self, observation_space, action_space):
        self.observation_space, self.action_space = deepcopy(observation_space), action_space

    def begin(self):
        self.observation_space.seed(int(self.np_random.integers(2**31)))

    def observe(self):
        return self.observation_space.sample()

    def step(self, action):
        result = self.advance(float(self.np_random.normal()), terminated=bool(self.np_random.random() < 0.2))
        return *result[:4], {"action": repr(action)}


NESTED = spaces.Dict(
    {
        "inner": spaces.Tuple(
            (spaces.Box(-1, 1, (2,), np.float64), spaces.Dict({"bits": spaces.MultiBinary(3)}))
        ),
        "half": spaces.Box(0, 1, (3, 1), np.float16),
        "wide": spaces.Box(0, 2**32, (2,), np.uint64),
        "flag": spaces.Box(0, 1, (), np.bool_),
        "huge": spaces.Discrete(2**40, start=-5),
        "none": spaces.Box(0, 1, (0,)),
    }
)
ACTIONS = spaces.Dict(
    {
        "go": spaces.Discrete(3, start=1),
        "arms": spaces.Tuple((spaces.Box(-1, 1, (2, 2)), spaces.MultiDiscrete([2, 3]))),
        "bits": spaces.MultiBinary(2),
    }
)
ODD = {
    "nested": partial(Odd, NESTED, ACTIONS),
    "tuple": partial(Odd, spaces.MultiBinary(2), spaces.Tuple((spaces.Discrete(2), spaces.Box(0, 1, (3,))))),
    "empty": partial(Odd, spaces.Dict({}), spaces.MultiDiscrete([2, 3])),
}


def assert_same(one, two):
    assert isinstance(one, dict) == isinstance(two, dict)
    if isinstance(one, dict):
        assert set(one) == set(two)
        for key in one:
            assert_same(one[key], two[key])
    elif isinstance(one, tuple):
        assert type(one) is type(two)
        assert len(one) == len(two)
        for mine, theirs in zip(one, two, strict=True):
            assert_same(mine, theirs)
    elif isinstance(one, np.ndarray) and one.dtype == object:
        assert one.shape == two.shape
        for mine, theirs in zip(one, two, strict=True):
            assert_same(mine, theirs)
    elif isinstance(one, np.ndarray):
        assert one.dtype == two.dtype
        np.testing.assert_array_equal(one, two)
    else:
        assert one == two


ENVS = ["CartPole-v1", "Pendulum-v1", "Taxi-v4", "FrozenLake-v1", Mixed, DictMask]


@pytest.mark.parametrize(
    ("env", "backend", "mode"),
    [
        *((env, "serial", mode) for env in [*ENVS, *ODD] for mode in MODES),
        *((env, "workers", mode) for env in ["CartPole-v1", Mixed, "nested"] for mode in MODES),
        *((env, "workers", "same_step") for env in ODD if env != "nested"),
        *((Mixed, "threads", mode) for mode in MODES),
        ("nested", "threads", "same_step"),
    ],
)
def test_equal_to_gymnasium(env, backend, mode):
    env = ODD.get(env, env)
    kwargs = {"max_episode_steps": 60} if env in ("Pendulum-v1", "Taxi-v4") else {}
    build = partial(gym.make, env, **kwargs) if isinstance(env, str) else env
    theirs = SyncVectorEnv([build] * 3, autoreset_mode=MODES[mode])
    ours = make_vec(env, 3, env_kwargs=kwargs, autoreset_mode=mode, backend=backend)
    assert ours.observation_space == theirs.observation_space
    assert ours.action_space == theirs.action_space
    assert ours.metadata == theirs.metadata
    assert ours.autoreset_mode == MODES[mode]  # TorchRL reads it
    assert_same(ours.reset(seed=11), theirs.reset(seed=11))
    theirs.action_space.seed(5)
    num_ended = 0
    for step in range(200 if isinstance(env, str) else 60):
        actions = theirs.action_space.sample()
        if env is DictMask:
            actions[:, 0] = [sub.colour for sub in theirs.envs]  # never a forbidden one
        got, expected = ours.step(actions), theirs.step(actions)
        assert_same(got, expected)
        done = got[2] | got[3]
        num_ended += done.sum()
        if mode == "disabled" and done.any():
            seeds = [step, None, 7]
            assert_same(
                ours.reset(seed=seeds, options={"reset_mask": done.copy()}),
                theirs.reset(seed=list(seeds), options={"reset_mask": done.copy()}),
            )
    assert num_ended > 3
    assert_same(ours.reset(seed=[3, None, 5], options={}), theirs.reset(seed=[3, None, 5], options={}))
    ours.close()
    theirs.close()


def crash_once(path):
    """An environment whose process ends at its fifth step, the first time."""

    class Crashing(Odd):
        def step(self, action):
            if self.steps == 4 and not path.exists():
                path.touch()
                os._exit(1)
            return super().step(action)

    return Crashing(NESTED, ACTIONS)


def test_final_observations_survive_the_death_of_their_worker(tmp_path):
    calm = partial(Odd, NESTED, ACTIONS)
    vec = make_vec(
        [calm, partial(crash_once, tmp_path / "x"), calm],
        backend="workers",
        num_workers=2,
        autoreset_mode="same_step",
    )
    before, _ = vec.reset(seed=3)
    vec.action_space.seed(1)
    for _ in range(10):
        obs, _, terminated, truncated, infos = vec.step(vec.action_space.sample())
        assert obs in vec.observation_space
        for row in np.flatnonzero(terminated | truncated):
            last = infos["final_obs"][row]
            assert last in vec.single_observation_space
            if not infos["final_info"]:  # the row of the worker that died: the observation before the step
                assert_same(last["inner"][0], before["inner"][0][row])
        before = obs
    assert vec.inner.num_restarts == 1
    vec.close()


GRAPH = spaces.Graph(spaces.Box(0, 1, (3,)), spaces.Discrete(4))
ONE_OF = spaces.OneOf([spaces.Discrete(3), spaces.Box(-1, 1, (2,))])


@pytest.mark.parametrize("backend", ["serial", "workers"])
@pytest.mark.parametrize(
    ("observation", "action", "message"),
    [
        (spaces.Text(8), spaces.Discrete(2), "observation space Text is not supported by make_vec; use Box"),
        (
            spaces.Dict({"graph": GRAPH}),
            spaces.Discrete(2),
            "observation 'graph' space Graph is not supported",
        ),
        (spaces.Tuple((ONE_OF,)), spaces.Discrete(2), "observation '0' space OneOf is not supported"),
        (spaces.Sequence(spaces.Box(0, 1, (2,))), spaces.Discrete(2), "observation space Sequence is not"),
        (spaces.Discrete(2), ONE_OF, "action space OneOf is not supported"),
        (
            spaces.Discrete(2),
            spaces.Dict({"word": spaces.Text(8)}),
            "action 'word' space Text is not supported",
        ),
    ],
)
def test_spaces_that_are_not_arrays_are_refused(observation, action, message, backend):
    with pytest.raises(EnvContractError, match=message):
        make_vec(partial(Odd, observation, action), 2, backend=backend)


class Alone(Constant):
    """As emulators that allow one instance in a process."""

    def __init__(self):
        super().__init__()
        if vars(Alone).get("is_open"):
            raise RuntimeError("only one emulator in a process")
        Alone.is_open = True

    def close(self):
        Alone.is_open = False


def test_what_is_alone_in_its_process_gets_a_worker_of_its_own(tmp_path):
    with pytest.raises(EnvContractError, match=r"only one emulator.*another one .* --num-workers 4"):
        make_vec(Alone, 2, backend="workers", num_workers=1)
    sizes = {"n_envs": 2, "n_steps_per_env": 16, "timesteps": 64, "vector": "workers", "num_workers": 2}
    flags = sizes | {"eval_freq": 32, "eval_episodes": 3, "tensorboard": False, "progress": False}
    run = mg.train(f"{__name__}:Alone", runs_dir=str(tmp_path), **flags)
    assert run.evaluate(episodes=3)["episodes"] == 3


def test_a_number_of_actions_that_does_not_fit_is_refused():
    vec = make_vec(ODD["tuple"], 3, backend="serial")
    vec.reset(seed=0)
    with pytest.raises(UsageError, match=r"actions have shape \(2, 4\), expected \(3, 4\): one row for each"):
        vec.step(tuple(part[:2] for part in vec.action_space.sample()))


def test_arrays_are_fresh():
    vec = make_vec("CartPole-v1", 2)
    first, _ = vec.reset(seed=0)
    kept = first.copy()
    results = vec.step(np.zeros(2, np.int64))
    copies = [array.copy() for array in results[:4]]
    vec.step(np.ones(2, np.int64))
    np.testing.assert_array_equal(first, kept)
    assert_same(tuple(results[:4]), tuple(copies))
    vec.close()


@pytest.mark.parametrize("backend", ["serial", "workers", "threads"])
def test_attributes_calls_and_rendering(backend):
    vec = make_vec("CartPole-v1", 2, env_kwargs={"render_mode": "rgb_array"}, backend=backend)
    vec.reset(seed=0)
    assert vec.render_mode == "rgb_array"
    assert [frame.shape for frame in vec.render()] == [(400, 600, 3)] * 2
    vec.set_attr("gravity", [1.0, 2.0])
    assert vec.get_attr("gravity") == (1.0, 2.0)
    vec.set_attr("gravity", 3.0)
    assert vec.call("get_wrapper_attr", "gravity") == (3.0, 3.0)
    with pytest.raises(UsageError, match="1 values of 'gravity' for 2 environments"):
        vec.set_attr("gravity", [1.0])
    vec.close()
    vec.close()
    assert vec.closed


def test_what_an_environment_can_be():
    assert make_vec("CartPole-v1").num_envs == 1
    assert make_vec(Identity, 2, env_kwargs={"n": 7}).single_action_space.n == 7
    assert make_vec([Constant, Constant, Constant]).num_envs == 3
    batched = make_vec("CartPole-v1", 2, backend="batched", autoreset_mode="next_step")
    assert type(batched).__name__ == "CartPoleVectorEnv"
    vec = gym.wrappers.vector.RecordEpisodeStatistics(make_vec("CartPole-v1", 2, autoreset_mode="next_step"))
    vec.reset(seed=0)
    vec.step(vec.action_space.sample())


@pytest.mark.parametrize(
    ("given", "mode"),
    [
        (None, AutoresetMode.NEXT_STEP),  # as in Gymnasium
        (AutoresetMode.DISABLED, AutoresetMode.DISABLED),
        ("SameStep", AutoresetMode.SAME_STEP),  # the enum's value
        ("same_step", AutoresetMode.SAME_STEP),
    ],
)
def test_auto_reset_modes_by_name_enum_and_value(given, mode):
    vec = make_vec("CartPole-v1", 2, backend="serial", autoreset_mode=given)
    assert vec.metadata["autoreset_mode"] is mode
    vec.close()


def make_same_step(num_envs):
    vec = gym.make_vec("CartPole-v1", num_envs, "vector_entry_point")
    vec.metadata = {**vec.metadata, "autoreset_mode": AutoresetMode.SAME_STEP}
    return vec


def test_a_batched_environment_keeps_the_mode_that_it_declares():
    vec = make_vec("test_make_vec:make_same_step", 2, backend="batched")
    assert vec.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    vec.close()


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        (
            ("CartPole-v1", 2),
            {"backend": "seriel"},
            UsageError,
            r"unknown backend 'seriel' \(did you mean 'serial'",
        ),
        (("CartPole-v1", 0), {}, UsageError, "num_envs=0; at least one"),
        (([Constant], 2), {}, UsageError, "num_envs=2 for a list of 1 callables"),
        (("CartPole-v1",), {"autoreset_mode": "samestep"}, UsageError, "did you mean 'same_step'"),
        (
            ("CartPole-v1",),
            {"backend": "batched", "autoreset_mode": "same_step"},
            UsageError,
            "autoreset_mode=same_step but .* declares NEXT_STEP",
        ),
        ((Constant,), {"backend": "batched"}, UsageError, "name it by its id or as module:callable"),
        (([Constant, Identity],), {}, EnvContractError, "environment 1 has spaces Discrete"),
    ],
)
def test_bad_arguments(arguments, options, error, message):
    with pytest.raises(error, match=message):
        make_vec(*arguments, **options)


def test_bad_resets():
    vec = make_vec("CartPole-v1", 2)
    with pytest.raises(UsageError, match="3 seeds for 2 environments"):
        vec.reset(seed=[1, 2, 3])
    vec.reset(seed=1)
    for mask in ([True, False], np.array([1, 0]), np.zeros(2, bool), np.ones(3, bool)):
        with pytest.raises(UsageError, match=r'options\["reset_mask"\] is .* expected a bool array'):
            vec.reset(options={"reset_mask": mask})
    vec.close()


def test_nothing_is_left_of_workers_whose_environment_can_not_be_made():
    before = set(psutil.Process().children(recursive=True))
    with pytest.raises(UsageError, match="unknown environment 'Cartpole-v1'"):
        make_vec("Cartpole-v1", 2, backend="workers")
    assert set(psutil.Process().children(recursive=True)) == before
