"""The synthesis checks let good designs through and find each planted fault."""

import pytest
from amaranth.back import verilog

from dfvg_hw.errors import BuildError
from sim.synthesis import check_design, synthesize_ecp5
from tests.sim.designs import FaultyQueue, MacArray

pytestmark = pytest.mark.synth

FAULTS = {
    "latch": (
        "module top(input en, input d, output reg q);\n  always @* if (en) q = d;\nendmodule\n",
        r"not empty: t:\$dlatch",
    ),
    "loop": (
        "module top(input a, input b, output x, output y);\n"
        "  assign x = a ? ~y : b;\n  assign y = b ? x : a;\nendmodule\n",
        "logic loop",
    ),
    "memory with three ports": (
        "module top(input clk, input [9:0] w, input [9:0] r, input [9:0] s, input [7:0] d,\n"
        "           output [7:0] q, output [7:0] p);\n"
        "  reg [7:0] mem [0:1023];\n"
        "  always @(posedge clk) begin mem[w] <= d; mem[r] <= ~d; mem[s] <= 0; end\n"
        "  assign q = mem[r];\n  assign p = mem[s];\nendmodule\n",
        r"not empty: t:\$mem_v2",
    ),
    "undriven wire": (
        "module top(input a, output x);\n  wire y;\n  assign x = a ^ y;\nendmodule\n",
        "y.*no driver",
    ),
    "missing module": (
        "module top(input a, output x);\n  other o(.a(a), .x(x));\nendmodule\n",
        "other.*not part of the design",
    ),
}


@pytest.mark.parametrize("design", [FaultyQueue, lambda: MacArray(2, 4)], ids=["queue", "array"])
def test_sound_designs_pass(design, tmp_path):
    file = tmp_path / "top.v"
    file.write_text(verilog.convert(design(), name="top", emit_src=False))
    check_design(file, "top")


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_found(fault, tmp_path):
    text, message = FAULTS[fault]
    file = tmp_path / "top.v"
    file.write_text(text)
    with pytest.raises(BuildError, match=rf"checking top failed.*({message})") as error:
        check_design(file, "top")
    assert "\n" not in str(error.value)


def test_multipliers_are_counted(tmp_path):
    file = tmp_path / "top.v"
    file.write_text(verilog.convert(MacArray(2, 4), name="top", emit_src=False))
    counts = synthesize_ecp5(file, "top")
    assert counts.total("MULT18X18D") == 8
    assert counts.total("TRELLIS_FF") >= 2 * 4 * 16
    assert counts.total("DP16KD", "TRELLIS_DPR16X4") == 0
