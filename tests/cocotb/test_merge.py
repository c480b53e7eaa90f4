"""The merge unit against a Python model of the pages."""

import pytest

from dfvg_hw.attention.merge import MergeUnit
from sim.runner import run_bench
from tests.cocotb.configs import config_of

pytestmark = [pytest.mark.verilator, pytest.mark.rtl]


@pytest.mark.parametrize("config", ["odd", "tiny", "sim"])
def test_merge_unit(config):
    run_bench(
        lambda: MergeUnit(config_of(config)),
        "tests.cocotb.tb_merge",
        expected_tests=12,
        parameters={"config": config},
    )
