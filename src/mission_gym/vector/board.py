"""The shared memory between a vector and its workers, carved alike on both sides.

`rows` is what the last steps gave, `last` the observations before them (the last good ones if a worker
dies), `beats` what each environment is doing now, `gauges` what is counted of those that are stepped side by
side, `journal` the actions of every running episode.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from mission_gym.data import Array, EnvSpec, Leaves
from mission_gym.vector.gauges import NUM_GAUGES
from mission_gym.vector.rows import Allocate, Rows, make_leaves, make_rows

_JOURNAL_STEPS = 4096
_JOURNAL_BYTES = 8 << 20
RESETTING = -1  # in place of the episode step


class Heartbeat(NamedTuple):
    """What an environment is at: its worker counts `beats` up with every step and reset, 0 where it rests for
    certain; `step` is RESETTING in a reset, `stage` -1 without a curriculum."""

    beats: int
    env_id: int
    episode: int
    seed: int
    step: int
    stage: int


@dataclass(slots=True)
class SharedArrays:
    """Arrays over all environments of a vector; `shape` is that of one's step (`EnvSpec.step_shape`)."""

    rows: Rows
    last: Leaves
    actions: Array  # [B, *shape], in the environment's units; objects go with the command instead
    beats: Array  # int64 [B, 8], the first ones as in Beat
    gauges: Array  # int64 [B, NUM_GAUGES], see `gauges`
    journal: Array  # [B, J, *shape]
    pause: Array  # int64 [1]: not 0 asks collecting workers to stop after their running steps
    stage: Array  # int64 [1]: of the curriculum, that the run is in

    def beat(self, env_id: int) -> Heartbeat:
        return read_heartbeat(self.beats[env_id])

    def actions_of(self, env_id: int, steps: int) -> list[Any] | None:
        """The actions of the running episode, the one under way included; None if it is too long."""
        if steps >= self.journal.shape[1]:  # of objects no journal is kept
            return None
        actions: list[Any] = self.journal[env_id, : steps + 1].tolist()
        return actions


def carve_shared_arrays(allocate: Allocate, spec: EnvSpec, num_envs: int) -> SharedArrays:
    """Lay the board out; the order of the arrays is the format."""
    action, shape = spec.action, spec.step_shape
    one_action = int(np.prod(shape, dtype=np.int64)) * np.dtype(action.dtype).itemsize
    rows = make_rows(spec, num_envs, allocate)
    kept = max(1, min(_JOURNAL_STEPS, _JOURNAL_BYTES // (num_envs * max(one_action, 1))))
    for_actions = allocate
    if action.kind == "object":
        kept, for_actions = 0, np.zeros
    return SharedArrays(
        rows=rows,
        last=make_leaves(spec, rows.reward.shape, allocate),
        actions=for_actions((num_envs, *shape), action.dtype),
        beats=allocate((num_envs, 8), np.int64),
        gauges=allocate((num_envs, NUM_GAUGES), np.int64),
        journal=for_actions((num_envs, kept, *shape), action.dtype),
        pause=allocate((1,), np.int64),
        stage=allocate((1,), np.int64),
    )


def read_heartbeat(row: Array) -> Heartbeat:
    """A row of `beats`."""
    return Heartbeat(*row[: len(Heartbeat._fields)].tolist())
