"""The vector engine in Yosys: no latch, loop or dissolved memory, and multipliers as planned."""

import pytest

from dfvg_hw.vector.engine import VectorEngine
from dfvg_hw.verilog import to_verilog
from sim.synthesis import check_design, synthesize_ecp5
from tests.cocotb.configs import config_of

pytestmark = pytest.mark.synth


def write(tmp_path, name):
    file = tmp_path / "top.v"
    file.write_text(to_verilog(VectorEngine(config_of(name)), "top"))
    return file


@pytest.mark.parametrize("name", ["tiny", "odd"])
def test_engine_is_sound(name, tmp_path):
    check_design(write(tmp_path, name), "top")


@pytest.mark.slow
def test_engine_cells_at_tiny(tmp_path):
    config = config_of("tiny")
    counts = synthesize_ecp5(write(tmp_path, "tiny"), "top")
    print(counts.cells)
    assert counts.total("DP16KD") <= 48
    # Per lane, in 18-bit multipliers: v*factor 32x16 (2), z*rec 32x16 (2), a square (1); the
    # scalar unit: 16x16, two slopes; the decoder's loop stride.
    per_lane = 2 + 2 + 1
    assert counts.total("MULT18X18D") <= config.rows * config.lanes * per_lane + 5
    assert counts.total("TRELLIS_FF") < 12_500
    assert counts.total("LUT4") < 23_000
