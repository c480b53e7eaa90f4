"""The tree unit's Verilog: no latch, no combinational loop, no memory in flip-flops."""

import pytest
from amaranth.back import verilog

from dfvg_hw.config import PRESETS
from dfvg_hw.tree.unit import TreeUnit
from sim.synthesis import check_design

pytestmark = pytest.mark.synth


def test_structure(tmp_path):
    file = tmp_path / "tree.v"
    file.write_text(verilog.convert(TreeUnit(PRESETS["tiny"]), name="tree", emit_src=False))
    check_design(file, "tree")
