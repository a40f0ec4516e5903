"""Random streams as pure functions of (seed, name, counters): nothing to save, nothing to restore.

Every episode has its own seed below 2**31. Training, model selection and the final report use
disjoint ranges, so an evaluation never plays an episode that was trained on. The evaluation suites
do not depend on the run's seed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

Stream = Literal["train", "select", "report"]
_RANGES: dict[Stream, tuple[int, int]] = {
    "train": (0, 1 << 30),
    "select": (1 << 30, 1 << 29),
    "report": ((1 << 30) + (1 << 29), 1 << 29),
}
_WORD = (1 << 64) - 1
_KEYS_AHEAD = 64  # made at once: each call of NumPy costs as much as its work on that many


def _digest(*parts: int | str) -> int:
    text = "/".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest(), "little")


def episode_seed(run_seed: int, stream: Stream, env_id: int, episode: int) -> int:
    """The seed of one episode: a hash, inside the range of its stream."""
    first, count = _RANGES[stream]
    return first + _digest(run_seed, stream, env_id, episode) % count


@dataclass(slots=True)
class TrainingSeeds:
    """The seed of each training episode, by environment and number; workers receive a copy.

    episode_offset: the number of the first episode; a branch starts after its parent's episodes.
    """

    run_seed: int
    episode_offset: int = 0

    def __call__(self, env_id: int, episode: int) -> int:
        return episode_seed(self.run_seed, "train", env_id, episode + self.episode_offset)


def suite_seeds(stream: Literal["select", "report"], episodes: int) -> list[int]:
    """The fixed seeds of an evaluation suite; a longer suite begins with the shorter one."""
    return [episode_seed(0, stream, 0, number) for number in range(episodes)]


def choose_earlier(seed: int, stage: int, share: float) -> int:
    """The stage of an episode with this seed while the run is in `stage`: that, or for a share of the
    episodes one of those before it, each as likely."""
    if not stage or not share:
        return stage
    drawn = _digest("stage", seed)
    is_earlier = (drawn & _WORD) < share * (_WORD + 1)
    return (drawn >> 64) % stage if is_earlier else stage


def generator(*parts: int | str) -> np.random.Generator:
    """A NumPy generator for a named place, e.g. `generator(seed, "act", group, block_number)`."""
    return np.random.Generator(np.random.Philox(_digest(*parts)))


def torch_seed(*parts: int | str) -> int:
    """A seed for torch's own generator at a named place."""
    return _digest(*parts) % (1 << 63)


class Streams:
    """Named streams for a place that needs a short one often: one generator, put to the beginning of each.

    A tenth of the time of `generator`, whose numbers are others. What `begin` gave before goes on no more.
    """

    def __init__(self) -> None:
        self._bits = np.random.Philox(0)
        self._generator = np.random.Generator(self._bits)
        self._state = self._bits.state

    def begin(self, *parts: int | str) -> np.random.Generator:
        """The generator at the beginning of a stream."""
        drawn = _digest(*parts)
        return self._restart((drawn & _WORD, drawn >> 64))

    def _restart(self, key: Array | tuple[int, int]) -> np.random.Generator:
        self._state["state"]["key"][:] = key
        self._bits.state = self._state
        return self._generator


class NumberedStreams(Streams):
    """The streams `generator(*parts, number)`, for numbers that are asked for one after the other: the same
    numbers in a third of the time, since keys are made for many at once."""

    def __init__(self, *parts: int | str) -> None:
        super().__init__()
        self._parts = parts
        self._first, self._keys = 0, np.empty((0, 2), np.uint64)

    def at(self, number: int) -> np.random.Generator:
        """The generator at the beginning of the stream with this number."""
        place = number - self._first
        if not 0 <= place < len(self._keys):
            digests = [_digest(*self._parts, number + ahead) for ahead in range(_KEYS_AHEAD)]
            self._first, self._keys, place = number, spread_seeds(digests), 0
        return self._restart(self._keys[place])


def spread_seeds(seeds: Sequence[int]) -> Array:
    """The keys uint64 [N, 2] that `np.random.Philox(seed)` takes from seeds below 2**128: what NumPy's
    `SeedSequence` does with each, step by step for all of them."""
    words = np.frombuffer(b"".join(seed.to_bytes(16, "little") for seed in seeds), "<u4")
    entropy, factor = words.reshape(-1, 4).T.astype(np.uint32), _Factor(0x43B0D7E5, 0x931E8875)
    pool = [_hash(word, factor) for word in entropy]
    for source in range(4):
        for target in range(4):
            if source != target:
                mixed = 0xCA01F9DD * pool[target] - 0x4973F715 * _hash(pool[source], factor)
                pool[target] = mixed ^ (mixed >> 16)
    factor = _Factor(0x8B51F9DD, 0x58F38DED)
    state = np.stack([_hash(word, factor) for word in pool], axis=1)
    return state.astype("<u4").view("<u8").astype(np.uint64)


class _Factor:
    """The constant of a hash, which is another one for each word."""

    def __init__(self, first: int, multiplier: int) -> None:
        self._value, self._multiplier = first, multiplier

    def next(self) -> tuple[int, int]:
        """The one that the last word left, and the one that the next takes up."""
        before = self._value
        self._value = before * self._multiplier & 0xFFFFFFFF
        return before, self._value


def _hash(words: Array, factor: _Factor) -> Array:
    """Hash uint32 [N]."""
    before, after = factor.next()
    hashed = (words ^ before) * after
    hashed ^= hashed >> 16
    return hashed
