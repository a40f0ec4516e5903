"""Playing by hand: keys give orders to the selected units. An order holds until the next one."""

from __future__ import annotations

import numpy as np

from mission_gym.data import Array
from mission_gym_missions.capture.sim.layout import FIRST_HEADING, HOLD, NUM_ACTIONS, NUM_HEADINGS, TAG

COMMANDS_PER_S = 8.0  # twice real time

_COMPASS = {
    "up": (0, 1), "w": (0, 1), "down": (0, -1), "s": (0, -1),
    "left": (-1, 0), "a": (-1, 0), "right": (1, 0), "d": (1, 0),
}  # fmt: skip


class Keyboard:
    """Turns key names into actions int64 [A]."""

    commands_per_s = COMMANDS_PER_S

    def __init__(self, units: list[str]) -> None:
        self._units = units
        self._orders = np.full(len(units), HOLD, np.int64)
        self._chosen = list(range(len(units)))
        self._held: set[str] = set()
        self._tagging: set[int] = set()

    @property
    def help(self) -> str:
        chosen = "all" if len(self._chosen) == len(self._units) else self._units[self._chosen[0]]
        return f"{chosen}  |  1-{len(self._units)} unit, 0 all, arrows or WASD heading, space hold, T tag"

    def reset(self) -> None:
        """Drop all orders; the selection of units stays."""
        self._orders[:] = HOLD
        self._held.clear()
        self._tagging.clear()

    def press(self, key: str) -> None:
        """Handle a key press; two arrow keys together are a diagonal."""
        if key in _COMPASS:
            self._held.add(key)
            x, y = (sum(_COMPASS[held][axis] for held in self._held) for axis in (0, 1))
            if x or y:
                turn = np.arctan2(y, x) / (2 * np.pi) * NUM_HEADINGS
                self._orders[self._chosen] = FIRST_HEADING + round(turn) % NUM_HEADINGS
        elif key == "space":
            self._orders[self._chosen] = HOLD
        elif key == "t":
            self._tagging |= set(self._chosen)
        elif key == "0":
            self._chosen = list(range(len(self._units)))
        elif key.isdigit() and int(key) <= len(self._units):
            self._chosen = [int(key) - 1]

    def release(self, key: str) -> None:
        self._held.discard(key)

    def take_action(self, mask: Array) -> Array:
        """Return the next command. A tag keeps the motion; one that is impossible now is dropped."""
        action = self._orders.copy()
        legal = mask.reshape(len(self._units), NUM_ACTIONS)
        for unit in self._tagging:
            if legal[unit, TAG]:
                action[unit] = TAG
        self._tagging.clear()
        return np.where(legal[np.arange(len(action)), action], action, HOLD)
