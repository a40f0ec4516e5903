"""Evaluation on fixed, held-out seeds: return, length and outcome rates with intervals.

The suite `select` chooses checkpoints during training, `report` is for final results. They share no seed with
each other or with training, and do not depend on the run's seed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from mission_gym.data import Array, EnvSpec, Episode, Leaves
from mission_gym.env.agents import AGENTS
from mission_gym.env.contract import TERMS
from mission_gym.errors import EnvContractError, EnvFailure, ResourceRefused
from mission_gym.intervals import estimate_mean, estimate_rate
from mission_gym.rollout.collector import ActingPolicy
from mission_gym.rollout.play import Actor, See, count_playing, play, seed_of_suite, unseen
from mission_gym.run.environment import Environment
from mission_gym.streams import suite_seeds
from mission_gym.vector.base import Vector

_ATTEMPTS = 2
Suite = Literal["select", "report"]


@dataclass(frozen=True, slots=True)
class EvalResult:
    """The statistics of one suite played in one mode."""

    episodes: int
    return_mean: float
    return_low: float | None  # None: no interval can be given
    return_high: float | None
    length_mean: float
    outcomes: dict[str, dict[str, float]]  # name -> rate, low, high
    failed: int  # episodes that ended in a failure; they count nowhere
    mode: str  # greedy or sampled
    main_outcome: str | None
    num_steps: int  # of all its episodes
    returns: tuple[float, ...]
    agents: dict[str, dict[str, Any]] = field(default_factory=dict)  # type -> return_mean, ..., outcomes
    metrics: dict[str, dict[str, Any]] = field(default_factory=dict)  # episode metric -> mean, low, high

    @property
    def score(self) -> float:
        """The rank of a checkpoint: the lower bound of the main outcome, or of the return without one."""
        low = self.low(self.main_outcome or "return")
        assert low is not None
        return low

    def low(self, name: str) -> float | None:
        """The lower bound of `return` or of an outcome, or the mean return if no interval can be given; None
        if there is no such outcome."""
        if name == "return":
            return self.return_mean if self.return_low is None else self.return_low
        return self.outcomes[name]["low"] if name in self.outcomes else None

    def document(self) -> dict[str, Any]:
        """The document of `eval --json`; `agents` and `metrics` only if there are any."""
        left_out = {"main_outcome", "num_steps", "returns"}
        left_out |= {name for name in ("agents", "metrics") if not getattr(self, name)}
        return {name: value for name, value in asdict(self).items() if name not in left_out}


def policy_actor(policy: ActingPolicy, spec: EnvSpec) -> Actor:
    """A policy as an actor that returns the environment's own actions."""

    def act(obs: Leaves, mask: Array | None, noise: Array | None, state: Leaves) -> tuple[Array, Leaves]:
        out = policy.act(obs, mask, noise, state)
        return spec.action.to_env(out.action), out.state

    return Actor(act, policy.initial_state)


class Evaluator(AbstractContextManager["Evaluator"]):
    """Plays a suite repeatedly; a context manager. The vector is made once, since starting workers may take
    longer than an evaluation; its environments are rebuilt for each play. first: seeds to skip."""

    def __init__(
        self,
        environment: Environment,
        suite: Suite,
        num_episodes: int,
        *,
        first: int = 0,
    ) -> None:
        self._environment = environment.limited()
        self._num_episodes = num_episodes
        self._seeds = suite_seeds(suite, first + num_episodes)[first:]
        self._vec: Vector | None = None
        self.notes: list[str] = []  # about processes that the system refused

    def play(
        self,
        actor: Actor,
        *,
        explore: bool = False,
        stop: Callable[[], bool] = lambda: False,
        see: See = unseen,
    ) -> EvalResult | None:
        """Play every seed of the suite; None if a stop was requested. see: see `play`. Failed episodes are
        counted apart. If all of them fail, as when their one process is killed, they are played once more."""
        spec = self._environment.spec
        for _ in range(_ATTEMPTS):
            try:
                vec = self._prepare()
                episodes = play(vec, actor, spec, self._num_episodes, explore=explore, stop=stop, see=see)
            except BaseException:  # an interrupted vector can't be used again
                self.close()
                raise
            if episodes is None:
                return None
            if episodes:
                return summarise(episodes, spec, explore, failed=self._num_episodes - len(episodes))
        raise EnvFailure(
            f"all {self._num_episodes} episodes of an evaluation failed, {_ATTEMPTS} times; "
            f"`mission-gym check` may find the cause [{spec.env_id}]"
        )

    def _prepare(self) -> Vector:
        """The vector, with new environments."""
        environment, own_form = self._environment, self._environment.backend.own_vector_form
        if own_form:
            self.close()  # its rows can't be rebuilt
        if self._vec is None:
            num_envs = count_playing(
                self._num_episodes, own_vector_form=own_form, at_most=environment.most_playing
            )
            try:
                self._vec = self._make_vector(num_envs)
            except EnvContractError:  # as in training, a process may hold only one
                if num_envs <= environment.num_workers:
                    raise
                self._vec = self._make_vector(environment.num_workers)
        else:
            self._vec.rebuild()
        return self._vec

    def _make_vector(self, num_envs: int) -> Vector:
        while True:
            try:
                return self._environment.make_vector(num_envs, seed_of_suite(self._seeds, num_envs))
            except ResourceRefused as refusal:
                fewer = self._environment = self._environment.with_fewer_processes(refusal)
                self.notes = [f"evaluations: {fewer.backend.describe(fewer.num_workers)}: {refusal}"]

    def play_all(self, actor: Actor, *, explore: bool = False, see: See = unseen) -> EvalResult:
        """Play every seed of the suite to the end."""
        result = self.play(actor, explore=explore, see=see)
        assert result is not None, "no stop can be requested"
        return result

    def close(self) -> None:
        """Close the environments."""
        if self._vec is not None:
            self._vec.close()
            self._vec = None

    def __exit__(self, *error: object) -> None:
        self.close()


def evaluate(
    environment: Environment,
    actor: Actor,
    suite: Suite,
    num_episodes: int,
    *,
    explore: bool = False,
    see: See = unseen,
) -> EvalResult:
    """Play the first `num_episodes` seeds of a suite once."""
    with Evaluator(environment, suite, num_episodes) as evaluator:
        return evaluator.play_all(actor, explore=explore, see=see)


def summarise(episodes: list[Episode], spec: EnvSpec, explore: bool, *, failed: int = 0) -> EvalResult:
    """The statistics of played episodes. failed: the number of others."""
    seen = [episode.outcome for episode in episodes if episode.outcome is not None]
    result = _make_result(
        [episode.ret for episode in episodes],
        sum(episode.length for episode in episodes),
        {name: seen.count(name) for name in dict.fromkeys([*spec.outcomes, *seen])},
        "sampled" if explore else "greedy",
        spec.main_outcome,
    )
    return replace(
        result,
        failed=failed,
        agents=_summarise_agents(episodes) if spec.agents else {},
        metrics=_summarise_metrics(episodes),
    )


def _summarise_metrics(episodes: list[Episode]) -> dict[str, dict[str, Any]]:
    """The environment's own episode metrics, without reward terms."""
    found = {}
    for name in dict.fromkeys(name for episode in episodes for name in episode.metrics):
        if not name.startswith((AGENTS, TERMS)):
            values = [episode.metrics[name] for episode in episodes if name in episode.metrics]
            found[name] = estimate_mean(values)._asdict() | {"episodes": len(values)}
    return found


def _summarise_agents(episodes: list[Episode]) -> dict[str, dict[str, Any]]:
    """By type of agent: the mean return of an agent and the share of each outcome, with intervals."""
    types: dict[str, dict[str, Any]] = {}
    for name in dict.fromkeys(name for episode in episodes for name in episode.metrics):
        if not name.startswith(AGENTS):
            continue
        kind, what, *outcome = name.removeprefix(AGENTS).split("/", 2)
        values = [episode.metrics[name] for episode in episodes if name in episode.metrics]
        found = types.setdefault(kind, {"outcomes": {}})
        if outcome:
            found["outcomes"][outcome[0]] = _estimate_share(values)
        else:
            mean, low, high = estimate_mean(values)
            found |= {f"{what}_mean": mean, f"{what}_low": low, f"{what}_high": high}
            found["episodes"] = len(values)
    return types


def _estimate_share(values: Sequence[float]) -> dict[str, float | None]:
    """The mean of the shares of agents in each episode. One agent makes it a rate of episodes."""
    if all(value in (0.0, 1.0) for value in values):
        rate = estimate_rate(round(sum(values)), len(values))
        return {"rate": rate.mean, "low": rate.low, "high": rate.high}
    mean, low, high = estimate_mean(values)
    return {
        "rate": mean,
        "low": None if low is None else max(low, 0.0),
        "high": None if high is None else min(high, 1.0),
    }


def combine(first: Mapping[str, Any], more: EvalResult) -> EvalResult:
    """The joint statistics of a stored evaluation, with its returns, and one on other seeds."""
    counts: dict[str, int] = {}
    for outcomes, episodes in ((first["outcomes"], first["episodes"]), (more.outcomes, more.episodes)):
        for name, rate in outcomes.items():
            counts[name] = counts.get(name, 0) + round((rate["rate"] or 0.0) * episodes)
    num_steps = round(first["length_mean"] * first["episodes"]) + more.num_steps
    return _make_result([*first["returns"], *more.returns], num_steps, counts, more.mode, more.main_outcome)


def _make_result(
    returns: Sequence[float], num_steps: int, counts: Mapping[str, int], mode: str, main_outcome: str | None
) -> EvalResult:
    """counts: episodes by outcome."""
    mean, low, high = estimate_mean(returns)
    rates = {name: estimate_rate(count, len(returns)) for name, count in counts.items()}
    return EvalResult(
        episodes=len(returns),
        return_mean=mean,
        return_low=low,
        return_high=high,
        length_mean=num_steps / len(returns),
        outcomes={name: {"rate": r.mean, "low": r.low, "high": r.high} for name, r in rates.items()},
        failed=0,
        mode=mode,
        main_outcome=main_outcome,
        num_steps=num_steps,
        returns=tuple(returns),
    )
