"""The synthesis checks let good designs through and find each planted fault."""

import pytest

from dfvg_hw.errors import BuildError
from dfvg_hw.verilog import to_verilog
from sim.synthesis import check_design, synthesize_ecp5
from tests.sim.designs import FaultyQueue, MacArray

pytestmark = pytest.mark.synth

MEMORY = (
    "module {top}(input clk, input en, input [9:0] w, input [9:0] r, input [7:0] d,\n"
    "             output [7:0] q);\n"
    "  reg [7:0] mem [0:{depth}-1];\n"
    "  always @(posedge clk) if (en) mem[w] <= d;\n"
    "{read}endmodule\n"
)

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
    "loop through two modules": (
        "module half(input a, input b, output x);\n  assign x = a ? ~b : a;\nendmodule\n"
        "module top(input a, input b, output x, output y);\n"
        "  half left(.a(a), .b(y), .x(x));\n  half right(.a(b), .b(x), .x(y));\nendmodule\n",
        "logic loop",
    ),
    "latch in a submodule": (
        "module inner(input en, input d, output reg q);\n  always @* if (en) q = d;\nendmodule\n"
        "module top(input en, input d, output q);\n"
        "  inner i(.en(en), .d(d), .q(q));\nendmodule\n",
        r"not empty: t:\$dlatch",
    ),
    "two drivers": (
        "module top(input a, input b, output x);\n  assign x = a;\n  assign x = b;\nendmodule\n",
        "multiple conflicting drivers",
    ),
    "deep memory with asynchronous read": (
        MEMORY.format(top="top", depth=1024, read="  assign q = mem[r];\n"),
        r"not empty: t:\$mem_v2 r:SIZE>32",
    ),
    "deep table with asynchronous read": (
        "module top(input [5:0] r, output [7:0] q);\n  reg [7:0] mem [0:63];\n"
        "  integer i;\n  initial for (i = 0; i < 64; i = i + 1) mem[i] = i * i * 37 + i;\n"
        "  assign q = mem[r];\nendmodule\n",
        r"not empty: t:\$mem_v2 r:SIZE>32",
    ),
    "deep memory in a submodule": (
        MEMORY.format(top="inner", depth=64, read="  assign q = mem[r];\n")
        + "module top(input clk, input [9:0] w, input [9:0] r, input [7:0] d, output [7:0] q);\n"
        "  inner i(.clk(clk), .en(1'b1), .w(w), .r(r), .d(d), .q(q));\nendmodule\n",
        r"not empty: t:\$mem_v2 r:SIZE>32",
    ),
    "shallow memory with a reset": (
        "module top(input clk, input rst, input [3:0] w, input [3:0] r, input [3:0] s,\n"
        "           input [7:0] d, output [7:0] q);\n"
        "  reg [7:0] mem [0:15];\n"
        "  always @(posedge clk) begin mem[w] <= d; if (rst) mem[s] <= 0; end\n"
        "  assign q = mem[r];\nendmodule\n",
        r"not empty: t:\$mem_v2 r:WR_PORTS>0",
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
    file.write_text(to_verilog(design(), "top"))
    check_design(file, "top")


REGISTERED = "  reg [7:0] o;\n  always @(posedge clk) if (!en) o <= mem[r];\n  assign q = o;\n"
SOUND = {
    "block RAM": MEMORY.format(top="top", depth=1024, read=REGISTERED),
    "distributed RAM": MEMORY.format(top="top", depth=32, read="  assign q = mem[r];\n"),
    "two words": MEMORY.format(top="top", depth=2, read="  assign q = mem[r];\n"),
    "many constants": "module top(input [6:0] a, output reg [7:0] x);\n  always @* case (a)\n"
    + "".join(f"    {i}: x = {i * i * 37 % 251};\n" for i in range(127))
    + "    default: x = 0;\n  endcase\nendmodule\n",
}


@pytest.mark.parametrize("name", SOUND)
def test_what_memory_cells_hold_passes(name, tmp_path):
    file = tmp_path / "top.v"
    file.write_text(SOUND[name])
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
    file.write_text(to_verilog(MacArray(2, 4), "top"))
    counts = synthesize_ecp5(file, "top")
    assert counts.total("MULT18X18D") == 8
    assert counts.total("TRELLIS_FF") >= 2 * 4 * 16
    assert counts.total("DP16KD", "TRELLIS_DPR16X4") == 0
