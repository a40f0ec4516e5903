"""Loops over the ring of the replay, compiled: rows stored, transitions drawn, n-step returns summed."""

from __future__ import annotations

from mission_gym.compiled import entry
from mission_gym.data import Array


@entry
def store_rows(
    action: Array,
    reward: Array,
    terminated: Array,
    truncated: Array,
    valid: Array,
    final: Array,
    total: int,
    given_action: Array,
    given_reward: Array,
    given_terminated: Array,
    given_truncated: Array,
    given_valid: Array,
) -> tuple[int, int]:
    """Write the columns [T, S] of a block to the ring [L, S] from row number `total` on.

    Returns the places in the side table that were freed, and how many more transitions are valid. The row
    behind the last shows an observation already: its old transition is gone, too.
    """
    num_rows, freed, more = len(reward), 0, 0
    for t in range(len(given_reward)):
        row, fresh = (total + t) % num_rows, (total + t + 1) % num_rows
        for s in range(given_reward.shape[1]):
            freed += final[fresh, s] >= 0
            more += int(given_valid[t, s]) - int(valid[fresh, s])
            final[fresh, s] = -1
            valid[fresh, s] = False
            action[row, s] = given_action[t, s, 0]
            reward[row, s] = given_reward[t, s]
            terminated[row, s] = given_terminated[t, s]
            truncated[row, s] = given_truncated[t, s]
            valid[row, s] = given_valid[t, s]
    return freed, more


@entry
def draw_ids(noise: Array, valid: Array, first: int, count: int, ids: Array) -> int:
    """Ids out of `count` from `first` on, for noise [N] in [0, 1); writes the valid ones to the front of
    `ids` and returns how many they are."""
    num_good, size = 0, len(valid)
    for i in range(len(noise)):
        chosen = first + min(int(noise[i] * count), count - 1)
        if valid[chosen % size]:
            ids[num_good] = chosen
            num_good += 1
    return num_good


@entry
def sum_steps(
    actions: Array,
    rewards: Array,
    terminated: Array,
    truncated: Array,
    valid: Array,
    finals: Array,
    num_envs: int,
    n_step: int,
    gamma: float,
    ids: Array,
    action: Array,
    reward: Array,
    discount: Array,
    ends: Array,
    final: Array,
) -> int:
    """R = sum gamma^j r_j over at most n steps from each id on, which ends with the episode.

    The first six are the replay's, flat. Writes the first action, R, the discount of what follows (0 where
    terminated), to `ends` [2, N] the slots of the first observation and of the one that follows, and the
    latter's number in the side table, -1 for none; returns how many have one. A transition that is not valid
    is not entered: the value of its observation takes over.
    """
    size, num_finals = len(rewards), 0
    for i in range(len(ids)):
        place, total, factor, last = ids[i] % size, 0.0, 1.0, -1
        ends[0, i], action[i] = place, actions[place]
        for _ in range(n_step):
            if not valid[place]:
                break
            total += factor * rewards[place]
            factor = 0.0 if terminated[place] else factor * gamma
            last = finals[place]
            ended = terminated[place] or truncated[place]
            place += num_envs
            if place >= size:
                place -= size
            if ended:
                break
        reward[i], discount[i], ends[1, i], final[i] = total, factor, place, last
        num_finals += last >= 0
    return num_finals


@entry
def sum_rewards(reward: Array, ended: Array, valid: Array, gamma: float, sums: Array, moments: Array) -> None:
    """R_t = r_t + gamma R_{t-1} in every column of [T, S], from `sums` [S] on, which begin anew at an end.

    moments: their count, mean and sum of squares around it (Welford)."""
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
