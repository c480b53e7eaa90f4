"""Softmax, scores and the head's log-probabilities against floating point."""

import numpy as np
import pytest

from dfvg_hw.numerics import attention as at
from dfvg_hw.numerics import formats as fm
from dfvg_hw.numerics import ops


def _float_attention(s, scale, v, visible):
    p = np.where(visible, np.exp2(s / 256), 0)
    p /= p.sum()
    return np.einsum("pt,pt,pdt->d", p, scale, v) / 127


@pytest.mark.parametrize("spread", [1, 300, 4000])
@pytest.mark.parametrize("pages", [1, 3])
def test_softmax_weights_of_values(spread, pages, seed):
    rng = np.random.default_rng(seed)
    for _ in range(20):
        s = rng.integers(-spread, spread + 1, (pages, 64)) + int(rng.integers(-9999, 9999))
        code = rng.integers(90, 130, (pages, 64))
        visible = rng.random((pages, 64)) < 0.5
        visible[0, 5] = True
        v = rng.integers(-127, 128, (pages, 64, 64))  # page, dimension, token
        p = at.softmax(s, at.value_log2(code), visible)
        acc = np.einsum("pt,pdt,p->d", p.q, v, 1 << p.shift)
        out = acc * (p.scale.mantissa * 2.0**p.scale.exponent) / 127.0**3
        mantissa, exponent = ops.decode_sf8(code)
        scale = mantissa * 2.0**exponent
        exact = _float_attention(s, scale, v, visible)
        assert np.abs(out - exact).max() <= 0.012 * scale[visible].max() + 1


def test_softmax_ignores_what_is_not_visible(seed):
    rng = np.random.default_rng(seed)
    s = rng.integers(-999, 999, (2, 64))
    lv = rng.integers(800, 900, (2, 64))
    visible = np.zeros((2, 64), bool)
    visible[0, :7] = True
    a = at.softmax(s, lv, visible)
    s2, lv2 = np.where(visible, s, fm.SCORE_MAX), np.where(visible, lv, 7000)
    b = at.softmax(s2, lv2, visible)
    assert (a.q == b.q).all()
    assert not a.q[1].any()
    assert a.shift[1] == 0
    assert a.scale.mantissa == b.scale.mantissa
    assert a.scale.exponent == b.scale.exponent


def test_one_visible_token_has_probability_one():
    visible = np.zeros((1, 64), bool)
    visible[0, 9] = True
    p = at.softmax(np.full((1, 64), -77), np.full((1, 64), 2000), visible)
    assert p.q[0, 9] == 127
    assert p.q.sum() == 127


@pytest.mark.parametrize("tokens", [1, 2, 100, 2112])
def test_probability_scale_mantissa_is_normalised(tokens, seed):
    rng = np.random.default_rng(seed)
    pages = -(-tokens // 64)
    visible = (np.arange(pages * 64) < tokens).reshape(pages, 64)
    for spread in (0, 5, 2000, fm.SCORE_MAX):
        s = rng.integers(-spread, spread + 1, (pages, 64))
        p = at.softmax(s, rng.integers(768, 7912, (pages, 64)), visible)
        assert 1 << 15 <= p.scale.mantissa < 1 << 16
        assert -128 <= p.scale.exponent < 128
        assert p.q.max() <= 127
        assert p.q.min() >= 0


def test_scores_saturate_at_18_bits():
    top = np.array([1 << 34, -(1 << 34)])
    s = at.scores(top, 40000, 10, np.array([255, 255]), 4, 31)
    assert s.tolist() == [fm.SCORE_MAX, -fm.SCORE_MAX]


def _lse_reference(y8):
    """The sequential definition, one logit at a time, in Python integers."""
    level = total = None
    for value in y8:
        i, f = int(value) >> 8, int(value) & 255
        term = int(at.T2[f]) << fm.LSE_GUARD
        if level is None:
            level, total = i, term
            continue
        if i > level:
            total >>= min(i - level, 63)
            level = i
        total += term >> min(40, level - i)
    return (level << 8) + int(at.log2_fix(np.array(total))) - (23 << 8)


@pytest.mark.parametrize("width", [1, 2, 500, 4096])
@pytest.mark.parametrize("spread", [1, 2000, 60000])
def test_log_sum_exp_equals_the_sequential_definition(width, spread, seed):
    rng = np.random.default_rng(seed)
    y8 = rng.integers(-spread, spread + 1, (4, width))
    y8[1] = np.sort(y8[1])
    y8[2] = np.sort(y8[2])[::-1]
    assert at.log_sum_exp(y8).tolist() == [_lse_reference(row) for row in y8]


@pytest.mark.parametrize("width", [2, 500, 49152])
def test_log_sum_exp_error(width, seed):
    rng = np.random.default_rng(seed)
    for spread in (0.1, 3, 20):
        y8 = np.rint(rng.normal(0, spread, (2, width)) * 256).astype(int)
        exact = np.log2(np.exp2(y8 / 256.0).sum(1)) * 256
        assert np.abs(at.log_sum_exp(y8) - exact).max() < 4


def test_top_k_breaks_ties_by_lower_channel(seed):
    rng = np.random.default_rng(seed)
    y = rng.integers(-3, 4, (5, 300))
    expected = [sorted(range(300), key=lambda c, r=row: (-r[c], c))[:8] for row in y]
    assert at.top_k(y, 8).tolist() == expected
    assert at.top_k(y[:, :3], 8).shape == (5, 3)
    extremes = np.array([[-fm.ACT_MAX, fm.ACT_MAX, 0]])
    assert at.top_k(extremes, 3).tolist() == [[1, 2, 0]]


def test_edge_log_prob_is_clamped():
    edges = at.edge_log_prob(np.array([5, -70000, 90]), np.array([3, 0, 100]))
    assert edges.tolist() == [0, -32768, -10]
