"""The replay against numbers computed by hand, and against lists that a plain loop walks."""

from __future__ import annotations

import numpy as np
import pytest

from mission_gym.actions import ActionSpec
from mission_gym.data import Array, Block, EnvSpec, LeafSpec
from mission_gym.learner.replay import Replay, ReplayLayout, Sampled
from mission_gym.rollout.blocks import add_final, invalidate_transition, make_block, truncate_column

CHOICE = ActionSpec("categories", (), "int64", nvec=(3,), start=(0,))
VECTOR = LeafSpec("", (2,), "float32", "vector")
PICTURE = LeafSpec("", (4, 9, 9), "uint8", "image", frames=4)


def ends_of(got: Sampled) -> Array:
    """The observations and the next ones [2, B, ...] of the first leaf."""
    return got.both[0].reshape(2, len(got.action), *got.both[0].shape[1:])


class Stream:
    """One environment that shows (episode, step), ends at random, and remembers everything."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.episode, self.age = seed * 1000, 0
        self.steps: list[dict[str, object]] = []

    def obs(self) -> Array:
        return np.array([self.episode, self.age], np.float32)

    def mask(self) -> Array:
        return np.array([True, self.age % 2 == 0, self.episode % 2 == 0])


def fill_block(streams: list[Stream], num_steps: int, *, masked: bool, failures: bool) -> Block:
    """A block as a collector leaves it, with ends of both kinds and lost transitions."""
    spec = EnvSpec("toy", (VECTOR,), CHOICE, None, None, mask_source="info" if masked else "")
    block = make_block(spec, num_steps, len(streams))
    block.valid[:] = True
    for t in range(num_steps + 1):
        for row, stream in enumerate(streams):
            block.obs[0][t, row] = stream.obs()
            if block.mask is not None:
                block.mask[t, row] = stream.mask()
            if t == num_steps:
                continue
            rng = stream.rng
            if failures and rng.random() < 0.1:
                invalidate_transition(block, t, row)
                if stream.steps:
                    stream.steps[-1]["broken"] = True
                stream.steps.append({"valid": False, "obs": stream.obs()})
                stream.episode, stream.age = stream.episode + 1, 0
                continue
            step: dict[str, object] = {"valid": True, "obs": stream.obs(), "action": int(rng.integers(3))}
            step |= {"reward": float(rng.normal()), "terminated": bool(rng.random() < 0.1)}
            step["truncated"] = bool(rng.random() < 0.15)
            stream.age += 1
            step |= {"next": stream.obs(), "next_mask": stream.mask()}
            stream.steps.append(step)
            block.action[t, row], block.reward[t, row] = step["action"], step["reward"]
            block.terminated[t, row], block.truncated[t, row] = step["terminated"], step["truncated"]
            if step["truncated"] and not step["terminated"]:
                add_final(block, t, row, (stream.obs(),), stream.mask() if masked else None)
            if step["terminated"] or step["truncated"]:
                stream.episode, stream.age = stream.episode + 1, 0
    block.filled[:] = num_steps
    return block


def walk(steps: list[dict[str, object]], start: int, n_step: int, gamma: float) -> tuple[float, float, Array]:
    """Return, discount and next observation of one transition, step by step."""
    total, discount = 0.0, 1.0
    last = steps[start]
    for step in steps[start : start + n_step]:
        if not step["valid"]:
            break
        last = step
        total += discount * float(step["reward"])  # type: ignore[arg-type]
        discount *= 0.0 if step["terminated"] else gamma
        if step["terminated"] or step["truncated"]:
            break
    return total, discount, np.asarray(last["next"])


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("failures", [False, True])
@pytest.mark.parametrize("num_steps", [1, 4])
def test_every_transition_equals_a_plain_walk(n_step: int, failures: bool, num_steps: int) -> None:
    num_envs, gamma = 3, 0.9
    replay = Replay(ReplayLayout((VECTOR,), CHOICE, 3, num_envs, 24, n_step, gamma, episode_steps=1))
    streams = [Stream(seed) for seed in range(1, num_envs + 1)]
    drawable: set[int] = set()
    for _ in range(60 // num_steps):
        stored = replay.store(fill_block(streams, num_steps, masked=True, failures=failures))
        lost, ripe = replay.slots_in(stored.lost), replay.slots_in(stored.eligible, valid=True)
        low, high = replay.window
        assert high == replay.total - n_step + 1
        assert low == max(0, replay.total - 8)
        drawable = drawable - set(lost.tolist()) | set(ripe.tolist())
        rows = range(low, high)
        assert drawable == {
            int(replay.slots_of(np.array(row * num_envs + column)))
            for row in rows
            for column in range(num_envs)
            if streams[column].steps[row]["valid"]
        }
        for row in rows:
            for column in range(num_envs):
                steps = streams[column].steps
                if not steps[row]["valid"]:
                    continue
                got = replay.gather(np.array([row * num_envs + column]))
                total, discount, after = walk(steps, row, n_step, gamma)
                np.testing.assert_array_equal(ends_of(got)[0][0], steps[row]["obs"])
                assert got.action.tolist() == [[steps[row]["action"]]]
                assert got.reward[0] == pytest.approx(total, abs=1e-6)
                assert got.discount[0] == pytest.approx(discount, abs=1e-6)
                if discount:
                    np.testing.assert_array_equal(ends_of(got)[1][0], after)
                    assert got.next_mask is not None
                    expected = [True, after[1] % 2 == 0, after[0] % 2 == 0]
                    np.testing.assert_array_equal(got.next_mask[0], expected)


def test_three_steps_by_hand() -> None:
    """gamma 0.5, rewards 1 2 4 8 16; row 0 is terminated at t = 1, row 1 truncated at t = 2."""
    spec = EnvSpec("toy", (VECTOR,), CHOICE, None, None)
    block = make_block(spec, 5, 2)
    block.obs[0][..., 0] = np.arange(6)[:, None]
    block.obs[0][..., 1] = np.arange(2)
    block.reward[:] = np.array([1, 2, 4, 8, 16])[:, None]
    block.valid[:] = True
    block.terminated[1, 0] = block.truncated[2, 1] = True
    add_final(block, 2, 1, (np.array([77, 1], np.float32),), None)
    block.filled[:] = 5
    replay = Replay(ReplayLayout((VECTOR,), CHOICE, 0, 2, 100, n_step=3, gamma=0.5))
    ripe = replay.slots_in(replay.store(block).eligible)
    assert ripe.tolist() == [0, 1, 2, 3, 4, 5]  # rows 0 to 2 of 5: the others have not made their three steps
    got = replay.gather(np.arange(6))
    #                     t=0: 1+1 | 1+1+1, t=1: 2 | 2+2, t=2: 4+4+4 | 4
    assert got.reward.tolist() == [2.0, 3.0, 2.0, 4.0, 12.0, 4.0]
    assert got.discount.tolist() == [0.0, 0.125, 0.0, 0.25, 0.125, 0.5]
    assert ends_of(got)[1][[1, 3, 5], 0].tolist() == [77.0, 77.0, 77.0]
    assert ends_of(got)[1][4, 0] == 5.0


def test_only_valid_transitions_are_drawn_and_all_of_them_equally() -> None:
    replay = Replay(ReplayLayout((VECTOR,), CHOICE, 0, 2, 12, n_step=2))
    streams = [Stream(1), Stream(2)]
    for _ in range(5):
        replay.store(fill_block(streams, 3, masked=False, failures=True))
    low, high = replay.window
    allowed = [
        row * 2 + column
        for row in range(low, high)
        for column in (0, 1)
        if streams[column].steps[row]["valid"]
    ]
    assert len(allowed) < (high - low) * 2
    drawn = replay.draw(np.random.default_rng(0), 20_000)
    found, counts = np.unique(drawn, return_counts=True)
    assert found.tolist() == allowed
    np.testing.assert_allclose(counts / 20_000, 1 / len(allowed), rtol=0.1)


def test_ids_tell_what_was_overwritten() -> None:
    replay = Replay(ReplayLayout((VECTOR,), CHOICE, 0, 2, 10))
    streams = [Stream(1), Stream(2)]
    replay.store(fill_block(streams, 5, masked=False, failures=False))
    ids = np.arange(10)
    assert replay.holds(ids).all()
    assert replay.ids_of(replay.slots_of(ids)).tolist() == ids.tolist()
    replay.store(fill_block(streams, 3, masked=False, failures=False))
    assert replay.holds(ids).tolist() == [False] * 6 + [True] * 4
    assert replay.ids_of(replay.slots_of(ids))[:6].min() >= 10


def test_an_environment_that_was_started_anew_ends_its_episode() -> None:
    """Between two blocks, as after a resume that could not bring it back."""
    replay = Replay(ReplayLayout((VECTOR,), CHOICE, 0, 2, 20, gamma=0.5))
    streams = [Stream(1), Stream(2)]
    block = fill_block(streams, 2, masked=False, failures=False)
    block.terminated[:], block.truncated[:], block.finals = False, False, []
    replay.store(block)
    last = block.obs[0][2, 1].copy()
    streams[1].episode, streams[1].age = 9999, 0
    replay.store(fill_block(streams, 2, masked=False, failures=False))
    got = replay.gather(np.array([2, 3]))
    np.testing.assert_array_equal(ends_of(got)[1], [block.obs[0][2, 0], last])
    assert got.discount.tolist() == [0.5, 0.5]


def stack_at(frames: list[Array], starts: set[int], number: int) -> Array:
    """The last four frames of an episode, the first repeated; `starts` are the first frames' numbers."""
    begin = max(start for start in starts if start <= number)
    return np.stack([frames[max(begin, number - back)] for back in range(3, -1, -1)])


def stacked_block(frames: list[Array], starts: set[int], first: int, num_steps: int) -> Block:
    block = make_block(EnvSpec("toy", (PICTURE,), CHOICE, None, None), num_steps, 1)
    block.valid[:] = True
    block.obs[0][:4, 0] = stack_at(frames, starts, first)
    block.obs[0][4:, 0] = frames[first + 1 : first + num_steps + 1]
    block.terminated[:, 0] = [first + t + 1 in starts for t in range(num_steps)]
    block.filled[:] = num_steps
    return block


def test_frames_are_stored_once_and_stacks_do_not_cross_episodes() -> None:
    rng = np.random.default_rng(0)
    frames = [rng.integers(0, 256, (9, 9), np.uint8) for _ in range(41)]
    starts = {0, 2, 9, 10, 23, 31}
    replay = Replay(ReplayLayout((PICTURE,), CHOICE, 0, 1, 16))
    assert replay.obs[0].shape == (20, 1, 9, 9)
    for first in range(0, 40, 4):
        replay.store(stacked_block(frames, starts, first, 4))
        low, high = replay.window
        for row in range(low, high):
            got = replay.gather(np.array([row]))
            np.testing.assert_array_equal(ends_of(got)[0][0], stack_at(frames, starts, row - 3))
            if got.discount[0]:
                np.testing.assert_array_equal(ends_of(got)[1][0], stack_at(frames, starts, row - 2))
    assert high - low == 16


def test_actions_of_several_numbers_are_stored_in_their_own_dtype() -> None:
    box = ActionSpec("box", (2,), "float32", low=(-1.0, -1.0), high=(1.0, 1.0))
    replay = Replay(ReplayLayout((VECTOR,), box, 0, 2, 20))
    block = make_block(EnvSpec("toy", (VECTOR,), box, None, None), 4, 2)
    block.action[:] = np.random.default_rng(0).normal(size=block.action.shape)
    block.valid[:] = True
    replay.store(block)
    sampled = replay.gather(np.arange(8))
    assert sampled.action.dtype == np.float32
    np.testing.assert_array_equal(sampled.action, block.action.reshape(8, 2))


@pytest.mark.parametrize("leaf", [VECTOR, PICTURE], ids=["vector", "frames"])
def test_size_is_predicted(leaf: LeafSpec) -> None:
    layout = ReplayLayout((leaf,), CHOICE, 3, 5, 1000)
    replay = Replay(layout)
    arrays = [*replay.obs, replay.mask, replay.action, replay.reward, replay.terminated, replay.truncated]
    arrays += [replay.valid, replay.final, replay.age, *replay.finals._obs, replay.finals._mask]
    assert sum(array.nbytes for array in arrays if array is not None) == layout.size_bytes


def test_a_saved_replay_goes_on_bit_for_bit() -> None:
    layout = ReplayLayout((VECTOR,), CHOICE, 3, 2, 20, n_step=2, episode_steps=1)
    one, other = Replay(layout), Replay(layout)
    streams = [Stream(1), Stream(2)]
    for number in range(30):
        block = fill_block(streams, 3, masked=True, failures=True)
        if number in (2, 20):
            other = Replay(layout)
            other.load({name: array.copy() for name, array in one.arrays().items()})
        one.store(block)
        other.store(block)
    for name, array in one.arrays().items():
        np.testing.assert_array_equal(array, other.arrays()[name], err_msg=name)


def test_a_row_cut_in_the_block_bootstraps_from_what_it_showed() -> None:
    replay = Replay(ReplayLayout((VECTOR,), CHOICE, 3, 1, 20, gamma=0.5))
    block = fill_block([Stream(1)], 3, masked=True, failures=False)
    block.terminated[:], block.truncated[:] = False, False
    block.finals = []
    truncate_column(block, 3, 0)
    replay.store(block)
    got = replay.gather(np.array([2]))
    np.testing.assert_array_equal(ends_of(got)[1][0], block.obs[0][3, 0])
    assert got.next_mask is not None
    assert block.mask is not None
    np.testing.assert_array_equal(got.next_mask[0], block.mask[3, 0])
