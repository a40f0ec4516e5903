"""Names become environments, or errors that say what to do."""

import copy
import json
import pickle
import sys
from dataclasses import asdict
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest

from mission_gym.env.factory import EnvRequest, is_trusted, make_factory, make_vector_factory, names_trusted
from mission_gym.env.probe import probe_env
from mission_gym.env.user_code import register_declared
from mission_gym.errors import EnvContractError, TrustError, UsageError
from toys import Faulty, Identity, Toy

OWN_MODULE = """
import gymnasium as gym
from toys import Identity

def make(n):
    return Identity(n)

def shift(env):
    return gym.wrappers.TransformReward(env, lambda reward: reward + 1)

def make_many(num_envs):
    return gym.make_vec("CartPole-v1", num_envs, "vector_entry_point")

def make_one(num_envs):
    return Identity()

def nothing():
    return 3

class Alike:
    def reset(self): ...
    def step(self, action): ...

def shim(env_id, creator):
    return Identity(len(env_id + creator))

gym.register("Own-v0", entry_point=Identity)
gym.register("Shim-v0", entry_point=shim)
"""


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    (tmp_path / "own_envs.py").write_text(OWN_MODULE)
    (tmp_path / "needs_more.py").write_text("import a_package_that_is_not_there")
    (tmp_path / "needs_old.py").write_text("raise ModuleNotFoundError(name='pkg_resources')")
    (tmp_path / "breaks.py").write_text("raise ValueError('half written')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name in ("own_envs", "needs_more", "needs_old", "breaks"):
        sys.modules.pop(name, None)
    gym.registry.pop("Own-v0", None)
    gym.registry.pop("Shim-v0", None)


def build(env_id, /, wrap=(), render_mode=None, **kwargs):
    return make_factory(EnvRequest(env_id, kwargs, wrap), render_mode)()


def test_ids_modules_and_callables(own_module):
    assert build("CartPole-v1", max_episode_steps=7).spec.max_episode_steps == 7
    assert build("own_envs:Own-v0").spec.id == "Own-v0"
    assert build("own_envs:make", n=6).action_space.n == 6
    assert build("own_envs:Shim-v0", env_id="ab", creator="c").action_space.n == 3  # names of ours, too
    assert make_factory(Identity)().action_space.n == 4
    assert build("CartPole-v1", render_mode="rgb_array").render_mode == "rgb_array"


def test_wrappers_apply_in_order(own_module):
    env = build("CartPole-v1", wrap=("own_envs:shift", "own_envs:shift"))
    env.reset(seed=0)
    assert env.step(0)[1] == 3.0


def test_a_request_is_json_and_its_factory_pickles():
    request = EnvRequest("CartPole-v1", {"max_episode_steps": 3})
    assert EnvRequest(**json.loads(json.dumps(asdict(request)))).kwargs == request.kwargs
    assert pickle.loads(pickle.dumps(make_factory(request)))().spec.max_episode_steps == 3


@pytest.mark.parametrize(
    ("env_id", "kwargs", "error", "message"),
    [
        ("CartPol-v1", {}, UsageError, r"unknown environment 'CartPol-v1' \(did you mean 'CartPole-v1'\?\)"),
        ("CartPole-v9", {}, UsageError, r"did you mean 'CartPole-v[01]'"),
        ("cart_pole-v0", {}, UsageError, r"did you mean 'CartPole-v0'"),
        ("Pong-v5", {}, UsageError, "unknown environment 'Pong-v5'; give a registered id"),  # not Ant-v5
        ("ale_py:ALE/Pong-v5", {}, UsageError, "no module named 'ale_py'; run: pip install ale-py, or start"),
        ("PongNoFrameskip-v4", {}, UsageError, "pip install ale-py, and name it ale_py:PongNoFrameskip-v4"),
        (
            "mpe2.simple_v3",
            {},
            UsageError,
            "if it is a module, name a callable of the module, such as .*mpe2.simple_v3:parallel_env",
        ),
        (
            "gymnasium:wrappers",
            {},
            UsageError,
            "registers no environment 'wrappers'; name a callable of the module, such as gymnasium.wrappers:",
        ),
        ("no_such_module:Thing", {}, UsageError, "no module named 'no_such_module'; install it, or start in"),
        ("needs_more:Thing", {}, UsageError, "needs 'a_package_that_is_not_there', which is not installed"),
        (
            "gymnasium.wrappers.vectr:X",
            {},
            UsageError,
            r"'gymnasium.wrappers' was found, but has no module 'vectr' \(did you mean 'vector'\?\)",
        ),
        ("needs_old:Thing", {}, UsageError, r'needs \'pkg_resources\', .*; run: pip install "setuptools<81"'),
        ("breaks:Thing", {}, EnvContractError, "importing 'breaks' raised ValueError: half written"),
        (
            "gymnasium:VizdoomBasic-v1",
            {},
            UsageError,
            "registers no environment 'VizdoomBasic-v1'; .*name it vizdoom.gymnasium_wrapper:VizdoomBasic-v1",
        ),
        (
            "own_envs:mak",
            {},
            UsageError,
            r"registers no environment 'mak' \(did you mean 'make'\?\); name the",
        ),
        ("gymnasium:Own-v9", {}, UsageError, "'gymnasium' has no callable and registers no environment"),
        ("own_envs:Worm-v1", {}, UsageError, "registers no environment 'Worm-v1'; name the"),  # not make
        ("own_envs:nothing", {}, EnvContractError, "returned a int, not a gymnasium.Env$"),
        (
            "own_envs:Alike",
            {},
            EnvContractError,
            r"returned a Alike, not a gymnasium.Env; it has reset\(\) and step\(\), so write a function",
        ),
        ("own_envs:make", {}, EnvContractError, "raised TypeError: .*missing 1 required"),
        ("toys:Faulty", {"fail": "constructor"}, EnvContractError, "RuntimeError: no licence"),
        (
            "own_envs:make_many",
            {"num_envs": 2},
            EnvContractError,
            "it is already vectorised: use --vector batched",
        ),
    ],
)
def test_bad_names(own_module, env_id, kwargs, error, message):
    with pytest.raises(error, match=message):
        build(env_id, **kwargs)


def test_a_missing_module_is_named():
    def needs_more():
        import a_package_that_is_not_there  # noqa: F401

    with pytest.raises(UsageError, match="needs the module 'a_package_that_is_not_there', which is not inst"):
        make_factory(needs_more)()


def test_a_missing_extra_is_named():
    def needs_box2d():
        raise gym.error.DependencyNotInstalled('run `pip install swig` and `pip install "gymnasium[box2d]"`')

    with pytest.raises(UsageError, match=r'; run: pip install "gymnasium\[box2d\]"$'):
        make_factory(needs_box2d)()


def test_bad_wrapper(own_module):
    with pytest.raises(UsageError, match="wrapper 'CartPole-v1' is unknown; give module:callable"):
        build("CartPole-v1", wrap=("CartPole-v1",))
    with pytest.raises(UsageError, match=r"wrapper 'own_envs:nothing': too many .*; it takes \(\)"):
        build("CartPole-v1", wrap=("own_envs:nothing",))


@pytest.mark.parametrize(
    ("env_id", "said"),
    [
        (
            "ALE/Pong-v5",
            "it belongs to the package ale-py: run: pip install ale-py, and name it ale_py:ALE/Pong-v5",
        ),
        (
            "MiniGrid-Empty-5x5-v0",
            "belongs to the package minigrid: .*name it minigrid:MiniGrid-Empty-5x5-v0",
        ),
        ("BabyAI-GoToRedBall-v0", "name it minigrid:BabyAI-GoToRedBall-v0"),
        ("PandaReach-v3", "belongs to the package panda-gym: .*name it panda_gym:PandaReach-v3"),
    ],
)
def test_an_id_of_a_known_package_says_where_it_lives(env_id, said, monkeypatch):
    monkeypatch.setattr("mission_gym.env.user_code.importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=f"unknown environment '{env_id}'; .*{said}"):
        build(env_id)


def test_an_id_of_an_installed_package_is_only_named(monkeypatch):
    monkeypatch.setattr("mission_gym.env.user_code.importlib.util.find_spec", lambda name: object())
    with pytest.raises(UsageError, match=r"belongs to the package minigrid: name it minigrid:MiniGrid-X-v0$"):
        build("MiniGrid-X-v0")


@pytest.mark.parametrize("function", ["register", "register_envs"])
def test_a_package_whose_import_registers_nothing_is_asked_to(tmp_path, monkeypatch, function):
    """MinAtar declares a plugin, as Gymnasium loaded until 1.0; BlueSky-Gym has `register_envs` alone."""
    (tmp_path / "plugged.py").write_text(
        "import gymnasium\n"
        "from gymnasium import register_envs\n"
        f"def {function}():\n"
        "    gymnasium.register('Plugged-v0', entry_point='toys:Identity', kwargs={'n': 7})\n"
    )
    monkeypatch.delitem(sys.modules, "plugged", raising=False)
    register_declared.cache_clear()
    (tmp_path / "plugged-1.0.dist-info").mkdir()
    (tmp_path / "plugged-1.0.dist-info" / "entry_points.txt").write_text(
        "[gymnasium.envs]\nplugged = plugged:register\nother = not_here:register\n" * (function == "register")
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(gym.envs.registration, "registry", dict(gym.registry))
    monkeypatch.setattr(gym, "registry", gym.envs.registration.registry)
    assert build("plugged:Plugged-v0").action_space.n == 7
    with pytest.raises(UsageError, match="registers no environment 'Plugged-v1'"):
        build("plugged:Plugged-v1")


def test_an_id_of_the_old_gym_names_the_bridge(own_module, monkeypatch):
    old_gym = SimpleNamespace(envs=SimpleNamespace(registry={"Old-v0": object()}))
    monkeypatch.setitem(sys.modules, "gym", old_gym)
    bridge = "pip install shimmy, and name it shimmy:GymV26Environment-v0 --env-kwargs env_id=own_envs:Old-v0"
    bridge = f'{bridge} "make_kwargs={{disable_env_checker: true}}"'
    with pytest.raises(
        UsageError, match=f"'Old-v0' is registered with gym, not with Gymnasium; run: {bridge}"
    ):
        build("own_envs:Old-v0")


def test_a_missing_display_names_what_to_set():
    class NoSuchDisplayException(Exception):
        pass

    def open_window():
        raise NoSuchDisplayException('Cannot connect to "None"')

    with pytest.raises(
        EnvContractError, match="there is no display: set PYGLET_HEADLESS=true, or give --env-kwargs"
    ):
        make_factory(open_window)()
    env = Identity()
    env.begin = open_window
    with pytest.raises(EnvContractError, match=r"reset\(\) raised .*set PYGLET_HEADLESS=true"):
        probe_env(env, "toys:Identity")


def test_a_callable_that_raises():
    with pytest.raises(EnvContractError, match="RuntimeError: no licence for the simulator"):
        make_factory(lambda: Faulty("constructor"))()


def test_vector_factories(own_module):
    assert make_vector_factory(EnvRequest("CartPole-v1"))(3).num_envs == 3
    assert make_vector_factory(EnvRequest("own_envs:make_many"))(2).num_envs == 2
    with pytest.raises(UsageError, match="'Pendulum-v1' has no vector form"):
        make_vector_factory(EnvRequest("Pendulum-v1"))(2)
    with pytest.raises(UsageError, match=r"wrappers own_envs:shift can't be applied"):
        make_vector_factory(EnvRequest("CartPole-v1", {}, ("own_envs:shift",)))
    with pytest.raises(EnvContractError, match=r"returned a Identity, not a gymnasium.vector.VectorEnv"):
        make_vector_factory(EnvRequest("own_envs:make_one"))(2)


def test_trust():
    assert is_trusted(gym.make("CartPole-v1"))
    assert not is_trusted(gym.make("FrozenLake-v1"))
    assert is_trusted(Identity())

    class Mine(gym.Wrapper):
        pass

    assert not is_trusted(Mine(gym.make("CartPole-v1")))


def test_trust_by_name():
    def trusts(name, *wrap):
        return names_trusted(EnvRequest(name, wrap=wrap))

    assert trusts("CartPole-v1")
    assert trusts("CartPole-v1", "mission_gym.env.wrappers:TimeLimit")
    assert trusts("mission_gym_missions.capture.env:CaptureEnv")
    assert not trusts("CartPole-v1", "own_envs:Wrapper")
    assert not trusts("FrozenLake-v1")
    assert not trusts("own_envs:make_one")
    assert not trusts("mission_gym_of_mine:make_one")
    assert not trusts("Nowhere-v0")


def test_what_takes_no_number_of_environments_is_not_batched():
    for name, what in (
        ("agent_toys:Lives", "one parallel environment of several agents"),
        ("toys:Identity", "a single environment"),
    ):
        with pytest.raises(UsageError, match=rf"{name}' returns {what}, and has no vector form .*num_envs"):
            make_vector_factory(EnvRequest(name))(2)


def test_classes_of_environments_may_be_called_and_functions_are_asked_for(own_module):
    for name in ("agent_toys:Lives", "toys:Identity"):
        make_factory(EnvRequest(name, calls=()))()
    with pytest.raises(TrustError, match="is not a subclass of Env or VectorEnv or ParallelEnv"):
        make_factory(EnvRequest("own_envs:make", {"n": 2}, calls=()))()


class NoOptions(Toy):
    """Its reset takes a seed and nothing else, as SB3 allows."""

    observation_space, action_space = gym.spaces.Box(0.0, 1.0, (1,), np.float32), gym.spaces.Discrete(2)

    def observe(self):
        return self.np_random.random(1, np.float32)

    def reset(self, seed=None):
        return super().reset(seed=seed)

    def step(self, action):
        return self.advance(0.0)


class NoArguments(NoOptions):
    def reset(self):
        return gym.Env.reset(self) or (self.observe(), {})


class OldSeed(NoArguments):
    """As the old gym: seed() is called before reset()."""

    def seed(self, seed=None):
        self._np_random = np.random.default_rng(seed)


class PlainWrapper(gym.Wrapper):
    def reset(self):
        return self.env.reset()


@pytest.mark.parametrize(
    "make",
    [NoOptions, NoArguments, OldSeed, lambda: PlainWrapper(NoOptions())],
    ids=lambda make: make.__name__,
)
def test_a_reset_without_options_or_seed_is_completed_and_seeded(make):
    env = make_factory(make)()
    first, _ = env.reset(seed=3, options=None)
    env.reset(seed=4, options=None)
    again, _ = copy.deepcopy(env).reset(seed=3, options={})
    assert first == again
    assert first != env.reset(seed=5, options=None)[0]
    with pytest.raises(EnvContractError, match=r"reset\(\) takes no options, but got .*; add options=None"):
        env.reset(options={"level": 2})


def test_a_reset_of_a_registered_environment_is_completed():
    gym.register("NoOptions-v0", NoOptions)
    try:
        env = make_factory(EnvRequest("NoOptions-v0"))()
        assert env.reset(seed=1)[0] == env.reset(seed=1)[0]
    finally:
        del gym.registry["NoOptions-v0"]


@pytest.mark.parametrize("name", ["shop.py", "./shop.py:Shop", "shop"])
def test_a_file_is_named_as_a_module(name, tmp_path, monkeypatch):
    (tmp_path / "shop.py").write_text("class Shop:\n def reset(self): 1\n def step(self, action): 1\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"file.*shop:Shop"):
        make_factory(EnvRequest(name))()
