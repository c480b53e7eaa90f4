"""The memory port on an AXI4 memory with random latency, stalls and errors."""

import pytest

from dfvg_hw.memory.port import MemoryPort
from sim.runner import BenchFailure, run_bench
from tests.cocotb.configs import config_of
from tests.cocotb.faulty_manager import Fault, FaultyManager

pytestmark = [pytest.mark.verilator, pytest.mark.rtl]


@pytest.mark.parametrize("config", ["odd", "tiny", "sim"])
def test_memory_port(config):
    run_bench(
        lambda: MemoryPort(config_of(config)),
        "tests.cocotb.tb_memory",
        expected_tests=17,
        parameters={"config": config},
    )


EXPECTED = {
    Fault.NONE: None,
    Fault.CROSSES: "crosses a 4 KiB line",
    Fault.ADDRESS_CHANGES: "before accepted",
    Fault.VALID_FALLS: "before accepted",
    Fault.SPARSE: "strobes .* are not all high",
    Fault.EARLY_LAST: "wlast is 1",
    Fault.NOT_READY: "the manager makes read data wait",
    Fault.WRAP: "not an INCR burst",
    Fault.UNALIGNED: "not aligned",
}


@pytest.mark.parametrize("fault", EXPECTED, ids=lambda fault: fault.name.lower())
def test_the_protocol_checker_can_fail(fault):
    def run():
        run_bench(
            FaultyManager,
            "tests.cocotb.tb_faulty_manager",
            expected_tests=1,
            parameters={"fault": fault.value},
        )

    if EXPECTED[fault] is None:
        run()
        return
    with pytest.raises(BenchFailure, match=EXPECTED[fault]):
        run()
