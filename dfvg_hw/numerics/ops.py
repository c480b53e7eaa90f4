"""Golden integer arithmetic: what every data-path block computes, to the last bit.

Pure functions on int64 arrays, vectorised over leading axes ("rows"). All integers are two's
complement; ``>>`` floors. RTL tests compare with these functions, the emulator calls them.
Derivations and error bounds are in ``docs/numerics.md``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import formats as fm
from .tables import RECIP, RSQRT, SIGMOID

__all__ = [
    "Quantized",
    "RowScale",
    "bit_length",
    "decode_sf8",
    "decode_sf16",
    "dot_groups",
    "embed",
    "group_exponents",
    "normalize16",
    "quantize",
    "quantize_kv",
    "recip",
    "requant",
    "rms_scale",
    "rope",
    "rshr",
    "rsqrt",
    "sat32",
    "sf8_round_up",
    "sigmoid",
    "swiglu",
]

IntArray = NDArray[np.int64]
AnyIntArray = NDArray[Any]
"""Integers of any width, as stored in memory."""


def sat32(x: IntArray) -> IntArray:
    """Saturate to +-(2**31 - 1)."""
    return np.clip(x, -fm.ACT_MAX, fm.ACT_MAX)


def rshr(x: IntArray, shift: ArrayLike) -> IntArray:
    """Right shift with rounding half up: ``(x + 2**(shift-1)) >> shift``; shift 0 returns x.

    `shift` (0 to 63) broadcasts against `x`; |x| must stay below 2**62.
    """
    if isinstance(shift, int):  # the usual case, and three array operations cheaper
        return (x + (1 << (shift - 1))) >> shift if shift else x
    s = np.asarray(shift, dtype=np.int64)
    half = np.where(s > 0, np.left_shift(1, np.maximum(s - 1, 0)), 0)
    return (x + half) >> s


def bit_length(x: IntArray) -> IntArray:
    """Bit length of non-negative integers below 2**53; 0 for 0."""
    return np.frexp(np.asarray(x).astype(np.float64))[1].astype(np.int64)


def decode_sf16(code: AnyIntArray) -> tuple[IntArray, IntArray]:
    """Column-scale codes to (mantissa 2048..4095, exponent 0..31)."""
    code = np.asarray(code, dtype=np.int64)
    return 2048 + (code & 2047), code >> fm.SF16_M_BITS


def decode_sf8(code: AnyIntArray) -> tuple[IntArray, IntArray]:
    """K/V scale codes to (mantissa 8..15, exponent 0..31)."""
    code = np.asarray(code, dtype=np.int64)
    return 8 + (code & 7), code >> fm.SF8_M_BITS


# ---- quantisation -----------------------------------------------------------------------------


def normalize16(m: IntArray) -> tuple[IntArray, IntArray]:
    """Write a maximum as ``mh * 2**e``, rounded up, mh in [2**15, 2**16), e in -15..15.

    0 gives (2**15, -15); every element is 0 then.
    """
    m = np.asarray(m, dtype=np.int64)
    n = np.maximum(bit_length(m), 1)
    down = np.maximum(n - 16, 0)
    mh = np.where(n > 16, -((-m) >> down), m << np.maximum(16 - n, 0))
    carry = mh == 1 << 16
    mh = np.where(carry | (m == 0), fm.MANTISSA_ONE, mh)
    return mh, n - 16 + carry


def sf8_round_up(m: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Round a maximum up to the sf8 grid: (code, mh, e) with ``mh * 2**e`` the rounded value.

    Values under 8 become 8, so the exponent of the code is never negative.
    """
    m = np.maximum(np.asarray(m, dtype=np.int64), 8)
    e8 = bit_length(m) - 4
    m4 = -((-m) >> e8)
    carry = m4 == 16
    m4, e8 = np.where(carry, 8, m4), e8 + carry
    return (e8 << fm.SF8_M_BITS) | (m4 - 8), m4 << 12, e8 - 12


def group_exponents(m_group: IntArray, m_scope: IntArray) -> IntArray:
    """Largest k in 0..15 with ``m_group << k <= m_scope`` (15 for an all-zero group)."""
    k = bit_length(m_scope) - bit_length(m_group)  # right, or one too large
    k = k - ((m_group << np.clip(k, 0, 32)) > m_scope)
    return np.where(m_group == 0, fm.GROUP_SHIFT_MAX, np.clip(k, 0, fm.GROUP_SHIFT_MAX))


def recip(mh: IntArray) -> IntArray:
    """127 * 2**24 / mh for mh in [2**15, 2**16), within 1.5 units of 32512..65024 (table)."""
    mh = np.asarray(mh, dtype=np.int64)
    return RECIP((mh >> 8) - 128, mh & 255)


def rsqrt(ss: IntArray) -> tuple[IntArray, IntArray]:
    """1/sqrt(ss) as (rm, re): ``rm * 2**re``, rm in [2**15, 2**16); ss in 1..2**44 - 1."""
    n = bit_length(ss)
    m16 = np.where(n > 16, ss >> np.maximum(n - 16, 0), ss << np.maximum(16 - n, 0))
    odd = (n - 1) & 1
    return RSQRT((odd << 7) | ((m16 >> 8) & 127), m16 & 255), -16 - ((n - 1) >> 1)


def rms_scale(v: IntArray, mh: IntArray, e: IntArray, eps_k: int) -> tuple[IntArray, IntArray]:
    """Row scale ``mh * 2**e / sqrt(sum v**2 + eps_k)`` as (mantissa, exponent).

    `v` is the vector before the gain, shape (rows, K); eps_k = round(K * eps * 2**28).
    The factor sqrt(K) * 2**14 that is missing from an RMS norm is in the consumer's weights.
    """
    peak = np.abs(v).max(axis=-1)
    sh = np.maximum(bit_length(peak) - 15, 0)
    ss = ((v >> sh[..., None]) ** 2).sum(axis=-1) + (eps_k >> (2 * sh))
    rm, re = rsqrt(np.maximum(ss, 1))
    p = mh * rm
    big = p >= 1 << 31
    return np.where(big, p >> 16, p >> 15), e + re - sh + np.where(big, 16, 15)


@dataclass(frozen=True)
class RowScale:
    """Scales ``mantissa * 2**exponent``, one per row (ROW) or per row and head (HEAD)."""

    mantissa: IntArray
    exponent: IntArray


@dataclass(frozen=True)
class Quantized:
    """A quantised vector per row.

    Attributes
    ----------
    q : ndarray of int64, shape (rows, K)
        Values in -127..127.
    shift : ndarray of int64, shape (rows, K // 64)
        Left shift of each group's dot products, 15 - k.
    scale : RowScale
        Arrays of shape (rows, scopes).
    """

    q: IntArray
    shift: IntArray
    scale: RowScale


def _quantize_elements(z: IntArray, rec: IntArray, shift: IntArray) -> IntArray:
    return np.clip(rshr(z * rec, np.maximum(shift, 0)), -fm.Q_MAX, fm.Q_MAX)


def quantize(
    v: IntArray,
    scope_groups: int | None = None,
    gain: IntArray | None = None,
    gain_frac: int = fm.GAIN_FRAC,
    eps_k: int | None = None,
) -> Quantized:
    """QUANT in modes ROW and HEAD_Q.

    Parameters
    ----------
    v : ndarray of int64, shape (rows, K)
        ACT values; K is a multiple of 64.
    scope_groups : int, optional
        Groups that share a 16-bit scale: all of them (ROW, the default) or a head's (HEAD_Q).
    gain : ndarray of int64, shape (K,), optional
        int16 gains, `gain_frac` fraction bits.
    eps_k : int, optional
        Present: fold 1/rms of `v` into the scale (ROW only).
    """
    rows, k_dim = v.shape
    z = v if gain is None else sat32(rshr(v * gain, gain_frac))
    grouped = z.reshape(rows, -1, scope_groups or k_dim // fm.GROUP, fm.GROUP)
    m_group = np.abs(grouped).max(axis=-1)
    m_scope = m_group.max(axis=-1)
    mh, e = normalize16(m_scope)
    k = group_exponents(m_group, m_scope[..., None])
    shift = (fm.RECIP_LOG2 + e[..., None] - k)[..., None]
    q = _quantize_elements(grouped, recip(mh)[..., None, None], shift)
    if eps_k is not None:
        mantissa, exponent = rms_scale(v, mh[:, 0], e[:, 0], eps_k)
        mh, e = mantissa[:, None], exponent[:, None]
    return Quantized(
        q.reshape(rows, k_dim), (fm.GROUP_SHIFT_MAX - k).reshape(rows, -1), RowScale(mh, e)
    )


def quantize_kv(v: IntArray, head: int) -> tuple[IntArray, IntArray]:
    """QUANT in modes HEAD_K and HEAD_V: (q, sf8 codes), shapes (rows, K) and (rows, heads).

    `head` is the padded head size. No group shifts: the KV cache stores none.
    """
    heads = v.reshape(v.shape[0], -1, head)
    code, mh, e = sf8_round_up(np.abs(heads).max(axis=-1))
    q = _quantize_elements(heads, recip(mh)[..., None], (fm.RECIP_LOG2 + e)[..., None])
    return q.reshape(v.shape), code


# ---- matrix products --------------------------------------------------------------------------


def dot_groups(weights: AnyIntArray, q: IntArray, shift: IntArray) -> IntArray:
    """Accumulators of MATMUL: sum over groups of (dot product << shift), shape (rows, N).

    `weights` has shape (N, K). Reference only: the emulator reaches the same integers faster.
    """
    groups = q.shape[-1] // fm.GROUP
    w = weights.reshape(-1, groups, fm.GROUP).astype(np.int64)
    x = (q.reshape(-1, groups, fm.GROUP) << shift[..., None]).astype(np.int64)
    return np.einsum("rgi,ngi->rn", x, w)


def requant(
    acc: IntArray,
    mantissa: ArrayLike,
    exponent: ArrayLike,
    column_mantissa: ArrayLike,
    column_exponent: ArrayLike,
    pre: int,
    sbase: int,
) -> IntArray:
    """REQUANT: accumulators to ACT by the row scale and the 12-bit column scale.

    t = sat32(rshr(acc, pre)); u = rshr(t * mantissa, 16); result sat32(rshr(u * column_mantissa,
    clamp(sbase - exponent - column_exponent, 0, 63))). All scales broadcast against `acc`.
    """
    m_row, e_row, m_column, e_column = (
        np.asarray(x, dtype=np.int64)
        for x in (mantissa, exponent, column_mantissa, column_exponent)
    )
    u = rshr(sat32(rshr(acc, pre)) * m_row, 16)
    shift = np.clip(sbase - e_row - e_column, 0, fm.SHIFT_MAX)
    return sat32(rshr(u * m_column, shift))


def rope(y: IntArray, cos: IntArray, sin: IntArray) -> IntArray:
    """Rotate adjacent channel pairs of every head.

    `y` has shape (rows, heads * head), `cos` and `sin` (rows, head / 2), Q1.14.
    """
    pairs = y.reshape(y.shape[0], -1, cos.shape[1], 2)
    a, b = pairs[..., 0], pairs[..., 1]
    c, s = cos[:, None], sin[:, None]
    out = np.stack((rshr(a * c - b * s, fm.ROPE_FRAC), rshr(a * s + b * c, fm.ROPE_FRAC)), -1)
    return sat32(out).reshape(y.shape)


def sigmoid(g: IntArray) -> IntArray:
    """2**16 * sigmoid of ACT values, 0..65535; 0 below -16.0 and 65535 from 16.0 on."""
    limit = 16 << fm.ACT_FRAC
    x = np.clip(g, -limit, limit - 1)
    y = SIGMOID((x >> 10) + 256, x & 1023)
    return np.where(g < -limit, 0, np.where(g >= limit, 65535, y))


def swiglu(y: IntArray) -> IntArray:
    """silu(gate) * up of adjacent (gate, up) pairs: shape (rows, 2N) to (rows, N)."""
    g, u = y[:, 0::2], y[:, 1::2]
    return sat32(rshr(rshr(g * sigmoid(g), fm.SIGMOID_FRAC) * u, fm.ACT_FRAC))


def embed(q: AnyIntArray, code: AnyIntArray, sbase: int) -> IntArray:
    """Dequantise embedding rows: int8 (rows, K) and sf16 codes (rows,) to ACT."""
    mantissa, exponent = decode_sf16(code)
    shift = np.clip(sbase - exponent, 0, fm.SHIFT_MAX)[:, None]
    return sat32(rshr(q.astype(np.int64) * mantissa[:, None], shift))
