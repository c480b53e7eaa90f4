"""The blocks around the engines in Yosys: no latch, no loop, no memory dissolved to flip-flops."""

import pytest

from dfvg_hw.attention.merge import MergeUnit
from dfvg_hw.memory.port import MemoryPort
from dfvg_hw.overlap.control import PassController
from dfvg_hw.overlap.fetch import Fetch
from dfvg_hw.overlap.load import LoadEngine
from dfvg_hw.overlap.page_table import PageTable
from dfvg_hw.overlap.program import ProgramLoader
from dfvg_hw.verilog import to_verilog
from sim.synthesis import check_design, synthesize_ecp5
from tests.cocotb.configs import config_of

pytestmark = pytest.mark.synth

BLOCKS = (MemoryPort, MergeUnit, Fetch, LoadEngine, PassController, PageTable, ProgramLoader)


def write(tmp_path, component):
    file = tmp_path / "top.v"
    file.write_text(to_verilog(component, "top"))
    return file


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.__name__)
@pytest.mark.parametrize("config", ["odd", "tiny"])
def test_block_is_sound(block, config, tmp_path):
    check_design(write(tmp_path, block(config_of(config))), "top")


# (LUT4, flip-flops, block RAMs, multipliers) at tiny, with some room.
BUDGET = {
    MemoryPort: (1500, 900, 12, 0),
    MergeUnit: (5000, 1600, 6, 4),
    Fetch: (400, 700, 6, 0),
    LoadEngine: (700, 250, 0, 4),
}


@pytest.mark.slow
@pytest.mark.parametrize("block", BUDGET, ids=lambda block: block.__name__)
def test_block_keeps_its_budget(block, tmp_path):
    counts = synthesize_ecp5(write(tmp_path, block(config_of("tiny"))), "top")
    kinds = ("LUT4", "TRELLIS_FF", "DP16KD", "MULT18X18D")
    used = tuple(counts.total(kind) for kind in kinds)
    print(block.__name__, dict(zip(kinds, used, strict=True)))
    assert all(have <= most for have, most in zip(used, BUDGET[block], strict=True)), used
