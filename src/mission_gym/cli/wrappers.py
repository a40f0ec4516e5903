"""`wrappers`: the wrappers that have a short name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mission_gym.cli.flags import AsJson, parse
from mission_gym.cli.output import show


@dataclass(kw_only=True)
class WrappersFlags:
    """Flags of `wrappers`."""

    json: AsJson = False


def wrappers(args: Sequence[str]) -> None:
    """`mission-gym wrappers`."""
    flags = parse(WrappersFlags, args, "wrappers", "The wrappers that --wrap knows by a short name.")
    from mission_gym.env.wrapper_names import list_short
    from mission_gym.report.tables import view_wrappers

    show(list_short(), as_json=flags.json, view=view_wrappers)
