"""Lines in the device-to-host ring: tags, CRC, order of publication, wrap, a full ring."""

import random

import pytest
from amaranth.sim import Simulator

from dfvg_hw.messages import open_line
from dfvg_hw.pcie.ring_writer import RingWriter
from tests.hw.pcie.buses import HostMemory

BASE = 0x7_0000_1000
LINES = 64


class Host:
    """Reads lines as they are published."""

    def __init__(self, memory):
        self.memory, self.index, self.found = memory, 0, []

    def take(self, produced):
        while self.index != produced:
            at = self.index % LINES * 64
            payload = open_line(self.memory.data[at : at + 64], self.index + 1)
            assert payload is not None, f"line {self.index + 1} was published before it was there"
            self.found.append(payload)
            self.index += 1


def simulate(size, seed, count, lag=0, pause=0.0, bad_write=None):
    """Send `count` messages; the host gives places back `lag` lines late. Returns what it saw."""
    rng = random.Random(seed)
    dut = RingWriter(size)
    memory = HostMemory(dut.axi, LINES * 64, rng, BASE, pause=pause)
    memory.bad_write = bad_write
    host = Host(memory)
    sent = [rng.randbytes(56) for _ in range(count)]
    events = {"error": 0, "stall": 0}

    async def bench(ctx):
        ctx.set(dut.base, BASE)
        ctx.set(dut.lines, LINES)
        number = 0
        for _ in range(400 + 80 * count):
            ctx.set(dut.i.valid, number < count)
            if number < count:
                ctx.set(dut.i.payload, int.from_bytes(sent[number], "little"))
            memory.step(ctx)
            taken = number < count and ctx.get(dut.i.ready)
            events["error"] += ctx.get(dut.error)
            events["stall"] += ctx.get(dut.stall)
            host.take(ctx.get(dut.produced))
            assert number - host.index <= LINES
            await ctx.tick()
            number += taken
            if rng.random() < 0.1:
                ctx.set(dut.consumed, max(0, host.index - lag))
        assert ctx.get(dut.idle) == (number == ctx.get(dut.produced))

    sim = Simulator(dut)
    sim.add_clock(1e-6)
    sim.add_testbench(bench)
    sim.run()
    return sent, host.found, events


@pytest.mark.parametrize("size", [8, 16, 64])
def test_ring_wraps(size, seed):
    sent, found, events = simulate(size, seed, 150, pause=0.2)
    assert found == sent
    assert events["error"] == 0


def test_nothing_is_overwritten_when_the_ring_is_full(seed):
    sent, found, events = simulate(64, seed, 90, lag=1000)  # the host never gives places back
    assert found == sent[:LINES]
    assert events["stall"] > 100


def test_error_response_is_reported(seed):
    sent, found, events = simulate(64, seed, 5, bad_write=2)
    assert events["error"] == 1
    assert len(found) == 5
    assert found == sent
