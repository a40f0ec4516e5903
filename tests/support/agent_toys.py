"""Environments of several agents with known answers, in PettingZoo's parallel form but without PettingZoo."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from mission_gym.data import Array


class Parallel:
    """What a parallel environment is: spaces by agent, dicts in and out."""

    metadata: dict[str, Any] = {"name": "toy"}
    possible_agents: list[str]
    agents: list[str]

    def observation_space(self, agent: str) -> Any:
        return spaces.Box(-1.0, 1.0, (2,), np.float32)

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(2)

    def close(self) -> None:
        self.agents = []


class Lives(Parallel):
    """Say the side on which a number is: reward 1, else 0. Worker i is told that its task is over after
    (i + 1) * `life` steps; the guest comes at step 2 and is truncated at step 6. The optimum is a reward of 1
    at every step of every agent: 16 for two workers with the default life."""

    def __init__(self, num_agents: int = 2, life: int = 4, masked: bool = False) -> None:
        self.possible_agents = [f"worker_{i}" for i in range(num_agents)] + ["guest_0"]
        self.agents, self.life, self.masked = [], life, masked
        self._ends = {f"worker_{i}": (i + 1) * life for i in range(num_agents)}
        self._rng = np.random.default_rng(0)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self.steps = 0
        self.agents = [agent for agent in self.possible_agents if agent != "guest_0"]
        return self._observe(self.agents)

    def _observe(self, agents: list[str]) -> tuple[dict[str, Array], dict[str, Any]]:
        self.targets = {agent: self._rng.uniform(-1.0, 1.0) for agent in agents}
        # The second entry keeps the agents apart from the zeros of one that is not there.
        obs = {agent: np.array([target, 1.0], np.float32) for agent, target in self.targets.items()}
        infos: dict[str, Any] = {agent: {} for agent in agents}
        if self.masked:
            for agent, target in self.targets.items():
                infos[agent]["action_mask"] = np.array([target < 0, target >= 0])
        return obs, infos

    def step(self, actions: dict[str, Any]) -> Any:
        assert set(actions) == set(self.agents), "actions of exactly those who are there"
        self.steps += 1
        rewards = {agent: float(actions[agent] == (self.targets[agent] >= 0)) for agent in self.agents}
        terminations = {agent: self.steps == self._ends.get(agent) for agent in self.agents}
        truncations = {agent: agent == "guest_0" and self.steps == 6 for agent in self.agents}
        # Who comes shows itself at once, and acts in the next step.
        shown = [*self.agents, "guest_0"] if self.steps == 2 else self.agents
        obs, infos = self._observe(shown)
        for agent in self.agents:
            if terminations[agent]:
                infos[agent]["outcome"] = "retired"
        self.agents = [a for a in shown if not terminations.get(a) and not truncations.get(a)]
        return obs, rewards, terminations, truncations, infos


class Unequal(Lives):
    """Agents of different spaces."""

    def observation_space(self, agent: str) -> Any:
        return spaces.Box(-1.0, 1.0, (3 if agent == "guest_0" else 2,), np.float32)


class Breaking(Lives):
    """Raises at step 3 of one episode in three."""

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.breaks = seed is not None and seed % 3 == 0
        return super().reset(seed, options)

    def step(self, actions: dict[str, Any]) -> Any:
        if self.breaks and self.steps == 3:
            raise RuntimeError("broken")
        return super().step(actions)


class Turns(Lives):
    """Agents that act one after the other."""

    def agent_iter(self) -> Any:
        return iter(self.agents)

    def last(self) -> Any:
        return None

    def observe(self, agent: str) -> Any:
        return None


class Orders(Lives):
    """Orders in words, answers of two parts: the named lever, and a force that does not matter."""

    def observation_space(self, agent: str) -> Any:
        return spaces.Text(20)

    def action_space(self, agent: str) -> Any:
        return spaces.Dict({"lever": spaces.Discrete(2), "force": spaces.Box(-1.0, 1.0, (1,), np.float32)})

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        obs, infos = super().reset(seed, options)
        return self._tell(obs), infos

    def step(self, actions: dict[str, Any]) -> Any:
        obs, *rest = super().step({agent: int(each["lever"]) for agent, each in actions.items()})
        return self._tell(obs), *rest

    def _tell(self, obs: dict[str, Array]) -> dict[str, str]:
        return {agent: "pull right" if each[0] >= 0 else "pull left" for agent, each in obs.items()}


class Tearing(Orders):
    """Breaks at its third step."""

    def step(self, actions: dict[str, Any]) -> Any:
        if self.steps == 2:
            raise RuntimeError("torn")
        return super().step(actions)


class Unseeded(Lives):
    """Draws from NumPy's global generator."""

    def _observe(self, agents: list[str]) -> tuple[dict[str, Array], dict[str, Any]]:
        obs, infos = super()._observe(agents)
        shaken = {agent: each + np.float32(np.random.uniform(-0.1, 0.1)) for agent, each in obs.items()}
        return shaken, infos
