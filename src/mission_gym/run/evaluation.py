"""Evaluation on fixed, held-out seeds: return, length and outcome rates with intervals.

`select` is the suite that chooses models during training, `report` the one for the final word; they
share no seed with each other or with training, and do not depend on the run's seed.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import Any, Literal

from mission_gym.data import Array, EnvSpec, Episode, Leaves
from mission_gym.rollout.collector import ActingPolicy
from mission_gym.rollout.playing import Actor, count_playing, play, seed_of_suite
from mission_gym.run.environment import Environment
from mission_gym.run.intervals import compute_bootstrap, compute_wilson
from mission_gym.streams import suite_seeds
from mission_gym.vector.base import Vector

Suite = Literal["select", "report"]


@dataclass(frozen=True, slots=True)
class EvalResult:
    """The statistics of one suite played in one mode."""

    episodes: int
    return_mean: float
    return_low: float
    return_high: float
    length_mean: float
    outcomes: dict[str, dict[str, float]]  # name -> rate, low, high
    mode: str  # greedy or sampled
    main_outcome: str | None

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
        return {name: value for name, value in asdict(self).items() if name != "main_outcome"}


def policy_actor(policy: ActingPolicy, spec: EnvSpec) -> Actor:
    """A policy as something that gives the environment's own actions."""

    def act(obs: Leaves, mask: Array | None, noise: Array | None, state: Leaves) -> tuple[Array, Leaves]:
        out = policy.act(obs, mask, noise, state)
        return spec.action.to_env(out.action), out.state

    return Actor(act, policy.initial_state)


class Evaluator(AbstractContextManager["Evaluator"]):
    """Plays a suite, as often as asked, in one vector that is made when first needed and kept: to start
    workers takes longer than many an evaluation. Its environments are built anew for each play, so that
    nothing is carried over from one to the next. A context manager."""

    def __init__(self, environment: Environment, suite: Suite, num_episodes: int) -> None:
        self._environment = environment.limited()
        self._num_episodes = num_episodes
        self._seeds = suite_seeds(suite, num_episodes)
        self._vec: Vector | None = None

    def play(
        self, actor: Actor, *, explore: bool = False, stop: Callable[[], bool] = lambda: False
    ) -> EvalResult | None:
        """Play every seed of the suite; None if a stop was asked for."""
        environment, num_episodes = self._environment, self._num_episodes
        if environment.backend.own_vector_form:
            self.close()  # its rows can't be built anew
        try:
            if self._vec is None:
                num_envs = count_playing(num_episodes, own_vector_form=environment.backend.own_vector_form)
                self._vec = environment.make_vector(num_envs, seed_of_suite(self._seeds, num_envs))
            else:
                self._vec.rebuild()
            episodes = play(self._vec, actor, environment.spec, num_episodes, explore=explore, stop=stop)
        except BaseException:  # what failed half-way can't be used again
            self.close()
            raise
        return None if episodes is None else summarise(episodes, environment.spec, explore)

    def play_all(self, actor: Actor, *, explore: bool = False) -> EvalResult:
        """Play every seed of the suite to the end."""
        result = self.play(actor, explore=explore)
        assert result is not None, "nobody could ask for a stop"
        return result

    def close(self) -> None:
        """End the environments."""
        if self._vec is not None:
            self._vec.close()
            self._vec = None

    def __exit__(self, *error: object) -> None:
        self.close()


def evaluate(
    environment: Environment, actor: Actor, suite: Suite, num_episodes: int, *, explore: bool = False
) -> EvalResult:
    """Play the first `num_episodes` seeds of a suite once."""
    with Evaluator(environment, suite, num_episodes) as evaluator:
        return evaluator.play_all(actor, explore=explore)


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
        mode="sampled" if explore else "greedy",
        main_outcome=spec.main_outcome,
    )
