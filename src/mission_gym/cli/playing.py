"""`play`: an environment in a window, by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro

from mission_gym.cli.flags import EnvFlags, parse
from mission_gym.cli.warming import compile_beside
from mission_gym.report.screen.streams import say


@dataclass(kw_only=True)
class PlayFlags(EnvFlags):
    """Flags of `play`."""

    seed: Annotated[int, tyro.conf.arg(metavar="N", help="Seed of the first episode.")] = 0


def play(args: Sequence[str]) -> None:
    """`mission-gym play ENV`."""
    flags = parse(PlayFlags, args, "play", "Play an environment with the keyboard, in a window.")
    env = flags.config().env
    compile_beside(env.env_id)
    from mission_gym.env.factory import EnvRequest
    from mission_gym.video.play import play_by_hand

    play_by_hand(EnvRequest(env.env_id, dict(env.env_kwargs), env.wrap), flags.seed, say)
