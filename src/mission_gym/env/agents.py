"""Environments of several agents that act at once, in PettingZoo's parallel API.

They are recognised by their methods; PettingZoo is not imported. `AgentsEnv` is such an environment as a
Gymnasium environment that keeps dicts by agent; `agents_slot` checks them and converts them to arrays.
"""

from __future__ import annotations

import re
from typing import Any, Protocol, runtime_checkable

import gymnasium as gym

from mission_gym.errors import EnvContractError

AGENTS = "agents/"  # prefix of metrics by agent type, among an episode's metrics
_PADDING = {"observation": "pad_observations_v0", "action": "pad_action_space_v0"}
_METHODS = ("observation_space", "action_space", "reset", "step")


def is_parallel(made: Any) -> bool:
    """Return whether this is an environment of agents that act at once, with spaces by agent."""
    by_agent = all(callable(getattr(made, name, None)) for name in _METHODS)
    return by_agent and hasattr(made, "possible_agents") and not takes_turns(made)


def takes_turns(made: Any) -> bool:
    """Return whether this is an environment whose agents take turns (PettingZoo's AEC)."""
    return all(callable(getattr(made, name, None)) for name in ("agent_iter", "last", "observe"))


@runtime_checkable
class ParallelEnv(Protocol):
    """The methods of a parallel environment's class, PettingZoo's or another, for `issubclass`."""

    def observation_space(self, agent: Any) -> Any: ...
    def action_space(self, agent: Any) -> Any: ...
    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any: ...
    def step(self, actions: dict[Any, Any]) -> Any: ...


def type_of_agent(agent: Any) -> str:
    """Return an agent's type: its name without the number at the end."""
    return re.sub(r"_\d+$", "", str(agent))


class ParallelWrapper:
    """A wrapper of a parallel environment, which is a parallel environment too."""

    def __init__(self, env: Any) -> None:
        self.env = env

    def __getattr__(self, name: str) -> Any:
        if name == "env" or name.startswith("__"):  # it may not exist yet: copy and pickle ask early
            raise AttributeError(name)
        return getattr(self.env, name)

    def observation_space(self, agent: str) -> Any:
        return self.env.observation_space(agent)

    def action_space(self, agent: str) -> Any:
        return self.env.action_space(agent)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return self.env.reset(seed=seed, options=options)

    def step(self, actions: dict[str, Any]) -> Any:
        return self.env.step(actions)


class AgentsEnv(gym.Env[Any, Any]):
    """A parallel environment as a Gymnasium environment.

    Its spaces are those of one agent. `step` takes actions [A, ...] in the order of `agents` and returns five
    dicts by agent; `reset` returns two.
    """

    def __init__(self, parallel: Any, name: str) -> None:
        self.parallel = parallel
        self.agents = tuple(parallel.possible_agents)
        if not self.agents:
            raise EnvContractError(f"{name!r} has no possible_agents; they must list all agents")
        self.observation_space = self._find_space("observation", name)
        self.action_space = self._find_space("action", name)
        self.metadata = dict(getattr(parallel, "metadata", None) or {})
        self.render_mode = getattr(parallel, "render_mode", None)

    def _find_space(self, kind: str, name: str) -> Any:
        """Return the space that all agents share; EnvContractError if two differ."""
        spaces = {agent: getattr(self.parallel, f"{kind}_space")(agent) for agent in self.agents}
        first = self.agents[0]
        for agent, space in spaces.items():
            if space != spaces[first]:
                raise EnvContractError(
                    f"{name!r}: the {kind} space of agent {first!r} is {spaces[first]} and that of {agent!r} "
                    f"is {space}; agents that share a policy need equal spaces; pad them in a wrapper, such "
                    f"as --wrap supersuit:{_PADDING[kind]}"
                )
        return spaces[first]

    @property
    def live(self) -> frozenset[str]:
        """The agents that are alive now."""
        return frozenset(self.parallel.agents)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return self.parallel.reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        live = self.live
        return self.parallel.step(
            {agent: each for agent, each in zip(self.agents, action, strict=True) if agent in live}
        )

    def render(self) -> Any:
        return self.parallel.render()

    def close(self) -> None:
        self.parallel.close()
