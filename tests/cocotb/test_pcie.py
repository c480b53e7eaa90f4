"""The ring engine in Verilator: a host's memory and processor on one side, streams on the other."""

import pytest

from dfvg_hw.config import get_config
from dfvg_hw.pcie import RingEngine
from sim.runner import run_bench

pytestmark = [pytest.mark.verilator, pytest.mark.rtl]


@pytest.mark.parametrize("config", ["tiny", "sim"])
def test_ring_engine(config):
    run_bench(
        lambda: RingEngine(get_config(config)),
        "tests.cocotb.tb_pcie",
        expected_tests=14,
        parameters={"config": config},
    )
