"""The merge unit against a Python model of the pages."""

import pytest

from dfvg_hw.attention.merge import MergeUnit
from dfvg_hw.config import get_config
from sim.runner import run_bench

pytestmark = [pytest.mark.verilator, pytest.mark.rtl]

CONFIGS = {
    "tiny": get_config("tiny"),
    "sim": get_config("sim"),
}


@pytest.mark.parametrize("config", CONFIGS)
def test_merge_unit(config):
    run_bench(
        lambda: MergeUnit(CONFIGS[config]),
        "tests.cocotb.tb_merge",
        expected_tests=12,
        parameters={"config": config},
    )
