"""The stages of a curriculum: the environment of each stage, and the stage of each episode.

An episode's stage is a function of its seed and of the run's current stage, so equal runs are equal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import gymnasium as gym

from mission_gym.data import Array, EnvSpec
from mission_gym.env.factory import Env, EnvRequest, Factory
from mission_gym.errors import EnvContractError
from mission_gym.streams import choose_earlier

Options = dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class StageVariant:
    """The environment of a stage. Stages with equal arguments share a factory."""

    request: EnvRequest
    factory: Factory
    options: Options = None  # of each reset

    @property
    def whole(self) -> Factory:
        """A factory whose environments use the options in every reset."""
        return self.factory if self.options is None else partial(_build_with, self.factory, self.options)


@dataclass(frozen=True, slots=True)
class Stages:
    """The stages of a run. earlier: share of episodes from earlier stages."""

    variants: tuple[StageVariant, ...]
    earlier: float = 0.0

    def choose(self, seed: int | None, stage: int) -> int:
        """Return the stage of an episode with this seed that starts while the run is in `stage`."""
        return stage if seed is None else choose_earlier(seed, stage, self.earlier)


@dataclass(frozen=True, slots=True)
class Staging:
    """The stages in a vector; now: int64 [1], the run's current stage."""

    stages: Stages
    now: Array

    def choose(self, seed: int | None) -> int:
        """Return the stage of an episode that starts now."""
        return self.stages.choose(seed, int(self.now[0]))


def change_factories(
    change: Callable[[Factory], Factory], factories: Sequence[Factory], stages: Stages | None
) -> tuple[list[Factory], Stages | None]:
    """Change the factories of a vector and of its stages. Equal ones stay equal, because a slot rebuilds its
    environment for another factory."""
    changed: dict[int, Factory] = {}

    def once(factory: Factory) -> Factory:
        if id(factory) not in changed:
            changed[id(factory)] = change(factory)
        return changed[id(factory)]

    if stages is not None:
        variants = (replace(each, factory=once(each.factory)) for each in stages.variants)
        stages = replace(stages, variants=tuple(variants))
    return [once(factory) for factory in factories], stages


class _ResetOptions(gym.Wrapper[Any, Any, Any, Any]):
    """Adds options to every reset; explicit options take precedence."""

    def __init__(self, env: Env, options: dict[str, Any]) -> None:
        super().__init__(env)
        self._options = options

    def reset(self, *, seed: int | None = None, options: Options = None) -> tuple[Any, dict[str, Any]]:
        return self.env.reset(seed=seed, options={**self._options, **(options or {})})


def _build_with(factory: Factory, options: dict[str, Any]) -> Env:
    return _ResetOptions(factory(), options)


def check_alike(spec: EnvSpec, other: EnvSpec) -> None:
    """Raise EnvContractError if a policy for one stage can't play another."""
    names = {
        "observes": (spec.observation_space, other.observation_space),
        "acts in": (spec.action_space, other.action_space),
        "has action masks from": (spec.mask_source or "nowhere", other.mask_source or "nowhere"),
        "has the agents": (spec.agents or "none", other.agents or "none"),
    }
    for what, (mine, theirs) in names.items():
        if mine != theirs:
            raise EnvContractError(
                f"it {what} {theirs}, but the stage of evaluations {mine}; all stages must be alike"
            )
