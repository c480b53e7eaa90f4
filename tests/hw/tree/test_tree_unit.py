"""The tree unit in Amaranth's simulator against the reference model."""

import pytest
from amaranth.hdl import Value
from amaranth.sim import Simulator

from dfvg_hw.config import PRESETS
from dfvg_hw.tree.unit import TreeUnit
from tests.hw.tree.rtl_driver import Pins, random_life

TINY = PRESETS["tiny"]
CONFIGS = {
    "tiny": TINY,
    "few slots": TINY.replace(m_slots=8, candidates=32, rows=8, max_ctx=64),
    "three sequences": TINY.replace(max_seqs=3, m_slots=24, candidates=96, max_ctx=128),
}

pytestmark = pytest.mark.rtl


class SimulatorPins(Pins):
    """Ports of a component in Amaranth's simulator."""

    def __init__(self, dut, context):
        self._dut, self._context = dut, context
        self._ports = {}

    def _port(self, name):
        if name not in self._ports:
            port = self._dut
            for part in name.split("__"):
                port = getattr(port, part)
            self._ports[name] = Value.cast(port)
        return self._ports[name]

    def set(self, name, value):
        self._context.set(self._port(name), value)

    def get(self, name):
        return self._context.get(self._port(name))

    async def clock(self, sample):
        sample()
        await self._context.tick()


def live(config, seed, steps, **options):
    """Run a life in the simulator and return its driver."""
    dut = TreeUnit(config)
    drivers = []

    async def bench(context):
        drivers.append(
            await random_life(SimulatorPins(dut, context), config, seed, steps, **options)
        )

    simulator = Simulator(dut)
    simulator.add_clock(1e-8)
    simulator.add_testbench(bench)
    simulator.run()
    return drivers[0]


@pytest.mark.parametrize("name", CONFIGS)
def test_equals_the_model(name, seed):
    driver = live(CONFIGS[name], seed, 40, backpressure=0.3, faults=0.03)
    assert driver.model.pass_number > 20
