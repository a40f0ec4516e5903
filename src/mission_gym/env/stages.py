"""The stages of a curriculum where environments run: what the episodes of each are made of, and which stage
an episode is of. That is a function of its seed and of the stage that the run is in, so equal runs are equal.
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
class Variant:
    """What the episodes of a stage are made of. Stages with equal arguments share a factory."""

    request: EnvRequest
    factory: Factory
    options: Options = None  # of each reset

    @property
    def whole(self) -> Factory:
        """What builds the environment with its options in every reset."""
        return self.factory if self.options is None else partial(_build_with, self.factory, self.options)


@dataclass(frozen=True, slots=True)
class Stages:
    """The stages of a run. earlier: share of episodes that are of earlier stages."""

    variants: tuple[Variant, ...]
    earlier: float = 0.0

    def choose(self, seed: int | None, stage: int) -> int:
        """The stage of an episode with this seed that begins while the run is in `stage`."""
        return stage if seed is None else choose_earlier(seed, stage, self.earlier)


@dataclass(frozen=True, slots=True)
class Staging:
    """Stages in a vector: `now` int64 [1] is the one that the run is in."""

    stages: Stages
    now: Array

    def choose(self, seed: int | None) -> int:
        """The stage of an episode that begins now."""
        return self.stages.choose(seed, int(self.now[0]))


def change_factories(
    change: Callable[[Factory], Factory], factories: Sequence[Factory], stages: Stages | None
) -> tuple[list[Factory], Stages | None]:
    """Factories and those of the stages, each changed once: a slot builds anew where the factory is another,
    so those that were one stay one."""
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
    """Adds options to every reset, where nobody else gives them."""

    def __init__(self, env: Env, options: dict[str, Any]) -> None:
        super().__init__(env)
        self._options = options

    def reset(self, *, seed: int | None = None, options: Options = None) -> tuple[Any, dict[str, Any]]:
        return self.env.reset(seed=seed, options={**self._options, **(options or {})})


def _build_with(factory: Factory, options: dict[str, Any]) -> Env:
    return _ResetOptions(factory(), options)


def check_alike(spec: EnvSpec, other: EnvSpec) -> None:
    """EnvContractError if a policy for one stage can't play another."""
    names = {
        "observes": (spec.observation_space, other.observation_space),
        "acts in": (spec.action_space, other.action_space),
        "has action masks from": (spec.mask_source or "nowhere", other.mask_source or "nowhere"),
        "has the agents": (spec.agents or "none", other.agents or "none"),
    }
    for what, (mine, theirs) in names.items():
        if mine != theirs:
            raise EnvContractError(
                f"it {what} {theirs}, and the stage that evaluations are on {mine}; all stages must be alike"
            )
