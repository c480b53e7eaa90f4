"""cocotb side: run the manager for a while and let the memory judge it."""

import cocotb

from sim.cocotb.axi import AxiMemory
from sim.cocotb.bench import Bench, parameter, rng


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def runs_on_the_memory(dut):
    bench = Bench(dut)
    dut.fault.value = parameter("fault", int)
    memory = AxiMemory(
        dut, "axi", 1 << 16, rng("memory"),
        latency=(1, 9), reads="random", addresses="random", writes="random",
    )  # fmt: skip
    await bench.start()
    await bench.cycles(2000)
    assert memory.reads > 200
    assert memory.writes > 200
