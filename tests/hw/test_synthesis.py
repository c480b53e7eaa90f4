"""The whole device goes through synthesis for an FPGA: nothing in it is for simulation only."""

import pytest

from dfvg_host.cli.main import main
from dfvg_hw.config import PRESETS, get_config
from dfvg_hw.elaborate import write_design
from sim.synthesis import synthesize_ecp5

# LFE5UM-85, the largest ECP5: what it has, and what tiny needs with two rows instead of four, with
# some room; docs/device.md has the figures.
CHIP = {"LUT4": 83_640, "TRELLIS_FF": 83_640, "DP16KD": 208, "MULT18X18D": 156}
BUDGET = {
    "LUT4": 38_500,
    "CCU2C": 5_200,
    "TRELLIS_FF": 28_500,
    "TRELLIS_DPR16X4": 880,
    "DP16KD": 80,
    "MULT18X18D": 104,
}


@pytest.mark.synth
@pytest.mark.verilator
@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", sorted(PRESETS))
def test_device_as_written_has_no_finding(name, tmp_path, capsys):
    """Lint (width warnings aside), latches, loops, drivers, dissolved memories."""
    assert main(["elaborate", "--config", name, "-o", str(tmp_path), "--check"]) == 0
    assert f"dfvg_{name}.v: no lint finding" in capsys.readouterr().out


@pytest.mark.synth
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_device_synthesises_whole(tmp_path):
    config = get_config("tiny").replace(name="ecp5", rows=2)
    file = write_design(config, tmp_path)
    counts = synthesize_ecp5(file, file.stem)
    used = {kind: counts.total(kind) for kind in BUDGET}
    print(used)
    # Nothing is left that has no cell on the chip; names of dissolved modules cost nothing.
    kinds = {*BUDGET, "PFUMX", "L6MUX21", "$scopeinfo"}
    assert {kind for kind in counts.cells if not kind.startswith(tuple(kinds))} == set()
    over = {kind: count for kind, count in used.items() if count > BUDGET[kind]}
    assert over == {}
    # A carry cell takes the place of two LUTs, a distributed RAM that of four and two more.
    luts = used["LUT4"] + 2 * used["CCU2C"] + 6 * used["TRELLIS_DPR16X4"]
    assert all(used[kind] <= count for kind, count in CHIP.items())
    assert luts <= CHIP["LUT4"]
    # Each 8-bit product of the array has a multiplier, and vector memory one block RAM per lane and
    # row: fewer would mean that part of the device was found to do nothing.
    assert used["MULT18X18D"] >= config.macs_per_cycle
    assert used["DP16KD"] >= config.rows * config.lanes
