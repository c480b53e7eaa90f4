"""The tree unit on Verilator: thousands of passes and verdicts beside the reference model."""

import pytest

from dfvg_hw.tree.unit import TreeUnit
from sim.runner import run_bench
from tests.cocotb.configs import config_of

pytestmark = [pytest.mark.verilator, pytest.mark.rtl]


@pytest.mark.parametrize(("name", "steps"), [("tiny", 1000), ("odd", 500), ("sim", 300)])
def test_tree_unit(name, steps):
    run_bench(
        lambda: TreeUnit(config_of(name)),
        "tests.cocotb.tb_tree",
        expected_tests=4,
        parameters={"config": name, "steps": steps},
    )
