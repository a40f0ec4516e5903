"""What a game on the other side of a bridge does wrong."""

from __future__ import annotations

from mission_gym.errors import EnvFailure


class BridgeError(EnvFailure):
    """The game's process ended, hung, or broke the protocol; the message says which message it was."""


class GameError(EnvFailure):
    """One game told of an error; the others of its process go on."""
