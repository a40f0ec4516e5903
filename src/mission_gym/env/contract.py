"""Checks the return values of an environment, and converts them to the form of its EnvSpec.

At every step: observation, mask, reward, flags. At the end of an episode: outcome and metrics. An invalid
value is an EnvContractError with the place.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from mission_gym.data import Array, EnvSpec, LeafSpec, Leaves
from mission_gym.env.leaves import ObsReader
from mission_gym.env.masks import MaskLayout
from mission_gym.env.spaces import mask_parts
from mission_gym.errors import describe, nearest

TERMS = "reward_terms/"  # prefix of a reward term among an episode's metrics
PAIR = "(observation, info), such as (observation, {})"  # of reset()
FIVE = "(observation, reward, terminated, truncated, info)"  # of step()
Refuse = Callable[[str], NoReturn]  # raises EnvContractError with this text and its place


class Contract:
    """The checks of one environment. refuse: raises with the current step."""

    def __init__(self, spec: EnvSpec, refuse: Refuse) -> None:
        self._spec, self.refuse = spec, refuse
        self.expected = [(np.dtype(leaf.dtype), leaf.shape) for leaf in spec.leaves]
        self.conversions: dict[str, str] = {}  # leaf -> dtype of its arrays, where the space has another
        # The limits of single categories are tested here; a vector tests arrays of them, many at a time.
        self._limits = [_find_limits(leaf) for leaf in spec.leaves]
        self._plain: list[tuple[Any, tuple[int, ...]]] = [
            (dtype if limits is None else None, shape)
            for (dtype, shape), limits in zip(self.expected, self._limits, strict=True)
        ]
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
            self.refuse(
                f"the observation does not fit its space ({describe(error)}): it is {show_short(obs)}, "
                f"expected {self._spec.observation_space}"
            )
        for leaf, (dtype, shape) in zip(leaves, self._plain, strict=True):
            if type(leaf) is not np.ndarray or leaf.dtype is not dtype or leaf.shape != shape:
                return tuple(self._coerce(index, leaf) for index, leaf in enumerate(leaves))
        return leaves

    def _coerce(self, index: int, leaf: Any) -> Array:
        """Convert what fits by value: Python numbers, lists, and arrays of another dtype."""
        expected, limits = self._spec.leaves[index], self._limits[index]
        if limits is not None and isinstance(leaf, (int, np.integer)):
            category = int(leaf)
            if not limits[0] <= category <= limits[1] and not self._spec.bare:
                self.refuse(find_wrong_value(np.asarray(leaf), expected))
            return np.asarray(leaf)
        try:
            got = np.asarray(leaf)
        except ValueError:  # a ragged list
            got = np.asarray(None)
        if problem := find_misfit(expected, got, expected.shape):
            self.refuse(f"{name_leaf(expected.name)} {problem}")
        if got.dtype == expected.dtype or expected.kind == "categories":
            return got
        if isinstance(leaf, np.ndarray):
            self.conversions[expected.name] = str(got.dtype)
        with np.errstate(over="ignore"):  # infinity is refused with its place
            return got.astype(expected.dtype)

    def check_values(self, leaves: Leaves) -> None:
        """Refuse an observation with NaN, infinity or a category that its space does not have."""
        for leaf, spec in zip(leaves, self._spec.leaves, strict=True):
            if problem := find_wrong_value(np.asarray(leaf), spec):
                self.refuse(problem)

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


def find_misfit(leaf: LeafSpec, got: Array, shape: tuple[int, ...]) -> str:
    """Describe an array whose shape or dtype does not fit a leaf; "" if it does.

    As in NumPy's own assignments of the same kind, real numbers may be rounded, and integers fit every dtype
    that has their values. Real numbers never become integers.
    """
    dtype = np.dtype(leaf.dtype)
    expected = f"expected shape {shape} and dtype {dtype} as in the observation space"
    if got.shape != shape:
        return f"has shape {got.shape} and dtype {got.dtype}, {expected}"
    if got.dtype.kind in "iu" and dtype.kind in "iu":
        limits = np.iinfo(dtype)
        if leaf.kind == "categories" or not got.size or limits.min <= got.min() <= got.max() <= limits.max:
            return ""
        return f"has values from {got.min()} to {got.max()} in dtype {got.dtype}, {expected}"
    if np.can_cast(got.dtype, dtype, "same_kind"):
        return ""
    remedy = f"; return it with .astype(np.{dtype}), or declare the space with dtype np.{got.dtype}"
    return (
        f"has shape {got.shape} and dtype {got.dtype}, {expected}{remedy if got.dtype.kind in 'biuf' else ''}"
    )


def describe_conversions(conversions: Mapping[str, str], leaves: Sequence[LeafSpec]) -> str:
    """Describe observations that are converted to the dtype of their space; "" without any."""
    dtypes = {leaf.name: leaf.dtype for leaf in leaves}
    texts = [f"{name_leaf(name)} from {got} to {dtypes[name]}" for name, got in conversions.items()]
    return f"converts {', '.join(texts)}, the dtype of the space" if texts else ""


def find_range(leaf: LeafSpec) -> tuple[Array, Array] | None:
    """Return the lowest and highest values of a leaf that is a number of categories or bits, each flat; None
    for other leaves."""
    if leaf.kind == "binary" and np.dtype(leaf.dtype).kind in "iu":
        return np.array([0]), np.array([1])
    if leaf.kind != "categories" or not leaf.nvec:  # a bare spec has no sizes
        return None
    low = np.asarray(leaf.start, np.int64)
    high = np.full_like(low, np.iinfo(np.int64).max) if leaf.open_ended else low + np.asarray(leaf.nvec) - 1
    return low, high


def _find_limits(leaf: LeafSpec) -> tuple[int, int] | None:
    """Return the lowest and highest value of a single category; None for other leaves."""
    allowed = find_range(leaf) if leaf.shape == () and leaf.kind == "categories" else None
    return None if allowed is None else (int(allowed[0][0]), int(allowed[1][0]))


def find_wrong_value(value: Array, leaf: LeafSpec) -> str:
    """Describe a number that is not finite or a category that the space does not have; "" if there is none.

    Real numbers outside their bounds are accepted, because observations are normalised.
    """
    name = name_leaf(leaf.name)
    if value.dtype.kind == "f":
        wrong = ~np.isfinite(value)
        if wrong.any():
            at = f" at index {np.argwhere(wrong)[0].tolist()}" if value.ndim else ""
            return f"{name} has {value[wrong][0]}{at}; look for divisions by zero, logs and overflows"
    elif (allowed := find_range(leaf)) is not None and not leaf.is_converted:
        low, high = (np.broadcast_to(bound, value.size) for bound in allowed)
        flat = value.reshape(-1)
        wrong = (flat < low) | (flat > high)
        if wrong.any():
            place = int(wrong.argmax())
            at = f" at index {[int(i) for i in np.unravel_index(place, value.shape)]}" if value.ndim else ""
            limits = f"allowed are {low[place]} to {high[place]}"
            return f"{name} is outside its space: it has {flat[place]}{at}, {limits}"
    return ""


def name_leaf(name: str) -> str:
    """Return the name of a leaf for a message."""
    return f"observation {name!r}" if name else "the observation"


def explain_vector_reward(count: int) -> str:
    """Return a remedy for a reward of several numbers."""
    return (
        f"{count} numbers, but only one can be learned from; weight them, for example with "
        f"--wrap weigh:{','.join(['1'] * count)}"
    )


def explain_step(result: Any) -> str:
    """Describe the result of a step that is not five values, with the remedy."""
    kind = f"{len(result)} values" if isinstance(result, tuple) else f"a {type(result).__name__}"
    remedy = "; replace done by terminated (the task has ended) and truncated (a time limit)"
    return (
        f"step() must return {FIVE}, got {kind}: {show_short(result)}{remedy if kind == '4 values' else ''}"
    )


def show_action(action: Any) -> str:
    """Return a short text of an action, in which a NumPy scalar has its type."""
    if isinstance(action, np.generic):
        return f"{action.item()!r} (np.{type(action).__name__})"
    return show_short(action)


def show_short(value: Any) -> str:
    """Return a short text of a value for a message."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001  border: the user's classes
        text = f"a {type(value).__name__} that has no repr"
    return text if len(text) <= 200 else f"{text[:197]}..."


def check_outcome(outcome: Any, spec: EnvSpec, refuse: Refuse, *, is_due: bool = False) -> str | None:
    """Return the outcome of an episode, which is a name that the environment declared, or None. is_due: None
    is refused if any are declared."""
    if outcome is None:
        if is_due and spec.outcomes:
            refuse(
                'the episode ended without info["outcome"]; set it to one of '
                f"{', '.join(spec.outcomes)} in the last step of every episode"
            )
        return None
    if not isinstance(outcome, str):
        refuse(f'info["outcome"] is {show_short(outcome)}, expected a name')
    if spec.outcomes and outcome not in spec.outcomes:
        refuse(
            f'info["outcome"]={outcome!r} is not declared in metadata["outcomes"]='
            f"{list(spec.outcomes)}{nearest(outcome, spec.outcomes)}"
        )
    return outcome


def read_metrics(metrics: Any, refuse: Refuse) -> dict[str, float]:
    """Return the numeric entries of `info["episode_metrics"]`."""
    if not isinstance(metrics, dict):
        refuse(f'info["episode_metrics"] is {show_short(metrics)}, expected a dict')
    return {
        name: float(value) for name, value in metrics.items() if isinstance(value, numbers.Real | np.bool_)
    }
