"""Baselines on the report suite: legal, repeatable, and named by the environment."""

from dataclasses import replace
from functools import partial
from itertools import count
from threading import Barrier

import numpy as np
import pytest
from gymnasium import spaces

from mission_gym.actions import ActionSpec
from mission_gym.env.factory import EnvRequest, make_factory, make_vector_factory
from mission_gym.env.probe import probe, probe_vector
from mission_gym.errors import EnvContractError, EnvFailure, UsageError
from mission_gym.policy.sampling import draw_random
from mission_gym.run.baselines import run_baselines
from mission_gym.run.environment import Environment
from mission_gym.vector.backends import load_backend
from timeouts import LONG_S
from toys import DictMask, Identity, Pointer


class Scripted(DictMask):
    """Declares its best player, a method that looks at the instance it plays in."""

    def __init__(self):
        super().__init__()
        self.baselines = {"expert": self.expert, "first": lambda obs, info: [info["action_mask"].argmax(), 0]}

    def expert(self, obs, info):
        assert obs["colour"] == self.colour
        return (obs["colour"], obs["body"]["switches"][0])


class Clumsy(Identity):
    baselines = {"clumsy": lambda obs, info: info["missing"]}


class Misdeclared(Identity):
    baselines = ["expert"]


class Shifted(Pointer):
    """Zero lies outside the bounds; the reward tells which action was taken."""

    def __init__(self):
        super().__init__()
        self.action_space = spaces.Box(np.array([-2, 1], np.float32), np.array([2, 3], np.float32))

    def step(self, action):
        obs, _, *rest = super().step(action)
        return obs, float(action[0] + 10 * action[1]), *rest


def open_toy(factory, backend="serial"):
    spec = probe(factory, "toy")
    return Environment(spec, EnvRequest("toy"), make_factory(factory), load_backend(backend))


def test_masks_are_respected_and_every_baseline_plays_the_same_suite():
    results = run_baselines(open_toy(Scripted), 20)
    assert list(results) == ["random", "noop", "expert", "first"]
    assert results["expert"]["outcomes"]["won"]["rate"] == 1.0
    assert results["expert"]["return_mean"] == 10.0
    assert results["random"]["outcomes"]["lost"]["rate"] == 1.0
    # The first legal colour and side 0 are what `noop` plays, too.
    assert results["first"] == results["noop"]
    assert results["noop"]["episodes"] == 20
    assert results["noop"]["length_mean"] == 10.0
    assert (results["random"]["mode"], results["noop"]["mode"]) == ("sampled", "greedy")


def test_scripted_players_of_environments_that_wait_play_side_by_side():
    class Together(Scripted):
        """No step ends before all players have begun one."""

        meeting = Barrier(4)

        def expert(self, obs, info):
            self.meeting.wait(LONG_S)
            return super().expert(obs, info)

    together = run_baselines(open_toy(Together, "threads"), 4, names=["expert"])
    assert together == run_baselines(open_toy(Scripted), 4, names=["expert"])


class Endless(Identity):
    baselines = {"calm": lambda obs, info: obs}

    def step(self, action):
        obs, reward, *_, info = super().step(action)
        return obs, reward, False, False, info


def test_a_scripted_player_who_does_not_end_is_cut():
    environment = replace(open_toy(Endless), evaluation_steps=30)
    assert run_baselines(environment, 2, names=["calm"])["calm"]["length_mean"] == 30


def test_a_player_that_fails_ends_the_others():
    begun, players = Barrier(2), count()

    class OneFails(Endless):
        def __init__(self):
            super().__init__()
            self.baselines = {"first": partial(self.play, next(players))}

        def play(self, player, obs, info):
            if self.steps == 0:
                begun.wait(LONG_S)
            if player % 2:
                raise RuntimeError("no more")
            return obs

    with pytest.raises(EnvFailure, match="'first' raised RuntimeError: no more"):
        run_baselines(replace(open_toy(OneFails, "threads"), evaluation_steps=10**12), 2, names=["first"])


def test_an_environment_knows_its_own_noop_best():
    class Waiting(Identity):
        baselines = {"noop": lambda obs, info: obs}

    results = run_baselines(open_toy(Waiting), 3)
    assert list(results) == ["random", "noop"]
    assert results["noop"]["return_mean"] == 20.0


def test_random_is_repeatable():
    toy = open_toy(DictMask)
    assert run_baselines(toy, 5, names=["random"]) == run_baselines(toy, 5, names=["random"])


def test_noop_is_zero_clipped_into_the_bounds():
    result = run_baselines(open_toy(Shifted), 2, names=["noop"])["noop"]
    assert result["return_mean"] == 20 * 10.0


def test_noop_of_a_discrete_space_is_its_first_action():
    taken = []

    class Watched(Identity):
        def step(self, action):
            taken.append(action)
            return super().step(action)

    run_baselines(open_toy(lambda: Watched(n=3, start=-1)), 1, names=["noop"])
    assert set(taken) == {-1}


def test_a_batched_environment():
    request = EnvRequest("CartPole-v1")
    spec = probe_vector(make_vector_factory(request), "CartPole-v1")
    environment = Environment(spec, request, make_factory(request), load_backend("batched"))
    results = run_baselines(environment, 4)
    assert 8 <= results["noop"]["length_mean"] <= 11
    assert results["random"]["episodes"] == 4


@pytest.mark.parametrize(
    ("action", "low", "high"),
    [
        (ActionSpec("categories", (2,), "int64", (3, 2), (0, 0)), [0, 0], [2, 1]),
        (ActionSpec("binary", (2,), "int8"), [0, 0], [1, 1]),
        (ActionSpec("box", (2,), "float32", low=(0.0, 0.0), high=(5.0, 1.0)), [-1, -1], [1, 1]),
    ],
)
def test_random_draws_cover_the_space(action, low, high):
    drawn = draw_random(action, None, np.random.default_rng(0), 2000)
    assert drawn.shape == (2000, 2)
    np.testing.assert_allclose(drawn.min(axis=0), low, atol=0.01)
    np.testing.assert_allclose(drawn.max(axis=0), high, atol=0.01)


def test_random_draws_are_uniform_over_the_legal():
    action = ActionSpec("categories", (), "int64", (4,), (0,))
    mask = np.tile([True, False, True, True], (6000, 1))
    counts = np.bincount(draw_random(action, mask, np.random.default_rng(0), 6000)[:, 0], minlength=4)
    assert counts[1] == 0
    assert np.abs(counts[[0, 2, 3]] - 2000).max() < 150


def test_unbounded_boxes_are_drawn_from_a_normal():
    action = ActionSpec("box", (1,), "float32", low=(-np.inf,), high=(np.inf,))
    drawn = draw_random(action, None, np.random.default_rng(0), 5000)
    assert abs(float(drawn.std()) - 1) < 0.05


def test_refusals():
    toy = open_toy(Scripted)
    with pytest.raises(
        UsageError, match=r"unknown baseline 'exprt' \(did you mean 'expert'\?\); toy has random"
    ):
        run_baselines(toy, 2, names=["exprt"])
    with pytest.raises(UsageError, match="episodes=0 is not a positive count"):
        run_baselines(toy, 0)
    with pytest.raises(EnvContractError, match=r"attribute baselines is \['expert'\], expected a dict"):
        run_baselines(open_toy(Misdeclared), 2)
    with pytest.raises(EnvFailure, match=r"baseline 'clumsy' raised KeyError: 'missing' at seed .*, step 0"):
        run_baselines(open_toy(Clumsy), 2, names=["clumsy"])


def test_what_the_environment_tells_of_its_episodes_is_summed_up():
    told = run_baselines(open_toy(Scripted), 20, names=["expert", "random"])
    assert told["expert"]["metrics"] == {"right": {"mean": 9.0, "low": None, "high": None, "episodes": 20}}
    assert told["random"]["metrics"]["right"]["low"] < told["random"]["metrics"]["right"]["mean"] < 9
    assert "metrics" not in run_baselines(open_toy(Identity), 2, names=["noop"])["noop"]
