"""A throw-away environment tells its spec."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from mission_gym.env.factory import EnvRequest, make_factory, make_vector_factory
from mission_gym.env.probe import probe, probe_vector
from mission_gym.errors import EnvContractError
from toys import Binary, DictMask, Faulty, Identity, Pointer, Toy


class MaskInObs(Identity):
    def __init__(self, size=4):
        super().__init__()
        self.observation_space = spaces.Dict(
            {"action_mask": spaces.MultiBinary(size), "target": spaces.Discrete(4)}
        )

    def observe(self):
        return {"action_mask": np.ones(4, np.int8), "target": self.target}


class MaskMethod(Identity):
    def action_masks(self):
        return np.ones(4, np.bool_)


def test_cartpole():
    spec = probe(make_factory(EnvRequest("CartPole-v1")), "CartPole-v1")
    assert (spec.max_episode_steps, spec.trusted, spec.mask_source, spec.mask_size) == (500, True, "", 0)
    assert [leaf.shape for leaf in spec.leaves] == [(4,)]


def test_mask_sources():
    spec = probe(DictMask, "DictMask")
    assert (spec.mask_source, spec.mask_size) == ("info", 5)
    assert (spec.outcomes, spec.main_outcome) == (("won", "lost"), "won")
    spec = probe(MaskInObs, "MaskInObs")
    assert (spec.mask_source, [leaf.name for leaf in spec.leaves]) == ("obs:action_mask", ["target"])
    assert probe(MaskMethod, "MaskMethod").mask_source == "method"


def test_vector():
    spec = probe_vector(make_vector_factory(EnvRequest("CartPole-v1")), "CartPole-v1")
    assert spec.leaves == probe(make_factory(EnvRequest("CartPole-v1")), "CartPole-v1").leaves
    assert (spec.max_episode_steps, spec.trusted) == (500, False)


class MaskForBox(Pointer):
    def info(self):
        return {"action_mask": np.ones(2)}


class WrongMain(Binary):
    metadata = {"outcomes": ["won"], "main_outcome": "wins"}


class WrongOutcomes(Binary):
    metadata = {"outcomes": "won"}


class Untold(Identity):
    def describe_target(self):
        raise ConnectionError("no route")


class NoInfo(Binary):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)[0], None


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (lambda: Faulty("reset"), r"toy: reset\(\) raised RuntimeError: the map file is missing"),
        (lambda: Faulty("space", at=0), r"reset\(\) changed the spaces from Box"),
        (
            lambda: MaskInObs(3),
            r"action mask \(obs:action_mask\) has shape \(3,\), expected \(4,\); a mask is flat",
        ),
        (MaskForBox, r"action mask \(info\) is for a box action space; masks are for Discrete"),
        (WrongMain, r'metadata\["main_outcome"\]=\'wins\' is not in'),
        (WrongOutcomes, r'metadata\["outcomes"\] must be a list of names'),
        (Toy, "must have an observation_space and an action_space"),
        (Untold, r"describe_target\(\) must return two texts, .*; it raised ConnectionError: no route"),
        (NoInfo, r"the info of reset\(\) must be a dict, got NoneType"),
    ],
)
def test_broken_environments(factory, message):
    with pytest.raises(EnvContractError, match=message):
        probe(factory, "toy")


def test_what_it_depends_on_is_asked_for_and_is_no_part_of_what_it_is():
    class Depending(Identity):
        def describe_target(self):
            return "the simulator", f"answers after {id(self)} ms"

    one, other = (probe(Depending, "toy") for _ in range(2))
    assert one == other
    assert one.target[0] == "the simulator"
    assert probe(Identity, "toy").target is None


def test_the_environment_is_closed():
    closed = []

    class Closing(gym.Wrapper):
        def close(self):
            closed.append(True)

    with pytest.raises(EnvContractError):
        probe(lambda: Closing(Faulty("reset")), "toy")
    assert closed == [True]
