"""Philox4x32-10 in Python integers: a random number that is a pure function of its position.

Sampling must give the same draw for output token *i* whether the token came out of plain decoding
or out of a walk down a drafted tree, on any machine and with any torch build. A counter-based
generator keyed by (seed, sample, output index) has no state that could fall out of step.

Source: J. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

from __future__ import annotations

from dfvg_hw.errors import UsageError

__all__ = ["philox4x32", "uniform"]

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10


def philox4x32(
    counter: tuple[int, int, int, int], key: tuple[int, int]
) -> tuple[int, int, int, int]:
    """Return the four 32-bit words of the block at ``counter`` under ``key`` (10 rounds)."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        p0, p1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & _MASK, (p0 >> 32) ^ c3 ^ k1, p0 & _MASK
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return c0, c1, c2, c3


def uniform(seed: int, sample: int, index: int) -> float:
    """Return u in [0, 1) with 53 random bits for one output token.

    Parameters
    ----------
    seed: 0 .. 2**64-1, the key.
    sample: 0 .. 2**32-1, number of the sample when one prompt is sampled several times.
    index: 0 .. 2**64-1, output position; 0 is the first token after the prompt.

    Raises
    ------
    UsageError
        A value outside its range.
    """
    for name, value, bits in (("seed", seed, 64), ("sample", sample, 32), ("index", index, 64)):
        if not 0 <= value < 1 << bits:
            raise UsageError(f"{name} must be 0 to 2**{bits}-1, not {value}")
    counter = (index & _MASK, index >> 32, sample, 0)
    high, low, _, _ = philox4x32(counter, (seed & _MASK, seed >> 32))
    return ((high >> 5) * (1 << 26) + (low >> 6)) / (1 << 53)
