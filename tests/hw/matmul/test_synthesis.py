"""The matrix engine in Yosys: no latch, loop or dissolved memory, and multipliers as planned."""

import pytest

from dfvg_hw.matmul import MatmulEngine
from dfvg_hw.verilog import to_verilog
from sim.synthesis import check_design, synthesize_ecp5
from tests.cocotb.configs import config_of

pytestmark = pytest.mark.synth


def write(tmp_path, name):
    file = tmp_path / "top.v"
    file.write_text(to_verilog(MatmulEngine(config_of(name)), "top"))
    return file


@pytest.mark.parametrize("name", ["tiny", "odd"])
def test_engine_is_sound(name, tmp_path):
    check_design(write(tmp_path, name), "top")


@pytest.mark.slow
def test_engine_cells_at_tiny(tmp_path):
    config = config_of("tiny")
    counts = synthesize_ecp5(write(tmp_path, "tiny"), "top")
    # 8-bit products: one multiplier each. Per row, in 18-bit multipliers: t*mant 32x16 (2),
    # u*column 32x12 (2), two of 32x16 for ROPE (4), sigmoid slope (1), g*sigmoid 32x16 (2),
    # silu*u 32x32 (4); three in the decoder for the loop strides.
    per_row = 2 + 2 + 4 + 1 + 2 + 4
    assert counts.total("MULT18X18D") <= config.macs_per_cycle + config.rows * per_row + 3
    assert counts.total("MULT18X18D") >= config.macs_per_cycle
    assert counts.total("TRELLIS_FF") < 14_000
    assert counts.total("LUT4") < 12_000
    assert counts.total("DP16KD") <= 44
