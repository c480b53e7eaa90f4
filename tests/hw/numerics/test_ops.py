"""Golden operations against exact rational or floating-point arithmetic."""

from fractions import Fraction

import numpy as np
import pytest

from dfvg_hw.numerics import formats as fm
from dfvg_hw.numerics import ops


def _round_half_up(value: Fraction) -> int:
    return (value + Fraction(1, 2)).__floor__()


@pytest.mark.parametrize("shift", [0, 1, 7, 32, 61, 62, 63])
def test_rshr_rounds_half_up(shift, seed):
    rng = np.random.default_rng(seed)
    x = np.concatenate([rng.integers(-(1 << 61), 1 << 61, 50), np.arange(-9, 10)])
    expected = [_round_half_up(Fraction(int(v), 1 << shift)) for v in x]
    assert ops.rshr(x, shift).tolist() == expected
    assert ops.rshr(x, np.array(shift)).tolist() == expected


def test_sat32_is_symmetric():
    x = np.array([-(1 << 40), -(1 << 31), -(1 << 31) + 1, (1 << 31) - 1, 1 << 31])
    top = (1 << 31) - 1
    assert ops.sat32(x).tolist() == [-top, -top, -top, top, top]


def test_bit_length(seed):
    rng = np.random.default_rng(seed)
    x = np.concatenate([1 << np.arange(52), (1 << np.arange(53)) - 1, rng.integers(0, 1 << 52, 99)])
    assert ops.bit_length(x).tolist() == [int(v).bit_length() for v in x]


def test_normalize16_rounds_up_by_less_than_one_unit(seed):
    rng = np.random.default_rng(seed)
    m = np.concatenate(
        [np.arange(1, 1 << 17), rng.integers(1, 1 << 31, 9999), (1 << np.arange(1, 32)) - 1]
    )
    mh, e = ops.normalize16(m)
    assert mh.min() >= 1 << 15
    assert mh.max() < 1 << 16
    value = mh * 2.0**e
    assert (value >= m).all()
    assert (value - m < np.maximum(2.0**e, 1)).all()
    assert e.max() <= 16
    assert [int(v) for v in ops.normalize16(np.array([0]))[0]] == [1 << 15]


def test_sf8_rounds_up_within_an_eighth(seed):
    rng = np.random.default_rng(seed)
    m = np.concatenate([np.arange(0, 1 << 12), rng.integers(0, 1 << 31, 999), [(1 << 31) - 1]])
    code, mh, e = ops.sf8_round_up(m)
    mantissa, exponent = ops.decode_sf8(code)
    value = mantissa * 2.0**exponent
    assert (value == mh * 2.0**e).all()
    assert (value >= m).all()
    assert (value < np.maximum(m, 8) * 1.125 + 1e-9).all()
    assert code.max() < 256


def test_group_exponents_are_the_largest_that_fit():
    m_scope = np.repeat(np.arange(1, 300), 300)
    m_group = np.tile(np.arange(300), 299)
    keep = m_group <= m_scope
    m_scope, m_group = m_scope[keep], m_group[keep]
    k = ops.group_exponents(m_group, m_scope)
    assert ((m_group << k) <= m_scope).all()
    assert (((m_group << (k + 1)) > m_scope) | (k == 15)).all()
    assert (k[m_group == 0] == 15).all()


def _dequantize(out: ops.Quantized) -> np.ndarray:
    scale = out.scale.mantissa * 2.0**out.scale.exponent / fm.Q_MAX
    groups = out.q.reshape(*out.shift.shape, fm.GROUP) * 2.0 ** (out.shift[..., None] - 15)
    scope = out.shift.shape[1] // scale.shape[1]
    return (groups * np.repeat(scale, scope, axis=1)[..., None]).reshape(out.q.shape)


@pytest.mark.parametrize("scope", [None, 1, 2])
@pytest.mark.parametrize("peak", [3, 900, 1 << 20, (1 << 31) - 1])
def test_quantize_error_is_half_a_step_of_its_group(scope, peak, seed):
    rng = np.random.default_rng(seed)
    v = rng.integers(-peak, peak + 1, (3, 256)) >> rng.integers(0, 9, (3, 4)).repeat(64, 1)
    v[1] = 0
    out = ops.quantize(v, scope)
    assert np.abs(out.q).max() <= 127
    assert out.shift.min() >= 0
    step = np.repeat(2.0 ** (out.shift - 15), 64, axis=1) * np.repeat(
        out.scale.mantissa * 2.0**out.scale.exponent / 127, 256 // out.scale.mantissa.shape[1], 1
    )
    assert (np.abs(_dequantize(out) - v) <= 0.51 * step).all()


def test_the_largest_element_uses_the_whole_range():
    for peak in (1, 2, 100, 12345, (1 << 31) - 1):
        v = np.zeros((1, 64), np.int64)
        v[0, 3], v[0, 4] = peak, -peak
        assert ops.quantize(v).q[0, 3:5].tolist() == [127, -127]


def test_rms_scale_is_the_norm(seed):
    rng = np.random.default_rng(seed)
    v = (rng.standard_normal((5, 192)) * np.array([[1e1], [1e3], [1e5], [1e7], [2e8]])).astype(int)
    gain = rng.integers(-20000, 20000, 192)
    eps_k = round(192 * 1e-5 * 2**28)
    out = ops.quantize(v, gain=gain, eps_k=eps_k)
    norm = v / np.sqrt((v.astype(float) ** 2).sum(1, keepdims=True) + eps_k)
    expected = norm * gain / (1 << fm.GAIN_FRAC)
    limit = np.abs(expected).max(1, keepdims=True) / 127 * 0.52 + 1 / np.abs(v).max(
        1, keepdims=True
    )
    assert (np.abs(_dequantize(out) - expected) <= limit).all()


def test_zero_vector_has_a_defined_norm():
    out = ops.quantize(np.zeros((1, 64), np.int64), gain=np.full(64, 16384), eps_k=0)
    assert not out.q.any()
    assert 1 << 15 <= out.scale.mantissa[0, 0] < 1 << 16


def test_quantize_kv_has_no_group_shift_and_one_scale_per_head(seed):
    rng = np.random.default_rng(seed)
    v = rng.integers(-(1 << 18), 1 << 18, (4, 256))
    v[:, 64:128] >>= 9
    q, code = ops.quantize_kv(v, 128)
    mantissa, exponent = ops.decode_sf8(code)
    step = np.repeat(mantissa * 2.0**exponent / 127, 128, axis=1)
    assert (np.abs(q * step - v) <= 0.51 * step).all()


def test_requant_equals_exact_arithmetic(seed):
    rng = np.random.default_rng(seed)
    for _ in range(300):
        acc = int(rng.integers(-(1 << 40), 1 << 40) >> rng.integers(0, 30))
        mantissa, exponent = int(rng.integers(1 << 15, 1 << 16)), int(rng.integers(-40, 10))
        column, e = int(rng.integers(2048, 4096)), int(rng.integers(0, 32))
        pre, sbase = 9, int(rng.integers(20, 50))
        y = int(ops.requant(np.array(acc), mantissa, exponent, column, e, pre, sbase))
        t = max(-fm.ACT_MAX, min(fm.ACT_MAX, _round_half_up(Fraction(acc, 1 << pre))))
        u = _round_half_up(Fraction(t * mantissa, 1 << 16))
        s = max(0, min(63, sbase - exponent - e))
        exact = _round_half_up(Fraction(u * column, 1 << s))
        assert y == max(-fm.ACT_MAX, min(fm.ACT_MAX, exact))


def test_dot_groups_extremes():
    q = np.full((2, 128), 127)
    q[1] = -127
    shift = np.array([[15, 0], [15, 15]])
    weights = np.stack([np.full(128, 127), np.full(128, -127)])
    one = 64 * 127 * 127
    high = one << 15
    assert ops.dot_groups(weights, q, shift).tolist() == [
        [high + one, -high - one],
        [-2 * high, 2 * high],
    ]
    assert one < 1 << (fm.DOT_BITS - 1)
    assert 1023 * high < 1 << (fm.ACC_BITS - 1)


def test_rope_rotates_pairs(seed):
    rng = np.random.default_rng(seed)
    y = rng.integers(-(1 << 20), 1 << 20, (2, 128))
    angle = rng.uniform(0, 6.28, (2, 32))
    cos, sin = (np.rint(f(angle) * 16384).astype(int) for f in (np.cos, np.sin))
    z = (y[:, 0::2] + 1j * y[:, 1::2]) * np.tile(np.exp(1j * angle), (1, 2))
    out = ops.rope(y, cos, sin)
    assert np.abs(out[:, 0::2] - z.real).max() < 120
    assert np.abs(out[:, 1::2] - z.imag).max() < 120
    top = np.full((1, 2), fm.ACT_MAX)
    assert ops.rope(top, np.array([[16384]]), np.array([[-16384]])).tolist() == [[fm.ACT_MAX, 0]]


def test_swiglu(seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(0, 4, (3, 128))
    y = np.rint(x * 16384).astype(int)
    g, u = x[:, 0::2], x[:, 1::2]
    out = ops.swiglu(y) / 16384
    assert np.abs(out - g / (1 + np.exp(-g)) * u).max() < 2e-3
    top = fm.ACT_MAX
    assert ops.swiglu(np.array([[top, top, top, -top]])).tolist() == [[top, -top]]


def test_embed_is_code_times_element():
    q = np.array([[127, -127, 0, 1]], np.int8)
    code = np.array([(20 << 11) | 452])  # 2500 * 2**20
    assert ops.embed(q, code, 24).tolist() == [
        [_round_half_up(Fraction(int(v) * 2500, 1 << 4)) for v in q[0]]
    ]
