"""Wrappers that show less of a picture, for `--wrap crop:64` and `--wrap pool:2`.

Images are [H, W], [H, W, C] or [C, H, W] of uint8; of a Dict, every key that is one.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from mission_gym.data import Array
from mission_gym.env.factory import Env
from mission_gym.errors import EnvContractError


class _Pictures(gym.ObservationWrapper[Any, Any, Any]):
    """Changes every image that is the observation or a key of it."""

    def __init__(self, env: Env, name: str) -> None:
        super().__init__(env)
        space = env.observation_space
        parts = space.spaces if isinstance(space, spaces.Dict) else {"": space}
        self._rows = {key: axis for key, part in parts.items() if (axis := _find_rows(part)) is not None}
        if not self._rows:
            raise EnvContractError(
                f"{name} needs images of uint8, [H, W], [H, W, C] or [C, H, W], and stacks behind it; the"
                f" observation space is {space} [--wrap]"
            )
        changed = {key: self._change_space(parts[key], axis) for key, axis in self._rows.items()}
        self.observation_space = spaces.Dict({**parts, **changed}) if "" not in changed else changed[""]

    def _change_space(self, space: Any, axis: int) -> spaces.Box:
        low, high = self.change(space.low, axis), self.change(space.high, axis)
        return spaces.Box(low, high, dtype=np.uint8)

    def observation(self, observation: Any) -> Any:
        if "" in self._rows:
            return self.change(observation, self._rows[""])
        return {
            **observation,
            **{key: self.change(observation[key], axis) for key, axis in self._rows.items()},
        }

    def change(self, image: Array, axis: int) -> Array:
        """The image that is shown; its rows are along `axis`, its columns behind them."""
        raise NotImplementedError


def _find_rows(space: Any) -> int | None:
    """The axis of an image's rows; None if the space is of no image."""
    if not isinstance(space, spaces.Box) or space.dtype != np.uint8 or len(space.shape) not in (2, 3):
        return None
    # As everywhere: the shorter of the two outer axes is that of the channels.
    return int(len(space.shape) == 3 and space.shape[0] < space.shape[2])


class Crop(_Pictures):
    """Shows the middle `height` x `width` of images, or from `top` and `left` on; square without a width."""

    def __init__(
        self, env: Env, height: int, width: int | None = None, top: int | None = None, left: int | None = None
    ) -> None:
        self._size, self._from = (height, height if width is None else width), (top, left)
        super().__init__(env, "Crop")

    def change(self, image: Array, axis: int) -> Array:
        cut = [slice(None)] * image.ndim
        for at, size, first in zip((axis, axis + 1), self._size, self._from, strict=True):
            first = (image.shape[at] - size) // 2 if first is None else first
            if first < 0 or first + size > image.shape[at]:
                raise EnvContractError(
                    f"Crop wants {size} pixels from {first} on, and there are {image.shape[at]} [--wrap]"
                )
            cut[at] = slice(first, first + size)
        return image[tuple(cut)]


class Pool(_Pictures):
    """Shows squares of `side` x `side` pixels of images as one, their mean rounded down; what is left over at
    the right and at the bottom is not shown."""

    def __init__(self, env: Env, side: int = 2) -> None:
        self._side = side
        super().__init__(env, "Pool")

    def change(self, image: Array, axis: int) -> Array:
        side, (height, width) = self._side, image.shape[axis : axis + 2]
        if side > min(height, width):
            raise EnvContractError(
                f"Pool makes one pixel of {side} x {side}, and there are {height} x {width} [--wrap]"
            )
        cut = image[(slice(None),) * axis + (slice(height // side * side), slice(width // side * side))]
        # Sums of slices that lie apart are several times faster than a mean over axes of a few pixels.
        total = np.zeros((), np.uint32)
        for row in range(side):
            for column in range(side):
                apart = (slice(row, None, side), slice(column, None, side))
                total = total + cut[(slice(None),) * axis + apart]
        mean: Array = (total // side**2).astype(np.uint8)
        return mean
