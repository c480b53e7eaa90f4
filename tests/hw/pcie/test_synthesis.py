"""The link's blocks in Yosys: no latch, no loop, no memory dissolved into flip-flops."""

import pytest

from dfvg_hw.config import get_config
from dfvg_hw.head.id_map import IdMap
from dfvg_hw.memory.share import MemoryShare
from dfvg_hw.pcie import RingEngine
from dfvg_hw.pcie.control import Control
from dfvg_hw.verilog import to_verilog
from sim.synthesis import check_design

BLOCKS = {
    "ring_engine": RingEngine,
    "control": Control,
    "id_map": IdMap,
    "memory_share": MemoryShare,
}


@pytest.mark.synth
@pytest.mark.parametrize("name", BLOCKS)
def test_block_synthesises_cleanly(name, tmp_path):
    file = tmp_path / f"{name}.v"
    block = BLOCKS[name](get_config("tiny"))
    file.write_text(to_verilog(block, name))
    check_design(file, name)
