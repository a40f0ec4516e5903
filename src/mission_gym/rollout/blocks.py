"""Blocks [T, S] as segments fill them: made, divided by columns, copied, cut, sorted, packed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mission_gym.data import Array, Block, EnvSpec, Episode, Final, Leaves
from mission_gym.rollout.frames import read_obs, stack_size

_ROW_FIELDS = ("action", "log_prob", "reward", "terminated", "truncated", "valid")  # each [T, S, ...]
_COLUMN_FIELDS = ("env_ids", "version", "filled")  # each [S]


def make_block(
    spec: EnvSpec,
    num_steps: int,
    num_rows: int,
    allocate: Callable[[Any, Any], Array] = np.zeros,
    state: Leaves = (),
) -> Block:
    """An empty block for these sizes, in memory of the allocator's choice. state: like that of the policy.

    Fill counts, versions and environments are never shared: they tell what a process knows of the columns.
    """
    shape = (num_steps, num_rows)
    return Block(
        obs=tuple(
            allocate((num_steps + leaf.frames, num_rows, *leaf.stored_shape), leaf.dtype)
            for leaf in spec.leaves
        ),
        mask=allocate((num_steps + 1, num_rows, spec.mask_size), np.bool_) if spec.mask_size else None,
        action=allocate((*shape, spec.action.num_stored), spec.action.stored_dtype),
        log_prob=allocate(shape, np.float32),
        reward=allocate(shape, np.float32),
        terminated=allocate(shape, np.bool_),
        truncated=allocate(shape, np.bool_),
        valid=allocate(shape, np.bool_),
        env_ids=np.arange(num_rows, dtype=np.int64) // spec.num_agents,
        version=np.zeros(num_rows, np.int64),
        filled=np.zeros(num_rows, np.int64),
        state=tuple(allocate((num_rows, *array.shape[1:]), array.dtype) for array in state),
    )


def part_of(block: Block, num_steps: int, columns: slice) -> Block:
    """The first `num_steps` rows of some columns of a block, as views; its lists are new."""
    return Block(
        obs=tuple(leaf[: num_steps + stack_size(block, leaf), columns] for leaf in block.obs),
        mask=None if block.mask is None else block.mask[: num_steps + 1, columns],
        env_ids=block.env_ids[columns],
        version=block.version[columns],
        filled=block.filled[columns],
        state=tuple(array[columns] for array in block.state),
        **{name: getattr(block, name)[:num_steps, columns] for name in _ROW_FIELDS},
    )


def copy_columns(source: Block, columns: slice, target: Block, first: int) -> None:
    """Copy whole columns, without their lists, to the places of another block from `first` on."""
    places = slice(first, first + columns.stop - columns.start)
    theirs, whole = _rows_of(source), _columns_of(source)
    for name, mine in _rows_of(target).items():
        mine[:, places] = theirs[name][:, columns]
    for name, mine in _columns_of(target).items():
        mine[places] = whole[name][columns]


def _rows_of(block: Block) -> dict[str, Array]:
    """The arrays over time by name: what is shown [T + 1 or more, S, ...], what is made of it [T, S, ...]."""
    shown = {f"obs/{i}": leaf for i, leaf in enumerate(block.obs)}
    if block.mask is not None:
        shown["mask"] = block.mask
    return shown | {name: getattr(block, name) for name in _ROW_FIELDS}


def _columns_of(block: Block) -> dict[str, Array]:
    """The arrays [S, ...] by name."""
    state = {f"state/{i}": array for i, array in enumerate(block.state)}
    return state | {name: getattr(block, name) for name in _COLUMN_FIELDS}


def move_episodes(source: Block, columns: slice, target: Block, first: int) -> None:
    """Bring the finals of some columns, and all episodes, to another block whose columns from `first` on they
    are."""
    for final in source.finals:
        if columns.start <= final.column < columns.stop:
            target.finals.append(final._replace(column=first + final.column - columns.start))
    target.episodes += source.episodes
    source.episodes = []


def block_bytes(spec: EnvSpec, num_steps: int, num_rows: int) -> int:
    """The memory of one block."""
    shown = sum((num_steps + leaf.frames) * (leaf.size_bytes // leaf.frames) for leaf in spec.leaves)
    made = num_steps * (8 * spec.action.num_stored + 11)
    return num_rows * (shown + (num_steps + 1) * spec.mask_size + made)


def keep_state(block: Block, memory: Leaves, columns: Any) -> None:
    """Store what the policy remembers where these columns begin."""
    for stored, mine in zip(block.state, memory, strict=True):
        stored[columns] = mine[columns]


def keep_final(block: Block, t: int, column: int, obs: Leaves, mask: Array | None) -> None:
    """Keep the last observation and mask of an episode that was truncated at row t."""
    obs, mask = tuple(leaf.copy() for leaf in obs), None if mask is None else mask.copy()
    block.finals.append(Final(t, column, obs, mask))


def _shown(block: Block, t: int, column: int) -> tuple[Leaves, Array | None]:
    """What a column shows at t."""
    mask = None if block.mask is None else block.mask[t, column]
    return tuple(leaf[0] for leaf in read_obs(block, t, slice(column, column + 1))), mask


def clear_block(block: Block) -> None:
    """Make the block ready to be filled anew."""
    block.filled[:] = 0
    block.finals, block.episodes = [], []


def clear_columns(block: Block, columns: slice) -> None:
    """Empty some columns, with what the lists have of them."""
    block.filled[columns] = 0
    block.finals = [each for each in block.finals if not columns.start <= each.column < columns.stop]
    gone = set(block.env_ids[columns].tolist())
    block.episodes = [episode for episode in block.episodes if episode.env_id not in gone]


def truncate_column(block: Block, end: int, column: int) -> None:
    """End the running episode of a column before row `end`, for an environment that could not be brought
    back: its last transition bootstraps from the last observation that was seen."""
    t = end - 1
    if t < 0 or block.terminated[t, column] or block.truncated[t, column]:
        return
    keep_final(block, t, column, *_shown(block, t + 1, column))
    block.truncated[t, column] = True


def invalidate_transition(block: Block, t: int, column: int) -> None:
    """Mark a transition as lost in a failure; the one before bootstraps from the last good observation."""
    last = _shown(block, t, column)  # before it is told that another episode begins
    truncate_column(block, t, column)
    block.action[t, column] = block.log_prob[t, column] = block.reward[t, column] = 0
    block.valid[t, column] = block.terminated[t, column] = False
    block.truncated[t, column] = True
    if block.mask is not None:
        block.mask[t, column] = True  # the blank action must be legal
    keep_final(block, t, column, *last)


def sort_finals(block: Block) -> None:
    """Bring the final observations into the order of (t, s), in which one segment meets them."""
    block.finals.sort(key=lambda final: (final.t, final.column))


def sort_episodes(block: Block) -> None:
    """Bring the episodes of a block of all environments into the order in which one segment of all meets
    them: by row, then by column. Segments report them in any order. Those of environments of several agents,
    whose flags do not tell when the last one was gone, are ordered by environment."""
    if len(np.unique(block.env_ids)) < block.num_columns:
        block.episodes.sort(key=lambda episode: (episode.env_id, episode.number))
        return
    queues: dict[int, list[Episode]] = {}
    for episode in sorted(block.episodes, key=lambda episode: (episode.env_id, episode.number)):
        queues.setdefault(episode.env_id, []).append(episode)
    has_data = np.arange(block.num_steps)[:, None] < block.filled
    ended = (block.terminated | block.truncated) & has_data
    ordered = [queues[row].pop(0) for _, row in np.argwhere(ended).tolist() if queues.get(row)]
    block.episodes = ordered + [episode for queue in queues.values() for episode in queue]


def pack_block(block: Block, prefix: str = "block") -> dict[str, Array]:
    """The filled part of a block as arrays, for a checkpoint (episodes aside)."""
    t = int(block.filled.max())
    arrays = {name: array[: t + len(array) - block.num_steps] for name, array in _rows_of(block).items()}
    arrays |= _columns_of(block)
    if block.finals:
        arrays["final_at"] = np.array([(final.t, final.column) for final in block.finals], np.int64)
        for i, leaf in enumerate(zip(*(final.obs for final in block.finals), strict=True)):
            arrays[f"final/{i}"] = np.stack(leaf)
        masks = [final.mask for final in block.finals if final.mask is not None]
        if masks:
            arrays["final_mask"] = np.stack(masks)
    return {f"{prefix}/{name}": np.ascontiguousarray(array) for name, array in arrays.items()}


def unpack_block(block: Block, arrays: dict[str, Array], prefix: str = "block") -> None:
    """Put a packed block back, each column up to its filled row."""
    t = len(arrays[f"{prefix}/reward"])
    for name, array in _rows_of(block).items():
        given = arrays[f"{prefix}/{name}"]
        if given.ndim > array.ndim:  # of a version whose blocks held whole stacks of frames
            given = np.concatenate([given[0].swapaxes(0, 1), given[1:, :, -1]])
        array[: t + len(array) - block.num_steps] = given
    for name in _COLUMN_FIELDS:  # before columns had counts of their own, all were filled alike
        getattr(block, name)[:] = arrays.get(f"{prefix}/{name}", t)
    for i, array in enumerate(block.state):
        array[:] = arrays[f"{prefix}/state/{i}"]
    if f"{prefix}/final_at" in arrays:
        places = arrays[f"{prefix}/final_at"].tolist()
        leaves = [arrays[f"{prefix}/final/{i}"] for i in range(len(block.obs))]
        masks = arrays.get(f"{prefix}/final_mask", [None] * len(places))
        block.finals = [
            Final(t, column, tuple(np.array(leaf[e]) for leaf in leaves), masks[e])
            for e, (t, column) in enumerate(places)
        ]
