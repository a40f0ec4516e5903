"""What an environment gives back, checked by value and brought into the form of its EnvSpec.

At every step: observation, mask, reward, flags. Of an episode that ended: its outcome and metrics.
Whatever does not fit is refused with EnvContractError, which says where it happened.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from mission_gym.data import Array, EnvSpec, Leaves
from mission_gym.env.masks import MaskLayout
from mission_gym.env.reading import ObsReader
from mission_gym.env.spaces import mask_parts
from mission_gym.errors import EnvContractError, describe, nearest

TERMS = "reward_terms/"  # prefix of a reward term among an episode's metrics


class Contract:
    """The checks of one environment. where: tells the place in its episode."""

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
        """The leaves of an observation."""
        try:
            leaves: Leaves = self._read_leaves(obs)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            self.refuse(
                f"the observation {show_short(obs)} does not fit {self._spec.observation_space} "
                f"({describe(error)})"
            )
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
        """The action mask, bool [M]; all ones where the episode has ended without a legal action."""
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
            self.refuse(
                f"the action mask ({self._spec.mask_source}) is {show_short(raw)}, expected "
                f"{self._layout.expected} at every step"
            )
        mask = mask.astype(np.bool_)
        if not np.logical_or.reduceat(mask, self._mask_parts).all():
            if ended:  # nothing will be played from here
                return np.ones(size, np.bool_)
            self.refuse(
                f"the action mask {show_short(raw)} leaves no legal action; every part of the action needs "
                "one, or the episode must end"
            )
        return mask

    def add_terms(self, sums: dict[str, float], terms: Any) -> None:
        """Add a step's reward terms to the episode's."""
        try:
            for name, value in terms.items():
                sums[name] = sums.get(name, 0.0) + float(value)
        except (AttributeError, TypeError, ValueError):
            self.refuse(f'info["reward_terms"] is {show_short(terms)}, expected a dict of numbers')

    def to_float(self, reward: Any) -> float:
        """A reward given as any single number."""
        if isinstance(reward, (float, int, np.floating)):
            return float(reward)
        value = np.asarray(reward)
        if value.ndim == 1 and value.size > 1 and value.dtype.kind in "biuf":
            self.refuse(f"the reward is {show_short(reward)}, {explain_vector_reward(value.size)}")
        if value.size != 1 or value.dtype.kind not in "biuf":
            self.refuse(f"the reward is {show_short(reward)}, expected one number")
        return float(value.item())

    def to_bool(self, name: str, flag: Any) -> bool:
        """A flag given as any single zero or one."""
        if isinstance(flag, bool | np.bool_):
            return bool(flag)
        value = np.asarray(flag)
        if value.size != 1 or value.dtype.kind not in "biu" or value.item() not in (0, 1):
            self.refuse(f"{name} is {show_short(flag)}, expected True or False")
        return bool(value.item())

    def refuse(self, what: str) -> NoReturn:
        """Raise with the place in front."""
        raise EnvContractError(f"{self._where()}: {what} [{self._spec.env_id}]")


def explain_vector_reward(count: int) -> str:
    """What to do about a reward of several numbers."""
    return (
        f"{count} numbers, and one is learned from; weigh them, for example with "
        f"--wrap weigh:{','.join(['1'] * count)}"
    )


def show_short(value: Any) -> str:
    """A value in a sentence."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001  border: the user's classes
        text = f"a {type(value).__name__} that can't be shown"
    return text if len(text) <= 200 else f"{text[:197]}..."


def check_outcome(outcome: Any, spec: EnvSpec, where: Callable[[], str]) -> str | None:
    """Return the outcome of an episode if it is a name the environment declared, or None."""
    if outcome is None:
        return None
    if not isinstance(outcome, str):
        raise EnvContractError(
            f'{where()}: info["outcome"] is {show_short(outcome)}, expected a name [{spec.env_id}]'
        )
    if spec.outcomes and outcome not in spec.outcomes:
        raise EnvContractError(
            f'{where()}: info["outcome"]={outcome!r} is not declared in metadata["outcomes"]='
            f"{list(spec.outcomes)}{nearest(outcome, spec.outcomes)} [{spec.env_id}]"
        )
    return outcome


def read_metrics(metrics: Any, spec: EnvSpec, where: Callable[[], str]) -> dict[str, float]:
    """Keep the numeric entries of `info["episode_metrics"]`."""
    if not isinstance(metrics, dict):
        raise EnvContractError(
            f'{where()}: info["episode_metrics"] is {show_short(metrics)}, expected a dict [{spec.env_id}]'
        )
    return {
        name: float(value) for name, value in metrics.items() if isinstance(value, numbers.Real | np.bool_)
    }
