"""The tree unit's Verilog: no latch, no combinational loop, no memory in flip-flops."""

import pytest

from dfvg_hw.config import PRESETS
from dfvg_hw.tree.unit import TreeUnit
from dfvg_hw.verilog import to_verilog
from sim.synthesis import check_design

pytestmark = pytest.mark.synth


def test_structure(tmp_path):
    file = tmp_path / "tree.v"
    file.write_text(to_verilog(TreeUnit(PRESETS["tiny"]), "tree"))
    check_design(file, "tree")
