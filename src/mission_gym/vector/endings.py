"""What is kept of episodes that ended, and where a batch shows it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from mission_gym.data import Array, Episode, Leaves
from mission_gym.vector.rows import Rows


class Ended(NamedTuple):
    """What is kept of an episode while the next one begins; of agents that ended (`agents`, by their places)
    also while theirs goes on without them. Then `obs` and `mask` have a row for each."""

    episode: Episode | None
    obs: Leaves
    mask: Array | None
    info: dict[str, Any]
    agents: Sequence[int] = ()


def keep_last(rows: Rows, ended: Iterable[Ended]) -> None:
    """Write what was seen last, one ending after the other; of agents a row for each."""
    first = 0
    for over in ended:
        places: int | slice = slice(first, first + len(over.agents)) if over.agents else first
        for array, leaf in zip(rows.final_obs, over.obs, strict=True):
            array[places] = leaf
        if rows.final_mask is not None:
            rows.final_mask[places] = over.mask
        first += len(over.agents) or 1
