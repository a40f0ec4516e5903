"""Random streams as pure functions of (seed, name, counters): nothing to save, nothing to restore.

Every episode has its own seed below 2**31. Training, model selection and the final report use
disjoint ranges, so an evaluation never plays an episode that was trained on. The evaluation suites
do not depend on the run's seed.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal

import numpy as np

Stream = Literal["train", "select", "report"]
_RANGES: dict[Stream, tuple[int, int]] = {
    "train": (0, 1 << 30),
    "select": (1 << 30, 1 << 29),
    "report": ((1 << 30) + (1 << 29), 1 << 29),
}
_WORD = (1 << 64) - 1


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
    """A NumPy generator for a named purpose, e.g. `generator(seed, "act", group, block_number)`."""
    return np.random.Generator(np.random.Philox(key=_digest(*parts)))


def torch_seed(*parts: int | str) -> int:
    """A seed of a torch generator for a named purpose."""
    return _digest(*parts) % (1 << 63)


class Streams:
    """Draws the numbers of `generator` in a tenth of its time, for code that begins short streams often.

    There is one generator: `begin` ends the stream that was begun before.
    """

    def __init__(self) -> None:
        self._bits = np.random.Philox(0)
        self._generator = np.random.Generator(self._bits)
        self._state = self._bits.state

    def begin(self, *parts: int | str) -> np.random.Generator:
        """The generator at the beginning of a stream."""
        drawn = _digest(*parts)
        self._state["state"]["key"][:] = drawn & _WORD, drawn >> 64
        self._bits.state = self._state
        return self._generator
