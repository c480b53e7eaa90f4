"""cocotb side: a tree unit's long random life beside the reference model."""

import statistics

import cocotb
from cocotb.triggers import FallingEdge, ReadOnly

from sim.cocotb.bench import Bench, parameter
from sim.runner import bench_seed
from tests.cocotb.configs import config_of
from tests.hw.tree.rtl_driver import Pins, random_life

CONFIG = config_of(parameter("config", str))
STEPS = parameter("steps", int)


class CocotbPins(Pins):
    """Ports of the top; inputs change at falling edges, outputs are read before rising ones."""

    def __init__(self, dut):
        self._dut, self.edge = dut, FallingEdge(dut.clk)

    def set(self, name, value):
        getattr(self._dut, name).value = value

    def get(self, name):
        return int(getattr(self._dut, name).value)

    async def clock(self, sample):
        await ReadOnly()
        sample()
        await self.edge


async def live(dut, label, steps, **options):
    """Reset the unit and run a life on it."""
    bench = Bench(dut)
    pins = CocotbPins(dut)
    await bench.start()
    await pins.edge
    driver = await random_life(pins, CONFIG, f"{bench_seed()} {label}", steps, **options)
    for what, cycles in sorted(driver.spent.items()):
        dut._log.info(
            f"{what}: {len(cycles)} times, median {statistics.median(cycles):.0f}, "
            f"mean {statistics.mean(cycles):.0f}, most {max(cycles)} cycles"
        )
    return driver


@cocotb.test(timeout_time=200, timeout_unit="ms")
async def equals_the_model(dut):
    driver = await live(dut, "plain", STEPS, follow=0.8)
    assert driver.model.pass_number > STEPS // 2


@cocotb.test(timeout_time=200, timeout_unit="ms")
async def equals_the_model_with_faults_and_backpressure(dut):
    await live(dut, "faults", STEPS // 2, follow=0.5, faults=0.05, backpressure=0.6)


@cocotb.test(timeout_time=200, timeout_unit="ms")
async def forgets_everything_in_a_reset(dut):
    """Reset in the middle of whatever happens; a new life must not notice the old one."""
    for number in range(5):
        bench = Bench(dut)
        pins = CocotbPins(dut)
        await bench.start()
        await pins.edge
        life = cocotb.start_soon(random_life(pins, CONFIG, f"{bench_seed()} {number}", STEPS))
        await bench.cycles(bench_seed() % 100 + 700 * number + 300)
        life.cancel()
        await live(dut, f"after reset {number}", STEPS // 10)


@cocotb.test(timeout_time=200, timeout_unit="ms")
async def equals_the_model_with_large_trees(dut):
    """Many passes between verdicts, drafts mostly right: full tables, long contexts."""
    await live(dut, "large", STEPS, follow=0.97, commands=(0, 0, 0, 0, 0, 1), in_pass=0.05)
