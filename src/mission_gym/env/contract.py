"""Checks the return values of an environment, and converts them to the form of its EnvSpec.

At every step: observation, mask, reward, flags. At the end of an episode: outcome and metrics. An invalid
value is an EnvContractError with the place.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from mission_gym.data import Array, EnvSpec, Leaves
from mission_gym.env.masks import MaskLayout
from mission_gym.env.observations import ObsReader
from mission_gym.env.spaces import mask_parts
from mission_gym.errors import EnvContractError, describe, nearest

TERMS = "reward_terms/"  # prefix of a reward term among an episode's metrics


class Contract:
    """The checks of one environment. where: describes the current step for messages."""

    def __init__(self, spec: EnvSpec, where: Callable[[], str]) -> None:
        self._spec, self._where = spec, where
        self.expected = [(np.dtype(leaf.dtype), leaf.shape) for leaf in spec.leaves]
        self._mask_key = spec.mask_key
        reader = ObsReader(spec)
        self._read_leaves, self.converts = reader.read, reader.converts
        self._mask_parts = mask_parts(spec.action)
        self._layout = MaskLayout(spec)
        # Nearly all masks are flat already.
        self._lay_out: Callable[[Any], Array] = self._layout if self._layout.is_needed else np.asarray
        self._mask_size = spec.mask_size

    def read_obs(self, obs: Any) -> Leaves:
        """Return the leaves of an observation."""
        try:
            leaves: Leaves = self._read_leaves(obs)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            space = self._spec.observation_space
            self.refuse(f"the observation {show_short(obs)} does not fit {space} ({describe(error)})")
        for leaf, (dtype, shape) in zip(leaves, self.expected, strict=True):
            if type(leaf) is not np.ndarray or leaf.dtype is not dtype or leaf.shape != shape:
                return tuple(self._coerce(index, leaf) for index, leaf in enumerate(leaves))
        return leaves

    def _coerce(self, index: int, leaf: Any) -> Array:
        """Accept what fits by value: Python numbers, lists, and dtypes of the same kind."""
        expected = self._spec.leaves[index]
        if isinstance(leaf, (int, np.integer)) and expected.kind == "categories" and expected.shape == ():
            return np.asarray(leaf)
        try:
            got = np.asarray(leaf)
        except ValueError:  # a ragged list
            got = np.asarray(None)
        fits = np.can_cast(got.dtype, expected.dtype, "same_kind")
        fits = fits or (expected.kind == "categories" and got.dtype.kind in "iu")
        if not fits or got.shape != expected.shape:
            name = f"observation {expected.name!r}" if expected.name else "the observation"
            self.refuse(
                f"{name} has shape {got.shape} and dtype {got.dtype}, expected shape {expected.shape} and "
                f"dtype {expected.dtype} as in the observation space"
            )
        return got

    def read_mask(
        self, obs: Any, info: dict[str, Any], method: Callable[[], Any] | None, ended: bool
    ) -> Array:
        """Return the action mask, bool [M]; all ones if the episode has ended without a legal action."""
        if self._mask_key is not None:
            raw = obs[self._mask_key]
        elif method is not None:
            raw = method()
        else:
            raw = info.get("action_mask")
        size = self._mask_size
        if ended and raw is None:
            return np.ones(size, np.bool_)
        mask = self._lay_out(raw)
        if mask.shape != (size,) or mask.dtype.kind not in "biu":
            source, expected = self._spec.mask_source, self._layout.expected
            self.refuse(f"the action mask ({source}) is {show_short(raw)}, expected {expected} at every step")
        mask = mask.astype(np.bool_)
        if not np.logical_or.reduceat(mask, self._mask_parts).all():
            if ended:  # no action follows
                return np.ones(size, np.bool_)
            self.refuse(
                f"the action mask {show_short(raw)} has no legal action; every part of the action needs one, "
                "or the episode must end"
            )
        return mask

    def add_terms(self, sums: dict[str, float], terms: Any) -> None:
        """Add the reward terms of a step to the sums of its episode."""
        try:
            for name, value in terms.items():
                sums[name] = sums.get(name, 0.0) + float(value)
        except (AttributeError, TypeError, ValueError):
            self.refuse(f'info["reward_terms"] is {show_short(terms)}, expected a dict of numbers')

    def to_float(self, reward: Any) -> float:
        """Convert a reward that is any single number."""
        if isinstance(reward, (float, int, np.floating)):
            return float(reward)
        value = np.asarray(reward)
        if value.ndim == 1 and value.size > 1 and value.dtype.kind in "biuf":
            self.refuse(f"the reward is {show_short(reward)}, {explain_vector_reward(value.size)}")
        if value.size != 1 or value.dtype.kind not in "biuf":
            self.refuse(f"the reward is {show_short(reward)}, expected one number")
        return float(value.item())

    def to_bool(self, name: str, flag: Any) -> bool:
        """Convert a flag that is any single zero or one."""
        if isinstance(flag, bool | np.bool_):
            return bool(flag)
        value = np.asarray(flag)
        if value.size != 1 or value.dtype.kind not in "biu" or value.item() not in (0, 1):
            self.refuse(f"{name} is {show_short(flag)}, expected True or False")
        return bool(value.item())

    def refuse(self, what: str) -> NoReturn:
        """Raise an EnvContractError that names the current step."""
        raise EnvContractError(f"{self._where()}: {what} [{self._spec.env_id}]")


def explain_vector_reward(count: int) -> str:
    """Return a remedy for a reward of several numbers."""
    return (
        f"{count} numbers, but only one can be learned from; weight them, for example with "
        f"--wrap weigh:{','.join(['1'] * count)}"
    )


def show_short(value: Any) -> str:
    """Return a short text of a value for a message."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001  border: the user's classes
        text = f"a {type(value).__name__} that has no repr"
    return text if len(text) <= 200 else f"{text[:197]}..."


def check_outcome(outcome: Any, spec: EnvSpec, where: Callable[[], str]) -> str | None:
    """Return the outcome of an episode, which is None or a name that the environment declared."""
    if outcome is None:
        return None
    if not isinstance(outcome, str):
        got = show_short(outcome)
        raise EnvContractError(f'{where()}: info["outcome"] is {got}, expected a name [{spec.env_id}]')
    if spec.outcomes and outcome not in spec.outcomes:
        raise EnvContractError(
            f'{where()}: info["outcome"]={outcome!r} is not declared in metadata["outcomes"]='
            f"{list(spec.outcomes)}{nearest(outcome, spec.outcomes)} [{spec.env_id}]"
        )
    return outcome


def read_metrics(metrics: Any, spec: EnvSpec, where: Callable[[], str]) -> dict[str, float]:
    """Return the numeric entries of `info["episode_metrics"]`."""
    if not isinstance(metrics, dict):
        got = show_short(metrics)
        raise EnvContractError(
            f'{where()}: info["episode_metrics"] is {got}, expected a dict [{spec.env_id}]'
        )
    return {
        name: float(value) for name, value in metrics.items() if isinstance(value, numbers.Real | np.bool_)
    }
