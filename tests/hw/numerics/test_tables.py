"""Function tables: contents pinned, errors bounded over every argument they can see."""

import numpy as np
import pytest

from dfvg_hw.numerics import attention as at
from dfvg_hw.numerics import formats as fm
from dfvg_hw.numerics import ops, tables

DIGEST = "512f028a71693ff87fe097284c48688e2209bb5847121cd186e55ecc97df3bc2"


def test_contents_are_the_same_on_every_platform():
    assert tables.digest() == DIGEST


@pytest.mark.parametrize("table", tables.LINEAR_TABLES, ids=lambda t: t.name)
def test_linear_tables_never_leave_16_bits(table):
    frac = np.arange(1 << table.frac_bits)
    y = table(np.arange(len(table.base))[:, None], frac[None])
    assert y.min() >= 0
    assert y.max() <= 65535
    assert table.base_bits <= 16
    assert table.slope_bits <= 12


def test_recip_within_two_units_of_the_exact_value():
    m = np.arange(1 << 15, 1 << 16)
    error = ops.recip(m) - 127 * 2.0**24 / m
    assert np.abs(error).max() <= 1.6
    assert abs(error.mean()) < 0.1
    assert ops.recip(m).min() > 1 << 14  # 15 or 16 bits: the softmax scale relies on it


@pytest.mark.parametrize("low", [1, 1 << 20, 1 << 43])
def test_rsqrt_relative_error(low, seed):
    rng = np.random.default_rng(seed)
    span = min(low, 1 << 20)
    ss = low + (np.arange(span) if low == span else rng.integers(0, low, span))
    rm, re = ops.rsqrt(ss)
    assert np.abs(rm * 2.0**re * np.sqrt(ss.astype(float)) - 1).max() < 5e-5
    assert rm.min() >= 1 << 15
    assert rm.max() < 1 << 16


def test_rsqrt_takes_every_16_bit_mantissa():
    for shift in (0, 1):
        ss = np.arange(1 << 15, 1 << 16) << shift
        rm, re = ops.rsqrt(ss)
        assert np.abs(rm * 2.0**re * np.sqrt(ss) - 1).max() < 5e-5


def test_sigmoid_within_three_units_over_all_arguments():
    g = np.arange(-17 << fm.ACT_FRAC, 17 << fm.ACT_FRAC)
    exact = 65536 / (1 + np.exp(-g / (1 << fm.ACT_FRAC)))
    error = ops.sigmoid(g) - exact
    assert np.abs(error).max() < 2.7
    assert ops.sigmoid(np.array([-fm.ACT_MAX, fm.ACT_MAX])).tolist() == [0, 65535]


def test_exponentials_over_all_arguments():
    d = np.arange(0, 18 << 8)
    assert np.abs(at.exp2_neg(d) - 2.0 ** (15 - d / 256)).max() <= 1.0
    assert np.abs(at.exp127(d) - 127 * 2.0 ** (-d / 256)).max() <= 0.51
    assert at.exp2_neg(np.array([0])) == 1 << 15
    assert at.exp127(np.array([0])) == 127
    assert at.exp2_neg(np.array([16 << 8, 1 << 30])).tolist() == [0, 0]
    assert at.exp127(np.array([8 << 8, 1 << 30])).tolist() == [0, 0]


def test_powers_of_two_are_rounded_to_the_nearest():
    assert np.abs(tables.T2 - 2.0 ** (15 + np.arange(256) / 256)).max() <= 0.5


def test_log2_fix_within_a_unit_and_a_quarter():
    u = np.unique(
        np.concatenate([np.arange(1, 1 << 17), (1 << np.arange(50)), (1 << np.arange(2, 50)) - 1])
    )
    assert np.abs(at.log2_fix(u) - 256 * np.log2(u.astype(float))).max() < 1.25


def test_value_log2_of_every_code():
    code = np.arange(256)
    mantissa, exponent = ops.decode_sf8(code)
    exact = 256 * (np.log2(mantissa) + exponent)
    assert np.abs(at.value_log2(code) - exact).max() <= 0.5
