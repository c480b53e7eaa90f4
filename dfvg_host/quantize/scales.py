"""Column scales: from real factors to sf16 codes and the shifts they share."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from dfvg_hw.config import GROUP
from dfvg_hw.errors import ModelError
from dfvg_hw.numerics import formats as fm

from .integer import Requant

__all__ = [
    "ATTENTION_OUT_SCALE",
    "QUERY_SCALE",
    "encode_sf16",
    "matmul_pre",
    "pv_requant",
    "requant_for",
    "score_requant",
]

FloatArray = NDArray[np.float64]

_TOP = fm.SF16_E_MAX + fm.SF16_M_BITS + 1  # codes reach just below 2**_TOP
ATTENTION_OUT_SCALE = 127.0**3 / 2.0**21
"""Attention outputs are stored times this factor: PV leaves three 1/127 to the next matrix."""
QUERY_SCALE = 2.0**14 / 127.0**2
"""Queries carry this factor: SCORE leaves two 1/127 to the matrix before it."""


def matmul_pre(groups: int) -> int:
    """Smallest shift that makes any accumulator of `groups` groups fit 32 bits."""
    largest = groups * GROUP * fm.Q_MAX * fm.Q_MAX << fm.GROUP_SHIFT_MAX
    return max(0, largest.bit_length() - 31)


def score_requant(head_groups: int) -> Requant:
    """Shifts of SCORE: y = q.k in log2 units, given queries times `QUERY_SCALE`.

    acc * mantissa * 2**e * Mq is the product in units of 2**(-15 - 14 - 14): group shift, ACT of
    the second factor, `QUERY_SCALE`. REQUANT with the mantissa Mq << 8 divides by
    2**(pre + 16 - 8 + sbase).
    """
    pre = matmul_pre(head_groups)
    return Requant(pre, 43 - 8 - pre)


def pv_requant(pages: int) -> Requant:
    """Shifts of PV for sequences of up to `pages` pages; results are times `ATTENTION_OUT_SCALE`.

    The column scale is sf16 code 0, i.e. 2048.
    """
    pre = matmul_pre(pages)
    return Requant(pre, 21 - 5 - pre)


def requant_for(factors: list[FloatArray], groups: int, what: str) -> Requant:
    """Shifts for matrices with these real column factors (ACT out per accumulator unit).

    The largest factor gets the largest exponent, so the others lose nothing down to 2**-31 of it.

    Raises
    ------
    ModelError
        If a factor is not finite, or they are so far from 1 that no shift fits its field.
    """
    pre = matmul_pre(groups)
    if not all(np.isfinite(f).all() for f in factors):
        raise ModelError(
            f"{what} of the draft holds values that are not finite: its weights are damaged"
        )
    peak = max(float(f.max(initial=0.0)) for f in factors)
    if peak == 0.0:
        return Requant(pre, 0)
    sbase = _TOP - math.ceil(math.log2(peak * (1 + 2.0**-13))) - pre - 16
    if not -128 <= sbase <= 127:
        raise ModelError(f"{what} has a scale of {peak:.3g}: it can't be expressed in the device")
    return Requant(pre, sbase)


def encode_sf16(factor: FloatArray, log2_unit: int) -> tuple[NDArray[np.uint16], NDArray[np.bool_]]:
    """Encode ``factor * 2**log2_unit`` as sf16.

    Returns
    -------
    codes : ndarray of uint16
    lost : ndarray of bool
        Where the factor is zero or below half the smallest code: the caller zeroes those rows.
    """
    value = np.asarray(factor, dtype=np.float64) * 2.0**log2_unit
    lost = value < 1 << (fm.SF16_M_BITS - 1)
    safe = np.maximum(value, 1 << fm.SF16_M_BITS)
    e = np.floor(np.log2(safe)).astype(np.int64) - fm.SF16_M_BITS
    m = np.rint(safe / np.exp2(e)).astype(np.int64)
    carry = m == 1 << (fm.SF16_M_BITS + 1)
    m, e = np.where(carry, 1 << fm.SF16_M_BITS, m), e + carry
    if int(e.max(initial=0)) > fm.SF16_E_MAX:
        raise ValueError(f"scale {float(value.max()):.3g} is above the largest sf16 code")
    code = (e << fm.SF16_M_BITS) | (m - (1 << fm.SF16_M_BITS))
    return code.astype(np.uint16), lost
