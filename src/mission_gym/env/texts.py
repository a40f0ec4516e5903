"""Texts as columns of hashed counts: fixed by the space, without a vocabulary.

A linear layer over counts of words is the sum of their embeddings, so a text needs no network of its own.
Where a space's characters include the blank, or are not known, tokens are words (letters and digits, without
case), counted wherever they stand; else they are characters, each counted at its place. Neighbours are
counted as pairs, too. Only the first 64 tokens are read.
"""

from __future__ import annotations

import re
from copy import deepcopy
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from mission_gym.data import TEXT_COLUMNS, Array, LeafSpec

_MAX_TOKENS = 64
_WORD = re.compile(r"\w+")


def is_text(space: gym.Space[Any]) -> bool:
    """Whether the values of a space are strings: Gymnasium's Text, MiniGrid's missions, others' own."""
    if isinstance(space, spaces.Text):
        return True
    if type(space).__module__.startswith("gymnasium.spaces."):
        return False
    if space.dtype is not None:
        return space.dtype.kind == "U"
    try:
        return isinstance(deepcopy(space).sample(), str)  # a copy: its random numbers are the environment's
    except Exception:  # noqa: BLE001  border: the user's class
        return False


def text_leaf(space: gym.Space[Any], name: str) -> LeafSpec:
    """A token and the pair it ends, for each token that is read."""
    return LeafSpec(name, (2 * TextReader(space).num_tokens,), "uint8", "text")


class TextReader:
    """Reads the strings of a space."""

    def __init__(self, space: gym.Space[Any]) -> None:
        characters = getattr(space, "character_set", None)
        longest = getattr(space, "max_length", None) or 2 * _MAX_TOKENS
        self.by_words = characters is None or " " in characters
        self.num_tokens = min((longest + 1) // 2 if self.by_words else longest, _MAX_TOKENS)

    def __call__(self, text: Any) -> Array:
        """Columns, uint8 [2 * num_tokens], 0 for none; TypeError if it is not a string."""
        if not isinstance(text, str):
            raise TypeError(f"expected a string, got {type(text).__name__}")
        return _read(str(text), self.by_words, self.num_tokens)


@lru_cache(maxsize=4096)  # most texts last for an episode
def _read(text: str, by_words: bool, num_tokens: int) -> Array:
    tokens = (_WORD.findall(text.casefold()) if by_words else list(text))[:num_tokens]
    columns = np.zeros((2, num_tokens), np.uint8)
    before = ""
    for place, token in enumerate(tokens):
        columns[:, place] = _hash("" if by_words else str(place), token), _hash(before, token, "pair")
        before = token
    columns.flags.writeable = False  # it is shared by all who read this text
    return columns.ravel()


@lru_cache(maxsize=1 << 16)  # texts with numbers in them never end
def _hash(*parts: str) -> int:
    digest = blake2b("\0".join(parts).encode(errors="surrogatepass"), digest_size=8).digest()
    return 1 + int.from_bytes(digest, "little") % TEXT_COLUMNS
