"""Random numbers of 32 bits as a function of a game, a purpose and a counter; equal in every language.

All arithmetic is modulo 2^32, which is why every product is cut: JavaScript's Math.imul gives the same bits.
"""

from __future__ import annotations

from mission_gym.compiled import kernel

BITS = 0xFFFFFFFF
STEP = 0x9E3779B1
COARSE, FINE, BLOCKS, PLACES, NATURES, WHIMS = range(6)  # purposes


@kernel
def mix(value: int) -> int:
    """Scramble 32 bits: the finaliser of MurmurHash3."""
    value ^= value >> 16
    value = (value * 0x85EBCA6B) & BITS
    value ^= value >> 13
    value = (value * 0xC2B2AE35) & BITS
    return value ^ (value >> 16)


@kernel
def begin_stream(seed: int, episode: int) -> int:
    """The stream of an episode. seed: 63 bits."""
    low, high = seed & BITS, seed >> 32
    return mix((mix((mix(low) ^ high) & BITS) + episode * STEP) & BITS)


@kernel
def draw(stream: int, purpose: int, counter: int) -> int:
    """A number from 0 to 2^32 - 1."""
    return mix((mix((stream + (purpose + 1) * STEP) & BITS) + counter * STEP) & BITS)
