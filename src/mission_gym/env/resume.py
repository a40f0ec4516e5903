"""The state of an environment in the middle of an episode, and its form on disk: arrays and a JSON document.

Nothing is pickled. An environment's own state is a tree of None, bool, int, float, str, bytes, list, tuple,
dict and arrays. If it contains anything else, the episode is replayed instead.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from mission_gym.data import Array, Leaves
from mission_gym.env.factory import Env

REPLAY_BUDGET_S = 30.0


@dataclass(slots=True)
class SlotState:
    """One environment in the middle of an episode.

    how: `state` by get_state/set_state, `replay` from seed and actions, or `boundary`: continue with the next
    episode, for the given reason.
    """

    how: Literal["state", "replay", "boundary"]
    episode: int
    seed: int | None
    steps: int
    ret: float
    obs: Leaves  # current observation, each [*leaf.shape]
    mask: Array | None = None  # bool [M]
    terms: dict[str, float] = field(default_factory=dict)  # sums of reward terms so far
    actions: Array | None = None  # [steps, *shape], for replay
    saved: Any = None  # plain tree, for state
    reason: str = ""
    step_s: float = 0.0  # mean seconds of one step
    stage: int = 0  # of the curriculum, of this episode

    @property
    def replay_s(self) -> float:
        """Predicted seconds to replay the episode up to here; 0 without a replay."""
        return self.steps * self.step_s if self.how == "replay" else 0.0


def pack_states(states: list[SlotState]) -> tuple[dict[str, Array], list[Any]]:
    """Split states into arrays (named like `env/3/actions`) and a JSON document."""
    arrays: dict[str, Array] = {}
    names = [item.name for item in fields(SlotState)]
    document = [
        _encode({name: getattr(state, name) for name in names}, f"env/{row}", arrays)
        for row, state in enumerate(states)
    ]
    return arrays, document


def unpack_states(arrays: dict[str, Array], document: list[Any]) -> list[SlotState]:
    """Undo `pack_states`."""
    return [SlotState(**_decode(item, arrays)) for item in document]


def copy_plain(value: Any) -> Any:
    """Return a deep copy of a plain tree; TypeError names a value that is not plain."""
    arrays: dict[str, Array] = {}
    return _decode(_encode(value, "state", arrays), arrays)


def find_state_owner(env: Env) -> Any | None:
    """Return the layer whose get_state/set_state cover the whole environment, or None.

    Unknown wrappers may have their own state, so the inner environment qualifies only below wrappers whose
    only state is the step count.
    """
    if has_state(env):
        return env
    while isinstance(env, PassiveEnvChecker | OrderEnforcing | TimeLimit):
        env = env.env
    return env if has_state(env) and not isinstance(env, gym.Wrapper) else None


def restore_wrappers(env: Env, steps: int) -> None:
    """Set the counters of Gymnasium's standard wrappers for an episode of `steps` steps."""
    while isinstance(env, gym.Wrapper):
        if isinstance(env, TimeLimit):
            env._elapsed_steps = steps  # type: ignore[assignment]
        elif isinstance(env, OrderEnforcing):
            env._has_reset = True
        env = env.env


def read_generator(env: Any) -> dict[str, Any] | None:
    """Return the state of the environment's random generator; None if it has none yet."""
    generator = getattr(env.unwrapped, "_np_random", None)
    return dict(generator.bit_generator.state) if isinstance(generator, np.random.Generator) else None


def restore_generator(env: Any, state: dict[str, Any] | None) -> None:
    """Restore the result of `read_generator`."""
    if state is not None:
        env.unwrapped.np_random.bit_generator.state = state


def has_state(env: Any) -> bool:
    """Return whether a layer has get_state and set_state."""
    return callable(getattr(env, "get_state", None)) and callable(getattr(env, "set_state", None))


def _encode(value: Any, name: str, arrays: dict[str, Array]) -> Any:
    """Convert a plain value to JSON; arrays are copied into `arrays` under names below `name`."""
    if isinstance(value, np.ndarray | np.generic):
        if value.dtype.kind not in "biuf" or value.dtype.itemsize > 8:
            raise TypeError(f"{name} holds an array of dtype {value.dtype}")
        arrays[name] = np.array(value, order="C")
        return {"array" if isinstance(value, np.ndarray) else "scalar": name}
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return {"float": value.hex()}  # JSON has no NaN and no infinity
    if isinstance(value, bytes):
        arrays[name] = np.frombuffer(value, np.uint8).copy()
        return {"bytes": name}
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [_encode(item, f"{name}/{index}", arrays) for index, item in enumerate(value)]}
    if isinstance(value, dict):
        pairs = []
        for index, (key, item) in enumerate(value.items()):
            part = key if isinstance(key, str) and key.isidentifier() else index
            pairs.append(
                [_encode(key, f"{name}/{index}.key", arrays), _encode(item, f"{name}/{part}", arrays)]
            )
        return {"dict": pairs}
    raise TypeError(f"{name} holds a {type(value).__name__}")


def _decode(document: Any, arrays: dict[str, Array]) -> Any:
    if not isinstance(document, dict):
        return document
    ((kind, content),) = document.items()
    if kind == "array":
        return arrays[content]
    if kind == "scalar":
        return arrays[content][()]
    if kind == "float":
        return float.fromhex(content)
    if kind == "bytes":
        return arrays[content].tobytes()
    if kind == "dict":
        return {_decode(key, arrays): _decode(item, arrays) for key, item in content}
    items = [_decode(item, arrays) for item in content]
    return items if kind == "list" else tuple(items)
