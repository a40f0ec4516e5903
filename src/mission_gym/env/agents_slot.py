"""One running environment of several agents: an EnvSlot with one row per agent.

`obs` leaves are [A, *leaf.shape] and `mask` is [A, M], in the order of `EnvSpec.agents`; rows of absent
agents are zeros with every action legal. The episode ends when no agent is left. Its return is the sum over
all agents; returns and outcomes by agent type are among its metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from mission_gym.data import Array, EnvSpec, Leaves
from mission_gym.env.agents import AGENTS, type_of_agent
from mission_gym.env.contract import TERMS, check_outcome, read_metrics, show_short
from mission_gym.env.factory import Factory
from mission_gym.env.slot import MAX_REPLAY_STEPS, UNTIMED, EnvSlot
from mission_gym.env.stages import Staging
from mission_gym.errors import EnvContractError, describe

_DICTS = ("observations", "rewards", "terminations", "truncations", "infos")


class AgentsStep(NamedTuple):
    """A step of all agents, each [A]; 0 and False for absent agents."""

    reward: Array
    terminated: Array
    truncated: Array


class AgentsSlot(EnvSlot):
    """A slot with several agents.

    live: bool [A], the agents that act next. over: indices of the agents that ended with the last step;
    `last_obs` [E, ...] and `last_mask` [E, M] are their last ones. is_cut: some agent was truncated.
    """

    def __init__(self, factory: Factory, spec: EnvSpec, *args: Any) -> None:
        self._names = spec.agents
        self._reading = ""  # the agent whose values are being checked
        self.live = np.zeros(len(spec.agents), np.bool_)
        self.over: list[int] = []
        self.last_obs: Leaves = ()
        self.last_mask: Array | None = None
        super().__init__(factory, spec, *args)

    def _build(self) -> None:
        super()._build()
        if (decode := self._decode) is not None:  # each agent's action is a Dict or Tuple
            step = self.env.step
            self._step = lambda rows: step([decode(row) for row in rows])
        names = self.env.unwrapped.agents  # type: ignore[attr-defined]
        if names != self._names:
            self.env.close()
            raise EnvContractError(
                f"environment {self.env_id} has the agents {', '.join(map(str, names))}, expected "
                f"{', '.join(map(str, self._names))}; all environments must be alike"
            )

    def reset(self, *args: Any, **options: Any) -> None:
        """Start an episode; see EnvSlot."""
        self.is_cut = False
        self._returns = np.zeros(len(self._names))
        self._seen = np.zeros_like(self.live)  # agents that took part in the episode
        self._outcomes: dict[int, str] = {}
        self._metrics: dict[str, list[float]] = {}  # of all agents that reported them
        super().reset(*args, **options)

    def step(self, action: Any) -> Any:
        """Step with actions [A, ...], in which absent agents are ignored; returns an AgentsStep."""
        if self.ended:
            self.refuse_step()
        if self._actions is not None:  # a copy, because the environment may change its action in place
            self._actions.append(action.copy())
            if self.steps == MAX_REPLAY_STEPS:
                self._actions = None
        start = 0.0 if self.steps & UNTIMED else perf_counter()
        try:
            result: Any = self._step(action)
        except (Exception, SystemExit) as error:  # border: the user's step
            what = f"step() raised {describe(error)}; the actions were {show_short(action.tolist())}"
            raise self._failure("step", what, error) from error
        if start:
            self._timed_s += perf_counter() - start
            self._timed_steps += 1
        self.steps += 1
        if isinstance(result, tuple) and len(result) == len(_DICTS) and result[3] is True:
            # A time limit around the whole environment.
            result = (*result[:3], dict.fromkeys(self._names, True), result[4])
        self._check_dicts("step()", _DICTS, result)
        obs, rewards, terminations, truncations, self.info = result
        made = self._read_step(rewards, terminations, truncations)
        ended = made.terminated | made.truncated
        self.over = np.flatnonzero(ended).tolist()
        self.last_obs, self.last_mask = self._read_rows(obs, self.over, ended=True)
        self._note_ends()
        given = {agent for flags in (terminations, truncations) for agent, flag in flags.items() if flag}
        self._show(obs, self._find_live(given))
        self.ended = not self.live.any()
        return made

    def _read_end(self, terminated: bool) -> tuple[str | None, dict[str, float]]:
        """Return the outcome that all reporting agents share, if they do, and the metrics."""
        outcomes = set(self._outcomes.values())
        metrics = {name: sum(values) / len(values) for name, values in self._metrics.items()}
        metrics |= {f"{TERMS}{name}": value for name, value in self._terms.items()}
        return outcomes.pop() if len(outcomes) == 1 else None, metrics | self._measure_types()

    def _read_step(
        self, rewards: dict[str, Any], terminations: dict[str, Any], truncations: dict[str, Any]
    ) -> AgentsStep:
        """Check and return the rewards and flags of the agents that acted."""
        contract, count = self._contract, len(self._names)
        made = AgentsStep(np.zeros(count), np.zeros(count, np.bool_), np.zeros(count, np.bool_))
        present = self._present
        for index in np.flatnonzero(self.live).tolist():
            agent = self._reading = self._names[index]
            made.reward[index] = reward = contract.to_float(rewards.get(agent, 0.0))
            if not isfinite(reward) and not self._spec.bare:
                self.refuse(f"the reward is {reward}; look for divisions by zero, logs and overflows")
            terminated = contract.to_bool("terminated", terminations.get(agent, False))
            truncated = contract.to_bool("truncated", truncations.get(agent, False))
            # An agent that disappears without a flag counts as truncated.
            made.truncated[index] = truncated or not (terminated or agent in present)
            made.terminated[index] = terminated
            terms = self.info.get(agent, {}).get("reward_terms")
            if terms:
                contract.add_terms(self._terms, terms)
        self._reading = ""
        self._returns += made.reward
        self.ret += float(made.reward.sum())
        self.is_cut |= bool((made.truncated & ~made.terminated).any())
        return made

    @property
    def _present(self) -> frozenset[str]:
        present: frozenset[str] = self.env.unwrapped.live  # type: ignore[attr-defined]
        return present

    def _find_live(self, ended: set[str]) -> Array:
        """Return the agents that act next, including new ones, as bool [A]."""
        present = self._present
        return np.array([agent in present and agent not in ended for agent in self._names])

    def _read(self, obs: Any, info: Any, ended: bool) -> None:
        """Check and store the result of a reset."""
        self._check_dicts("reset()", ("observations", "infos"), (obs, info))
        self.info, self.over = info, []
        live = self._find_live(set())
        if not live.any():
            self.refuse("reset() returned no agent; an episode needs at least one")
        self._show(obs, live)

    def _show(self, obs: dict[str, Any], live: Array) -> None:
        """Store the rows of the agents that act next; the other rows are zeros."""
        indices = np.flatnonzero(live)
        leaves, mask = self._read_rows(obs, indices.tolist(), ended=False)
        count = len(self._names)
        shown = [np.zeros((count, *shape), dtype) for dtype, shape in self._contract.expected]
        for array, leaf in zip(shown, leaves, strict=True):
            array[indices] = leaf
        if mask is not None:
            self.mask = np.ones((count, mask.shape[1]), np.bool_)
            self.mask[indices] = mask
        self.obs, self.live = tuple(shown), live
        self._seen |= live

    def _read_rows(
        self, obs: dict[str, Any], indices: Sequence[int], *, ended: bool
    ) -> tuple[Leaves, Array | None]:
        """Return checked observations and masks of some agents, each [N, ...]. An agent that ended may have
        no observation: it keeps its previous one."""
        expected, size = self._contract.expected, self._spec.mask_size
        leaves = tuple(np.empty((len(indices), *shape), dtype) for dtype, shape in expected)
        masks = np.ones((len(indices), size), np.bool_) if size else None
        for row, index in enumerate(indices):
            agent = self._reading = self._names[index]
            if agent in obs:
                given = self._contract.read_obs(obs[agent])
                if not self._spec.bare:
                    self._contract.check_values(given)
            elif ended:
                given = tuple(leaf[index] for leaf in self.obs)
            else:
                self.refuse("it is among the agents, but has no observation")
            for array, leaf in zip(leaves, given, strict=True):
                array[row] = leaf
            if masks is not None and agent in obs:
                masks[row] = self._contract.read_mask(obs[agent], self.info.get(agent, {}), None, ended)
        self._reading = ""
        return leaves, masks

    def _note_ends(self) -> None:
        """Store the outcomes and metrics of agents that have ended."""
        for index in self.over:
            agent = self._names[index]
            info = self.info.get(agent, {})
            outcome = check_outcome(info.get("outcome"), self._spec, self.refuse)
            if outcome is not None:
                self._outcomes[index] = outcome
            for name, value in read_metrics(info.get("episode_metrics", {}), self.refuse).items():
                self._metrics.setdefault(name, []).append(value)

    def _measure_types(self) -> dict[str, float]:
        """Return, for each agent type, the mean return of its agents and the share of each outcome."""
        types: dict[str, list[int]] = {}
        for index in np.flatnonzero(self._seen).tolist():
            types.setdefault(type_of_agent(self._names[index]), []).append(index)
        names = dict.fromkeys([*self._spec.outcomes, *self._outcomes.values()])
        metrics = {}
        for kind, members in types.items():
            metrics[f"{AGENTS}{kind}/return"] = float(self._returns[members].mean())
            outcomes = [self._outcomes.get(index) for index in members]
            for name in names:
                metrics[f"{AGENTS}{kind}/outcome/{name}"] = outcomes.count(name) / len(members)
        return metrics

    def _check_dicts(self, call: str, names: Sequence[str], result: Any) -> None:
        if not isinstance(result, tuple) or len(result) != len(names):
            self.refuse(f"{call} must return {', '.join(names)}, got {show_short(result)}")
        for name, value in zip(names, result, strict=True):
            if not isinstance(value, dict):
                self.refuse(f"{call}: {name} must be a dict by agent, got {show_short(value)}")
        for agent, info in result[-1].items():
            if not isinstance(info, dict):
                self.refuse(f"{call}: the info of {agent!r} must be a dict, got {show_short(info)}")

    def _where(self) -> str:
        return super()._where() + (f", agent {self._reading!r}" if self._reading else "")


def make_slot(
    factory: Factory,
    spec: EnvSpec,
    env_id: int,
    seed_of: Callable[[int], int | None],
    staging: Staging | None = None,
) -> EnvSlot:
    """Make the slot of an environment of one agent or of several."""
    return (AgentsSlot if spec.agents else EnvSlot)(factory, spec, env_id, seed_of, staging)
