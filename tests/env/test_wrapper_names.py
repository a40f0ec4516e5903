"""Wrappers with arguments and short names: what is built, what is refused, what a replay is told."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import FrameStackObservation

from mission_gym.env import wrappers
from mission_gym.env.agents import ParallelWrapper
from mission_gym.env.factory import EnvRequest, make_factory, names_trusted
from mission_gym.env.probe import probe
from mission_gym.env.wrapper_names import list_short, name_code, read_wrapper
from mission_gym.errors import EnvContractError, UsageError
from toys import StepCount


def build(*wrap: str, env_id: str = "CartPole-v1") -> gym.Env[Any, Any]:
    return make_factory(EnvRequest(env_id, wrap=wrap))()


def test_arguments_reach_the_wrapper_in_order() -> None:
    env = build("gymnasium.wrappers:FrameStackObservation(stack_size=4)", "time-limit:3")
    assert env.reset(seed=0)[0].shape == (4, 4)
    ends = [env.step(0)[3] for _ in range(3)]
    assert ends == [False, False, True]
    with pytest.raises(EnvContractError, match="Grey needs uint8 images"):
        build("frame-stack:4", "grey")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("frame-stak:4", r"wrapper 'frame-stak:4' is unknown \(did you mean 'frame-stack'\?\)"),
        ("gray", r"wrapper 'gray' is unknown \(did you mean 'grey'\?\)"),
        ("time-limit", "wrapper 'time-limit' has 0 arguments; write time-limit:500"),
        ("resize:84,84,3", "has 3 arguments; write resize:84 or resize:84,96"),
        ("grey:1", "has 1 arguments; write grey"),
        ("frame-stack:four", "'four' is not a whole number above 0; write frame-stack:4"),
        ("time-limit:0", "'0' is not a whole number above 0"),
        ("weigh:1,nan", "'nan' is not a number"),
        ("drop:", "has 0 arguments; write drop:mission"),
        (
            "gymnasium.wrappers:TimeLimit",
            "missing a required argument: 'max_episode_steps'; it takes .*first",
        ),
        ("gymnasium.wrappers:TimeLimit(steps=5)", "missing a required argument|unexpected keyword"),
        ("gymnasium.wrappers:TimeLimit(1, 2)", "too many positional arguments"),
        ("gymnasium.wrappers:Nothing(1)", "no callable and registers no environment 'Nothing'"),
        ("drop:mission", "there is no key 'mission'; the observation is not a Dict"),
    ],
)
def test_what_is_wrong_is_said(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        build(text)


def test_a_constructor_that_raises_and_a_wrapper_that_is_none() -> None:
    with pytest.raises(EnvContractError, match=r"building 'gymnasium.wrappers:.*stack_size=-1\)' raised "):
        build("gymnasium.wrappers:FrameStackObservation(stack_size=-1)")
    with pytest.raises(
        EnvContractError, match=r"returned a tuple, not a gymnasium.Env; a wrapper returns one \[--wrap"
    ):
        build("test_wrapper_names:pair(5)")


def pair(env: Any, number: int) -> Any:
    return env, number


def test_trust_looks_at_the_code_that_is_named() -> None:
    assert name_code(("frame-stack:4", "a.b:c(1)")) == ("mission_gym.env.wrappers:FrameStack", "a.b:c")
    assert names_trusted(EnvRequest("CartPole-v1", wrap=("frame-stack:4",)))
    assert not names_trusted(EnvRequest("CartPole-v1", wrap=("mine:wrap(1)",)))


def test_every_short_name_means_a_wrapper() -> None:
    for row in list_short():
        name = row["usage"].split()[0]
        assert read_wrapper(name).name == row["wrapper"]
        # Classes of these kinds may be called by any run that names them.
        module, _, target = row["wrapper"].partition(":")
        assert issubclass(getattr(import_module(module), target), (gym.Wrapper, ParallelWrapper))


class Scored(StepCount):
    """Shows a Dict and pays a vector."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Dict({"place": self.observation_space, "mission": spaces.Discrete(3)})

    def observe(self) -> Any:
        return {"place": np.zeros(2, np.float32), "mission": 1}

    def step(self, action: Any) -> Any:
        obs, reward, *rest = super().step(action)
        return obs, np.array([reward, 10.0]), *rest


def test_drop_leaves_keys_out() -> None:
    env = wrappers.Drop(Scored(), "mission")
    assert list(env.observation_space.spaces) == ["place"]
    assert env.observation_space.contains(env.reset()[0])
    with pytest.raises(
        UsageError, match=r"no key 'misson' \(did you mean 'mission'\?\); the observation has mi"
    ):
        wrappers.Drop(Scored(), "misson")
    with pytest.raises(UsageError, match="is the whole observation"):
        wrappers.Drop(Scored(), "mission", "place")


def test_weigh_sums_the_parts() -> None:
    env = wrappers.Weigh(Scored(), 1.0, 0.5)
    env.reset()
    assert env.step(0)[1] == 6.0
    with pytest.raises(EnvContractError, match=r"weigh has 3 weights and the reward has shape \(2,\)"):
        wrappers.Weigh(Scored(), 1.0, 2.0, 3.0).step(0)


class Acted(StepCount):
    def __init__(self, action_space: Any, is_dict: bool = False) -> None:
        super().__init__()
        self.action_space, self.is_dict = action_space, is_dict
        if is_dict:
            self.observation_space = spaces.Dict({"place": spaces.Discrete(2)})

    def observe(self) -> Any:
        return {"place": 1} if self.is_dict else np.zeros(2, np.float32)


@pytest.mark.parametrize(
    ("space", "action", "shown"),
    [
        (spaces.Discrete(3, start=5), 6, [0, 1, 0]),
        (spaces.MultiDiscrete([2, 3]), [1, 2], [0, 1, 0, 0, 1]),
        (spaces.MultiBinary(2), [1, 0], [1, 0]),
        (spaces.Box(2.0, 4.0, (2,), np.float32), [2.5, 3.0], [2.5, 3.0]),
    ],
)
@pytest.mark.parametrize("is_dict", [False, True])
def test_the_last_action_is_shown(space: Any, action: Any, shown: list[float], is_dict: bool) -> None:
    env = wrappers.LastAction(Acted(space, is_dict))
    first = env.reset()[0]
    assert not first["last_action"].any()
    second = env.step(np.array(action, space.dtype))[0]
    assert second["last_action"].tolist() == shown
    assert ("place" if is_dict else "obs") in second
    for obs in (first, second):
        assert env.observation_space.contains(obs)


def test_atari_shows_what_deepmind_did() -> None:
    class Game(StepCount):
        def __init__(self) -> None:
            super().__init__((210, 160, 3), np.uint8)

        def observe(self) -> Any:
            return np.full((210, 160, 3), 100 if self.steps % 2 else 50, np.uint8)

    env = wrappers.Atari(Game())
    obs, _ = env.reset(seed=3)
    noops = env.unwrapped.steps
    assert env.observation_space.shape == obs.shape == (84, 84)
    assert 0 <= noops <= 30
    obs, reward, *_ = env.step(0)
    assert env.unwrapped.steps == noops + 4
    assert reward == sum(range(noops + 1, noops + 5))
    assert obs[0, 0] in (99, 100)  # the brighter of the last two frames, which flicker
    env.reset(seed=3)
    assert env.unwrapped.steps == noops  # the seed says how many
    skipping = Game()
    skipping._frameskip = 4
    env = wrappers.Atari(skipping)
    env.reset(seed=3)
    before = skipping.steps
    env.step(0)
    assert skipping.steps == before + 1


def picture() -> StepCount:
    return StepCount((12, 12), np.uint8)


@pytest.mark.parametrize(
    ("make", "frames"),
    [
        (lambda: wrappers.FrameStack(picture(), 3), 3),
        (lambda: wrappers.TimeLimit(wrappers.ClipReward(wrappers.FrameStack(picture(), 3)), 5), 3),
        (lambda: FrameStackObservation(picture(), 5), 5),
        (lambda: FrameStackObservation(picture(), 5, padding_type="zero"), 1),
        (lambda: wrappers.LastAction(wrappers.FrameStack(picture(), 3)), 1),
        (lambda: wrappers.FrameSkip(wrappers.FrameStack(picture(), 3)), 1),
        (lambda: wrappers.FrameStack(StepCount((12, 12, 3), np.uint8), 3), 3),
        (lambda: wrappers.FrameStack(StepCount((2, 12, 12), np.uint8), 3), 3),
        (lambda: wrappers.FrameStack(StepCount((12,), np.uint8), 3), 1),  # no pictures
        (lambda: wrappers.FrameStack(picture(), 15), 1),  # taken for a side, and the last side for channels
        (picture, 1),
    ],
)
def test_blocks_are_told_of_stacks_that_they_may_take_apart(make: Any, frames: int) -> None:
    assert max(leaf.frames for leaf in probe(make, "picture").leaves) == frames
