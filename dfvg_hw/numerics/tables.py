"""ROM contents of every function table, generated once for hardware, emulator and compiler.

Two kinds: `LinTable` (base plus slope per segment: one narrow multiply) and plain 256-entry tables.
All are exact integers; `tests/hw/numerics` pins their digest, so that a platform whose `pow`
rounds otherwise is noticed rather than silently incompatible.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .formats import Q_MAX, RECIP_LOG2, SIGMOID_FRAC

__all__ = [
    "LOG2M",
    "LOG2T",
    "RECIP",
    "RSQRT",
    "SIGMOID",
    "T2",
    "T15",
    "T127",
    "LinTable",
    "digest",
]

IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class LinTable:
    """Piecewise linear function: ``base[i] + ((slope[i] * frac) >> frac_bits)`` (floor).

    No result leaves the 16 unsigned bits of `base`, so hardware needs no clamp.

    Attributes
    ----------
    name : str
    frac_bits : int
        Low bits of the argument that interpolate inside a segment.
    base : ndarray of int64, shape (segments,)
        Unsigned, `base_bits` wide.
    slope : ndarray of int64, shape (segments,)
        Signed, `slope_bits` wide: growth over one whole segment.
    """

    name: str
    frac_bits: int
    base: IntArray
    slope: IntArray

    @property
    def base_bits(self) -> int:
        """Width of `base` in a ROM, unsigned."""
        return int(self.base.max()).bit_length()

    @property
    def slope_bits(self) -> int:
        """Width of `slope` in a ROM, two's complement."""
        return max(int(self.slope.max()).bit_length(), int(~self.slope.min()).bit_length()) + 1

    def __call__(self, segment: IntArray, frac: IntArray) -> IntArray:
        """Evaluate at integer arrays of segment index and fraction."""
        return self.base[segment] + ((self.slope[segment] * frac) >> self.frac_bits)


def _lin_table(
    name: str,
    edges: Callable[[int], float],
    function: Callable[[float], float],
    segments: int,
    frac_bits: int,
    clamp: tuple[int, int],
) -> LinTable:
    """Chords of `function` moved by half their largest error, so errors are balanced in sign.

    ``edges(i)`` is the argument at the left edge of segment ``i``.
    """
    base, slope = [], []
    for i in range(segments):
        x0, x1 = edges(i), edges(i + 1)
        y0, y1 = function(x0), function(x1)
        sag = function((x0 + x1) / 2) - (y0 + y1) / 2
        # + 1/2 because the interpolation floors.
        base.append(min(max(round(y0 + sag / 2 + 0.5), clamp[0]), clamp[1]))
        slope.append(round(y1 - y0))
    return LinTable(name, frac_bits, np.array(base), np.array(slope))


RECIP = _lin_table(
    "recip",
    lambda i: (128 + i) * 256.0,
    lambda x: Q_MAX * 2.0**RECIP_LOG2 / x,
    segments=128,
    frac_bits=8,
    clamp=(0, 65535),
)
"""127 * 2**24 / m for a mantissa m in [2**15, 2**16): segment ``(m >> 8) - 128``."""

RSQRT = _lin_table(
    "rsqrt",
    lambda i: (1 + (i % 128) / 128) * (1 + i // 128) if i < 256 else 4.0,
    lambda x: 65536.0 / x**0.5,
    segments=256,
    frac_bits=8,
    clamp=(32768, 65535),
)
"""2**16 / sqrt(x) for x in [1, 4): segment ``odd << 7 | (7 bits below the leading one)``.

`odd` says that x lies in [2, 4), i.e. that the position of the leading one is odd.
"""

SIGMOID = _lin_table(
    "sigmoid",
    lambda i: (i - 256) / 16,
    lambda x: 2.0**SIGMOID_FRAC / (1 + 2.718281828459045**-x),
    segments=512,
    frac_bits=10,
    clamp=(0, 65535),
)
"""2**16 * sigmoid(x) for x in [-16, 16): segment ``(g >> 10) + 256`` of an ACT value g."""


def _table(function: Callable[[int], float], entries: int) -> IntArray:
    table = np.array([round(function(i)) for i in range(entries)], dtype=np.int64)
    table.setflags(write=False)
    return table


T15 = _table(lambda f: 2.0 ** (15 - f / 256), 256)
"""2**15 * 2**(-f/256): exponentials of the softmax denominator (16 bits)."""
T127 = _table(lambda f: Q_MAX * 256 * 2.0 ** (-f / 256), 256)
"""127 * 2**8 * 2**(-f/256): int8 probabilities before the shift by 8 (15 bits)."""
T2 = _table(lambda f: 2.0 ** (15 + f / 256), 256)
"""2**15 * 2**(f/256): exponentials of the log-sum-exp (16 bits)."""
LOG2T = _table(lambda i: 256 * float(np.log2(1 + (i + 0.5) / 256)), 256)
"""256 * log2 at the middle of each of 256 steps between 1 and 2 (8 bits)."""
LOG2M = _table(lambda m: 256 * float(np.log2(8 + m)), 8)
"""256 * log2(8 + m): logarithm of an sf8 mantissa (10 bits)."""

LINEAR_TABLES = (RECIP, RSQRT, SIGMOID)
PLAIN_TABLES = {"T15": T15, "T127": T127, "T2": T2, "LOG2T": LOG2T, "LOG2M": LOG2M}


def digest() -> str:
    """SHA-256 over every table, 64 hexadecimal digits."""
    total = hashlib.sha256()
    for table in LINEAR_TABLES:
        for values in (table.base, table.slope):
            total.update(table.name.encode() + values.astype("<i4").tobytes())
    for name, values in PLAIN_TABLES.items():
        total.update(name.encode() + values.astype("<i4").tobytes())
    return total.hexdigest()
