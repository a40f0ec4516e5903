"""Compiled loops over the ring of the replay: storing rows, drawing transitions, summing n-step returns."""

from __future__ import annotations

from typing import NamedTuple

from mission_gym.compiled import entry
from mission_gym.data import Array


class RingRows(NamedTuple):
    """The arrays of a replay, [L, N, ...], or with both axes joined [L * N, ...]."""

    action: Array  # [..., K]
    reward: Array
    terminated: Array
    truncated: Array
    valid: Array
    final: Array  # number of the final observation in the side table, -1 for none


class BlockRows(NamedTuple):
    """The arrays of a block, [T, N, ...]."""

    action: Array
    reward: Array
    terminated: Array
    truncated: Array
    valid: Array


class GatheredRows(NamedTuple):
    """The n-step transitions of a draw, [B, ...]."""

    action: Array  # [B, K]
    reward: Array
    discount: Array
    ends: Array  # int64 [2, B]: slots of the observation and of the next one
    final: Array  # number of the next observation in the side table, -1 for none


@entry
def store_rows(ring: RingRows, total: int, block: BlockRows) -> tuple[int, int]:
    """Write a block [T, N] to the ring [L, N] from row number `total` on.

    Returns the number of freed entries of the side table, and the change in the number of valid transitions.
    The row after the last one already holds an observation, so its old transition is lost too.
    """
    length, freed, more = len(ring.reward), 0, 0
    for t in range(len(block.reward)):
        row, fresh = (total + t) % length, (total + t + 1) % length
        for s in range(block.reward.shape[1]):
            freed += ring.final[fresh, s] >= 0
            more += int(block.valid[t, s]) - int(ring.valid[fresh, s])
            ring.final[fresh, s] = -1
            ring.valid[fresh, s] = False
            for k in range(block.action.shape[2]):
                ring.action[row, s, k] = block.action[t, s, k]
            ring.reward[row, s] = block.reward[t, s]
            ring.terminated[row, s] = block.terminated[t, s]
            ring.truncated[row, s] = block.truncated[t, s]
            ring.valid[row, s] = block.valid[t, s]
    return freed, more


@entry
def draw_ids(noise: Array, valid: Array, first: int, count: int, ids: Array) -> int:
    """Ids from `first` to `first + count`, for noise [B] in [0, 1). Writes the valid ones to the front of
    `ids` and returns their number."""
    num_good, size = 0, len(valid)
    for i in range(len(noise)):
        chosen = first + min(int(noise[i] * count), count - 1)
        if valid[chosen % size]:
            ids[num_good] = chosen
            num_good += 1
    return num_good


@entry
def sum_steps(
    ring: RingRows, num_columns: int, n_step: int, gamma: float, ids: Array, out: GatheredRows
) -> int:
    """R = sum gamma^j r_j over at most n steps from each id on, up to the end of the episode.

    ring: with joined axes. Writes the first action, R, the discount of the next value (0 if terminated), the
    slots of both observations and the side table's number of the next one; returns how many are in the side
    table. An
    invalid transition is not entered: the value of its observation follows instead.
    """
    size, num_finals = len(ring.reward), 0
    for i in range(len(ids)):
        slot, total, factor, last = ids[i] % size, 0.0, 1.0, -1
        out.ends[0, i] = slot
        for k in range(ring.action.shape[1]):
            out.action[i, k] = ring.action[slot, k]
        for _ in range(n_step):
            if not ring.valid[slot]:
                break
            total += factor * ring.reward[slot]
            factor = 0.0 if ring.terminated[slot] else factor * gamma
            last = ring.final[slot]
            ended = ring.terminated[slot] or ring.truncated[slot]
            slot += num_columns
            if slot >= size:
                slot -= size
            if ended:
                break
        out.reward[i], out.discount[i], out.ends[1, i], out.final[i] = total, factor, slot, last
        num_finals += last >= 0
    return num_finals


@entry
def sum_rewards(reward: Array, ended: Array, valid: Array, gamma: float, sums: Array, moments: Array) -> None:
    """R_t = r_t + gamma R_{t-1} in every column of [T, N], starting from `sums` [N]; an end resets it to 0.

    moments: count, mean and sum of squared differences from the mean (Welford), updated in place.
    """
    for t in range(len(reward)):
        for s in range(reward.shape[1]):
            if valid[t, s]:
                sums[s] = reward[t, s] + gamma * sums[s]
                moments[0] += 1.0
                off = sums[s] - moments[1]
                moments[1] += off / moments[0]
                moments[2] += off * (sums[s] - moments[1])
            if ended[t, s] or not valid[t, s]:
                sums[s] = 0.0
