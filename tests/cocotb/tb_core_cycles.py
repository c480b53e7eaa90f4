"""cocotb side of the cycle model's test: passes with the config's own memory model, timed."""

import json
import random
from pathlib import Path

import cocotb

from sim.cocotb.bench import parameter
from tests.cocotb.tb_core import CASE, CONFIG, CoreBench


def _mean_stalls(percent):
    """Deliver no word in `percent` of the cycles, at random."""
    rng = random.Random(percent)
    while True:
        yield rng.random() * 100 >= percent


@cocotb.test(timeout_time=500, timeout_unit="ms")
async def cycles_of_every_pass(dut):
    latency = CONFIG.memory.latency_cycles
    bench = CoreBench(dut, latency=(latency, latency))
    bench.memory._profiles["r"] = _mean_stalls(CONFIG.memory.stall_percent)
    await bench.boot()
    cycles = [await bench.run(item) for item in CASE.passes]
    Path(parameter("cycles", str)).write_text(json.dumps(cycles))
