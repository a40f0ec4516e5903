"""Environments of several agents: how they are known, what is refused, what their slot shows and tells."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from agent_toys import Lives, Parallel
from mission_gym.env.agents import AgentsEnv, type_of_agent
from mission_gym.env.agents_slot import AgentsSlot
from mission_gym.env.factory import EnvRequest, make_factory
from mission_gym.env.pace import time_steps
from mission_gym.env.probe import probe
from mission_gym.errors import EnvContractError, UsageError


def make(name: str = "Lives", *wrap: str, **kwargs: Any) -> AgentsEnv:
    env = make_factory(EnvRequest(f"agent_toys:{name}", kwargs, wrap))()
    assert isinstance(env, AgentsEnv)
    return env


def make_slot(env: AgentsEnv) -> AgentsSlot:
    return AgentsSlot(lambda: env, probe(lambda: env, "toy"), 0, lambda episode: episode)


def test_a_parallel_environment_is_known_by_its_shape() -> None:
    spec = probe(make_factory(EnvRequest("agent_toys:Lives")), "toy")
    assert spec.agents == ("worker_0", "worker_1", "guest_0")
    assert (spec.num_agents, spec.step_shape) == (3, (3,))
    assert [leaf.shape for leaf in spec.leaves] == [(2,)]
    assert spec.action.nvec == (2,)
    assert isinstance(make_factory(Lives)(), AgentsEnv)


def test_agents_of_different_spaces_are_refused() -> None:
    with pytest.raises(
        EnvContractError,
        match=r"observation space of agent 'worker_0' is Box\(-1.0, 1.0, \(2,\), float32\) and that of "
        r"'guest_0' is Box\(-1.0, 1.0, \(3,\), float32\); .* supersuit:pad_observations_v0",
    ):
        make("Unequal")


def test_agents_that_take_turns_are_refused() -> None:
    with pytest.raises(EnvContractError, match=r"take turns \(AEC\).*conversions.aec_to_parallel"):
        make("Turns")


def test_wrappers_that_do_not_fit_are_refused() -> None:
    with pytest.raises(UsageError, match="'clip-reward:1' is for environments of one agent"):
        make("Lives", "clip-reward:1")
    with pytest.raises(UsageError, match="agent-id is for parallel environments"):
        make_factory(EnvRequest("toys:Identity", wrap=("agent-id",)))()


def test_agents_are_shown_which_one_they_are() -> None:
    names = [leaf.name for leaf in probe(lambda: make("Lives", "agent-id"), "toy").leaves]
    slot = make_slot(make("Lives", "agent-id"))
    slot.reset(0)
    assert slot.obs[names.index("agent_id")].tolist() == [0, 1, 0]  # the guest is not there yet
    for _ in range(2):
        slot.step(np.zeros(3, np.int64))
    assert slot.obs[names.index("agent_id")].tolist() == [0, 1, 2]


def test_a_slot_shows_who_is_there() -> None:
    slot = make_slot(make())
    slot.reset(0)
    lives, ends, rewards = [], [], np.zeros(3)
    while not slot.ended:
        lives.append(slot.live.tolist())
        assert np.array_equal(slot.obs[0][:, 1], slot.live)  # zeros for those who are not
        right = (slot.obs[0][:, 0] >= 0).astype(np.int64)
        made = slot.step(right)
        rewards += made.reward
        ends.append((np.flatnonzero(made.terminated).tolist(), np.flatnonzero(made.truncated).tolist()))
        if slot.over:
            assert slot.last_obs[0].shape == (len(slot.over), 2)
            assert (slot.last_obs[0][:, 1] == 1).all()
    assert lives == [[1, 1, 0]] * 2 + [[1, 1, 1]] * 2 + [[0, 1, 1]] * 2 + [[0, 1, 0]] * 2
    assert ends == [([], [])] * 3 + [([0], [])] + [([], [])] + [([], [2])] + [([], [])] + [([1], [])]
    assert rewards.tolist() == [4, 8, 4]
    episode = slot.finish(not slot.is_cut)
    assert (episode.ret, episode.length, episode.outcome, episode.terminated) == (16, 8, "retired", False)
    assert episode.metrics == {
        "agents/worker/return": 6.0,
        "agents/worker/outcome/retired": 1.0,
        "agents/guest/return": 4.0,
        "agents/guest/outcome/retired": 0.0,
    }


def test_a_slot_comes_back_by_replay() -> None:
    slot, other = make_slot(make()), make_slot(make())
    slot.reset(5)
    for step in range(5):
        slot.step(np.array([step, 1, 0]) % 2)
    state = slot.state()
    assert state.how == "replay"
    assert state.actions is not None
    assert state.actions.shape == (5, 3)
    assert other.restore(state) == "replay"
    assert (other.live == slot.live).all()
    assert other.obs[0].tobytes() == slot.obs[0].tobytes()
    assert (
        other.step(np.zeros(3, np.int64)).reward.tolist() == slot.step(np.zeros(3, np.int64)).reward.tolist()
    )


def test_masks_of_agents() -> None:
    slot = make_slot(make(masked=True))
    slot.reset(0)
    assert slot.mask is not None
    assert slot.mask.shape == (3, 2)
    assert slot.mask.sum(axis=1).tolist() == [1, 1, 2]  # every action is legal for who is not there
    assert np.array_equal(slot.mask[:2, 1], slot.obs[0][:2, 0] >= 0)


class Shown(Lives):
    """Masks beside the observation, as PettingZoo's classic games have them."""

    def observation_space(self, agent: str) -> Any:
        return spaces.Dict(
            {"observation": super().observation_space(agent), "action_mask": spaces.MultiBinary(2)}
        )

    def _observe(self, agents: list[str]) -> Any:
        obs, infos = super()._observe(agents)
        shown: dict[str, Any] = {
            agent: {"observation": each, "action_mask": np.array([1, 0], np.int8)}
            for agent, each in obs.items()
        }
        return shown, infos


def test_masks_in_observations_of_agents() -> None:
    slot = make_slot(AgentsEnv(Shown(), "shown"))
    slot.reset(0)
    assert [leaf.shape for leaf in slot.obs] == [(3, 2)]
    assert slot.mask is not None
    assert slot.mask.tolist() == [[True, False], [True, False], [True, True]]


class Silent(Parallel):
    """Two agents; what a step gives is `result`, after which the second one is gone without a word."""

    def __init__(self, result: Any = None) -> None:
        self.possible_agents, self.agents = ["a", "b"], []
        self.result = result

    def observe(self) -> dict[str, Any]:
        return {agent: np.zeros(2, np.float32) for agent in self.agents}

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.agents = ["a", "b"]
        return self.observe(), {}

    def step(self, actions: dict[str, Any]) -> Any:
        self.agents = ["a"]
        no = {"a": False}
        return (self.observe(), {"a": 1.0}, no, no, {}) if self.result is None else self.result


def test_an_agent_that_leaves_without_a_word_is_truncated() -> None:
    slot = make_slot(AgentsEnv(Silent(), "silent"))
    slot.reset(0)
    made = slot.step(np.zeros(2, np.int64))
    assert (made.terminated.tolist(), made.truncated.tolist()) == ([False, False], [False, True])
    assert (slot.over, slot.live.tolist()) == ([1], [True, False])


@pytest.mark.parametrize(
    ("result", "what"),
    [
        (
            ({}, 0.0, False, {}),
            r"step\(\) must return observations, rewards, terminations, truncations, infos",
        ),
        (({}, 0.0, {}, {}, {}), r"step\(\): rewards must be a dict by agent, got 0.0"),
        (({}, {}, {}, {}, {"a": 1}), r"step\(\): the info of 'a' must be a dict, got 1"),
        (({}, {}, {}, {}, {}), "agent 'a': it is among the agents, but has no observation"),
        (({"a": np.zeros(3, np.float32)}, {}, {}, {}, {}), r"agent 'a': the observation has shape \(3,\)"),
        (({}, {"a": "x"}, {}, {}, {}), "agent 'a': the reward is 'x'"),
        (({}, {}, {"a": 2}, {}, {}), "agent 'a': terminated is 2"),
    ],
)
def test_what_a_step_gives_is_checked(result: Any, what: str) -> None:
    slot = make_slot(AgentsEnv(Silent(result), "silent"))
    slot.reset(0)
    with pytest.raises(EnvContractError, match=what):
        slot.step(np.zeros(2, np.int64))


def test_a_time_limit_around_all_agents_truncates_them() -> None:
    env = gym.wrappers.TimeLimit(make(), 3)
    slot = AgentsSlot(lambda: env, probe(lambda: env, "toy"), 0, lambda episode: episode)
    slot.reset(0)
    for _ in range(3):
        made = slot.step(np.zeros(3, np.int64))
    assert made.truncated.all()
    assert slot.ended


def test_steps_of_all_agents_are_timed() -> None:
    factory = make_factory(EnvRequest("agent_toys:Lives", {"masked": True}))
    assert time_steps(factory, probe(factory, "toy"), 0.0).num_steps >= 4


def test_types_of_agents() -> None:
    names = ("adversary_0", "agent_12", "red_2_3", "solo", 7)
    assert [type_of_agent(name) for name in names] == ["adversary", "agent", "red_2", "solo", "7"]


class OldEnv:
    """As the old gym's: it need not be installed."""

    __module__ = "gym.core"
    observation_space, action_space = spaces.Discrete(2), spaces.Discrete(2)

    def reset(self) -> int:
        return 0

    def step(self, action: Any) -> Any:
        return 0, 0.0, True, {}


class HalfOld(gym.Env[Any, Any]):
    """Gymnasium's by its class, and the old gym's by what it gives."""

    observation_space, action_space = spaces.Discrete(2), spaces.Discrete(2)

    def __init__(self, reset: Any = None) -> None:
        self._result = reset

    def reset(self, **kwargs: Any) -> Any:
        return self._result

    def step(self, action: Any) -> Any:
        return 0, 0.0, True, {}


class Seedless(HalfOld):
    def reset(self) -> Any:  # type: ignore[override]
        return 0


class OldSpace(spaces.Discrete):
    __module__ = "gym.spaces"


def test_environments_of_the_old_gym_are_known() -> None:
    with pytest.raises(
        EnvContractError, match=r"OldEnv, not a gymnasium.Env; .* shimmy.GymV26CompatibilityV0"
    ):
        make_factory(OldEnv)()
    for make in (lambda: HalfOld(reset=0), Seedless):
        with pytest.raises(EnvContractError, match=r"reset\(\) must return .*\(observation, {}\), got 0"):
            probe(make_factory(make), "old")
    spaced = HalfOld(reset=(0, {}))
    spaced.action_space = OldSpace(2)
    with pytest.raises(EnvContractError, match=r"of old gym; use gymnasium.spaces"):
        probe(lambda: spaced, "old")
