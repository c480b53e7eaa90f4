"""The whole device goes through synthesis for an FPGA: nothing in it is for simulation only."""

import pytest

from dfvg_hw.config import get_config
from dfvg_hw.elaborate import write_design
from sim.synthesis import synthesize_ecp5

# At tiny, with some room; docs/device.md has the figures.
BUDGET = {
    "LUT4": 54_000,
    "CCU2C": 8_000,
    "TRELLIS_FF": 39_000,
    "TRELLIS_DPR16X4": 1_150,
    "DP16KD": 120,
    "MULT18X18D": 193,
}


@pytest.mark.synth
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_device_synthesises_whole(tmp_path):
    config = get_config("tiny")
    file = write_design(config, tmp_path)
    counts = synthesize_ecp5(file, file.stem)
    used = {kind: counts.total(kind) for kind in BUDGET}
    print(used)
    # Nothing is left that has no cell on the chip; names of dissolved modules cost nothing.
    kinds = {*BUDGET, "PFUMX", "L6MUX21", "$scopeinfo"}
    assert {kind for kind in counts.cells if not kind.startswith(tuple(kinds))} == set()
    over = {kind: count for kind, count in used.items() if count > BUDGET[kind]}
    assert over == {}
    # Each 8-bit product of the array has a multiplier, and vector memory one block RAM per lane and
    # row: fewer would mean that part of the device was found to do nothing.
    assert used["MULT18X18D"] >= config.macs_per_cycle
    assert used["DP16KD"] >= config.rows * config.lanes
