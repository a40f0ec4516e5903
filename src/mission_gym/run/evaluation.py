"""Evaluation on fixed, held-out seeds: return, length and outcome rates with intervals.

`select` is the suite that chooses models during training, `report` the one for the final word; they
share no seed with each other or with training, and do not depend on the run's seed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from mission_gym.data import Array, EnvSpec, Episode, Leaves
from mission_gym.rollout.collector import ActingPolicy
from mission_gym.rollout.playing import Actor, play, seed_of_suite
from mission_gym.run.environment import Environment
from mission_gym.run.intervals import compute_bootstrap, compute_wilson
from mission_gym.streams import suite_seeds

Suite = Literal["select", "report"]
_PARALLEL = 16  # environments of an evaluation; part of its definition where noise is drawn


@dataclass(frozen=True, slots=True)
class EvalResult:
    """The statistics of one suite played in one mode."""

    episodes: int
    return_mean: float
    return_low: float
    return_high: float
    length_mean: float
    outcomes: dict[str, dict[str, float]]  # name -> rate, low, high
    main_outcome: str | None
    explore: bool

    @property
    def score(self) -> float:
        """What `best` ranks by: the lower bound of the main outcome, or of the return if none is declared."""
        if self.main_outcome is not None:
            return self.outcomes[self.main_outcome]["low"]
        return self.return_low

    def low(self, name: str) -> float | None:
        """The lower bound of `return` or of an outcome, None if there is no such outcome."""
        if name == "return":
            return self.return_low
        return self.outcomes[name]["low"] if name in self.outcomes else None

    def document(self) -> dict[str, Any]:
        """The result with the keys of `eval --json`."""
        return {
            "episodes": self.episodes,
            "return_mean": self.return_mean,
            "return_low": self.return_low,
            "return_high": self.return_high,
            "length_mean": self.length_mean,
            "outcomes": self.outcomes,
            "mode": "sampled" if self.explore else "greedy",
        }


def policy_actor(policy: ActingPolicy, spec: EnvSpec) -> Actor:
    """A policy as something that gives the environment's own actions."""

    def act(obs: Leaves, mask: Array | None, noise: Array | None, state: Leaves) -> tuple[Array, Leaves]:
        out = policy.act(obs, mask, noise, state)
        return spec.action.to_env(out.action), out.state

    return Actor(act, policy.initial_state)


def evaluate(
    environment: Environment,
    actor: Actor,
    suite: Suite,
    num_episodes: int,
    *,
    explore: bool = False,
    stop: Callable[[], bool] = lambda: False,
) -> EvalResult | None:
    """Play the first `num_episodes` seeds of a suite; None if a stop was asked for."""
    seeds = suite_seeds(suite, num_episodes)
    # A vector environment takes seeds only at its first reset: one episode per row.
    num_envs = num_episodes if environment.backend.own_vector_form else min(num_episodes, _PARALLEL)
    with environment.limited().make_vector(num_envs, seed_of_suite(seeds, num_envs)) as vec:
        episodes = play(vec, actor, environment.spec, num_episodes, explore=explore, stop=stop)
    return None if episodes is None else summarise(episodes, environment.spec, explore)


def summarise(episodes: list[Episode], spec: EnvSpec, explore: bool) -> EvalResult:
    """The statistics of played episodes."""
    returns = compute_bootstrap([episode.ret for episode in episodes])
    seen = [episode.outcome for episode in episodes if episode.outcome is not None]
    names = dict.fromkeys([*spec.outcomes, *seen])
    rates = {name: compute_wilson(seen.count(name), len(episodes)) for name in names}
    return EvalResult(
        episodes=len(episodes),
        return_mean=returns.mean,
        return_low=returns.low,
        return_high=returns.high,
        length_mean=sum(episode.length for episode in episodes) / len(episodes),
        outcomes={name: {"rate": r.mean, "low": r.low, "high": r.high} for name, r in rates.items()},
        main_outcome=spec.main_outcome,
        explore=explore,
    )
