"""Number formats of the data path: every width, fraction and special exponent, defined once.

`docs/numerics.md` explains them; hardware, emulator and compiler take them from here.
"""

from __future__ import annotations

__all__ = [
    "ACC_BITS",
    "ACT_FRAC",
    "ACT_MAX",
    "DOT_BITS",
    "EDGE_MIN",
    "EXP_FRAC",
    "GAIN_FRAC",
    "GROUP",
    "GROUP_SHIFT_MAX",
    "LSE_GUARD",
    "MANTISSA_ONE",
    "PROB_DENOMINATOR_LOG2",
    "Q_MAX",
    "RECIP_LOG2",
    "ROPE_FRAC",
    "SCORE_MAX",
    "SF8_M_BITS",
    "SF16_E_MAX",
    "SF16_M_BITS",
    "SHIFT_MAX",
    "SIGMOID_FRAC",
]

GROUP = 64
"""Elements of a vector that share one power-of-two scale."""

ACT_FRAC = 14
"""Fraction bits of ACT, the int32 format of every vector in vector memory (Q17.14)."""
ACT_MAX = (1 << 31) - 1
"""Saturation of ACT; symmetric, so -2**31 never occurs."""

Q_MAX = 127
"""Largest magnitude of an int8 operand; -128 never occurs, so two products share a multiplier."""
GROUP_SHIFT_MAX = 15
"""A group's dot product is shifted left by 0 to this many bits before it is accumulated."""
DOT_BITS = 21
"""Signed width of the dot product of one group: 64 * 127 * 127 < 2**20."""
ACC_BITS = 48
"""Signed width of an accumulator: up to 1023 groups of 2**(20 + 15) fit 46 bits."""

SF16_M_BITS = 11
"""Mantissa bits of a column scale: code = e << 11 | m, value (2048 + m) * 2**e."""
SF16_E_MAX = 31
SF8_M_BITS = 3
"""Mantissa bits of a K or V scale: code = e << 3 | m, value (8 + m) * 2**e."""
MANTISSA_ONE = 1 << 15
"""Row-scale mantissas lie in [2**15, 2**16)."""
SHIFT_MAX = 63
"""Shifts computed from exponents are clamped to 0..63."""

RECIP_LOG2 = 24
"""recip(m) approximates 127 * 2**24 / m for m in [2**15, 2**16)."""

GAIN_FRAC = 14
"""Fraction bits of normalisation gains; the compiler scales each vector into [1, 2) at its peak."""
ROPE_FRAC = 14
"""Fraction bits of rotary cosines and sines (int16)."""
SIGMOID_FRAC = 16
"""Fraction bits of the sigmoid (unsigned)."""

EXP_FRAC = 8
"""Fraction bits of scores, logits and log-probabilities in log2 units."""
SCORE_MAX = (1 << 17) - 1
"""Attention scores saturate at +-(2**17 - 1), i.e. 512 in log2 units."""
PROB_DENOMINATOR_LOG2 = 15
"""The softmax denominator counts units of 2**-15."""
LSE_GUARD = 8
"""Guard bits of the running log-sum-exp below the 16-bit exponential table."""
EDGE_MIN = -(1 << 15)
"""Edge log-probabilities are int16 in units of 1/256 log2, clamped to [-32768, 0]."""
