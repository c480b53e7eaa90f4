"""Golden integer arithmetic of attention and of the output head (see `ops` for conventions).

Scores, logits and log-probabilities are in log2 units with 8 fraction bits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import formats as fm
from .ops import AnyIntArray, RowScale, bit_length, decode_sf8, recip, requant, rshr
from .tables import LOG2M, LOG2T, T2, T15, T127

__all__ = [
    "Probabilities",
    "edge_log_prob",
    "exp2_neg",
    "exp127",
    "log2_fix",
    "log_sum_exp",
    "scores",
    "softmax",
    "to_log2_frac8",
    "top_k",
    "value_log2",
]

IntArray = NDArray[np.int64]
_FRAC_MASK = (1 << fm.EXP_FRAC) - 1
_NEVER = -(1 << 40)  # below every score: the maximum over an empty set


def to_log2_frac8(y: IntArray) -> IntArray:
    """ACT in log2 units to 8 fraction bits."""
    return rshr(y, fm.ACT_FRAC - fm.EXP_FRAC)


def scores(
    acc: IntArray,
    mantissa: ArrayLike,
    exponent: ArrayLike,
    k_code: AnyIntArray,
    pre: int,
    sbase: int,
) -> IntArray:
    """SCORE: accumulators of q.k to scores, by the query's scale and the token's K scale."""
    m8, e8 = decode_sf8(k_code)
    y = requant(acc, mantissa, exponent, m8 << 8, e8, pre, sbase)
    return np.clip(to_log2_frac8(y), -fm.SCORE_MAX, fm.SCORE_MAX)


def value_log2(v_code: AnyIntArray) -> IntArray:
    """256 * log2 of a V scale, added to the token's score before probabilities are quantised."""
    m8, e8 = decode_sf8(v_code)
    return (e8 << fm.EXP_FRAC) + LOG2M[m8 - 8]


def exp2_neg(d: IntArray) -> IntArray:
    """2**15 * 2**(-d/256) for d >= 0, rounded; 0 from d = 16 * 256 on."""
    i = d >> fm.EXP_FRAC
    return np.where(i >= 16, 0, rshr(T15[d & _FRAC_MASK], np.minimum(i, 16)))


def exp127(d: IntArray) -> IntArray:
    """127 * 2**(-d/256) for d >= 0, rounded; 0 from d = 8 * 256 on."""
    i = d >> fm.EXP_FRAC
    return np.where(i >= 8, 0, rshr(T127[d & _FRAC_MASK], 8 + np.minimum(i, 8)))


@dataclass(frozen=True)
class Probabilities:
    """Quantised, V-scale-weighted probabilities of one attention head per leading index.

    Attributes
    ----------
    q : ndarray of int64, shape (..., pages, 64)
        0..127; 0 for tokens that aren't visible.
    shift : ndarray of int64, shape (..., pages)
        Left shift of each page's dot products.
    scale : RowScale
        Shape (...): about ``127 * 2**((smax' - smax) / 256) / l``.
    """

    q: IntArray
    shift: IntArray
    scale: RowScale


def softmax(s: IntArray, lv: IntArray, visible: NDArray[np.bool_]) -> Probabilities:
    """SOFTMAX over the visible tokens; at least one must be visible.

    Parameters
    ----------
    s : ndarray of int64, shape (..., pages, 64)
        Scores.
    lv : ndarray of int64
        `value_log2` of the tokens; broadcasts against `s`.
    visible : ndarray of bool
        Broadcasts against `s`.
    """
    visible = np.broadcast_to(visible, s.shape)
    sv = np.where(visible, s + lv, _NEVER)
    smax = np.where(visible, s, _NEVER).max(axis=(-1, -2))
    page_max = sv.max(axis=-1)
    svmax = page_max.max(axis=-1)
    d = np.where(visible, smax[..., None, None] - s, 0)
    total = np.where(visible, exp2_neg(d), 0).sum(axis=(-1, -2))
    gap = (svmax[..., None] - page_max) >> fm.EXP_FRAC
    k = np.minimum(gap, fm.GROUP_SHIFT_MAX)
    below = svmax[..., None, None] - sv - (k << fm.EXP_FRAC)[..., None]
    q = np.where(visible, exp127(np.where(visible, below, 0)), 0)
    return Probabilities(q, fm.GROUP_SHIFT_MAX - k, _probability_scale(total, svmax - smax))


def _probability_scale(total: IntArray, d: IntArray) -> RowScale:
    """127 * 2**(d/256) * 2**15 / (2**15 * total): total counts 2**-15, total >= 2**15."""
    n = bit_length(total)
    p = recip(total >> (n - 16)) * T2[d & _FRAC_MASK]
    nb = bit_length(p)
    constant = fm.RECIP_LOG2 + fm.PROB_DENOMINATOR_LOG2  # of the two tables
    exponent = (nb - 16) + (d >> fm.EXP_FRAC) - (n - 16) - constant
    return RowScale(p >> (nb - 16), exponent)


# ---- output head ------------------------------------------------------------------------------


def log2_fix(u: IntArray) -> IntArray:
    """256 * log2(u) of integers 1..2**53 - 1, within 1.3 units."""
    n = bit_length(u) - 1
    below = np.where(n >= 8, u >> np.maximum(n - 8, 0), u << np.maximum(8 - n, 0)) & 255
    return (n << 8) + LOG2T[below]


def log_sum_exp(y8: IntArray) -> IntArray:
    """Running log-sum-exp of logits in channel order, shape (rows, N) to (rows,).

    Keeps E, the largest integer part so far, and a sum in units of 2**(E - 23): a logit with a
    larger integer part shifts the sum right first; each adds ``(T2[f] << 8) >> min(40, E - i)``.
    The result depends on the channel order through those shifts, as in hardware.
    """
    y8 = np.asarray(y8, dtype=np.int64)
    rows = y8.shape[0]
    i, f = y8 >> fm.EXP_FRAC, y8 & _FRAC_MASK
    running = np.maximum.accumulate(i, axis=1)
    terms = (T2[f] << fm.LSE_GUARD) >> np.minimum(running - i, 40)
    # Between two records of the maximum nothing is shifted, so each stretch is a plain sum.
    result = np.empty(rows, dtype=np.int64)
    for row in range(rows):
        starts = np.flatnonzero(np.diff(running[row], prepend=running[row, 0] - 1))
        total, level = 0, int(running[row, 0])
        for start, part in zip(starts, np.add.reduceat(terms[row], starts), strict=True):
            now = int(running[row, start])
            total, level = (total >> min(now - level, 63)) + int(part), now
        base = (fm.PROB_DENOMINATOR_LOG2 + fm.LSE_GUARD) << fm.EXP_FRAC
        result[row] = (level << fm.EXP_FRAC) + int(log2_fix(np.array(total))) - base
    return result


def top_k(y: IntArray, k: int) -> IntArray:
    """Channels of the k largest logits (rows, k), largest first, ties by lower channel."""
    n = y.shape[1]
    key = (y.astype(np.int64) << max(n - 1, 1).bit_length()) + (n - 1 - np.arange(n))
    k = min(k, n)
    part = np.argpartition(-key, k - 1, axis=1)[:, :k]
    order = np.argsort(-np.take_along_axis(key, part, axis=1), axis=1)
    return np.take_along_axis(part, order, axis=1)


def edge_log_prob(y8: IntArray, lse8: IntArray) -> IntArray:
    """Log-probability of a channel: ``clamp(y8 - lse8, -32768, 0)``."""
    return np.clip(y8 - lse8, fm.EDGE_MIN, 0)
