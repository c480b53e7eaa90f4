"""The mailbox window: any split of a line, as long as its last dword comes last."""

import itertools
import random

import pytest
from amaranth.sim import Simulator

from dfvg_hw.config import get_config
from dfvg_hw.pcie.mailbox import Mailbox
from tests.hw.pcie.buses import burst_write


@pytest.mark.parametrize("size", [8, 16, 64])
def test_any_split_of_a_line(size, seed):
    rng = random.Random(seed)
    dut = Mailbox(get_config("tiny").replace(bus_bytes=size))
    lines = 8

    def parts():
        """Cut 64 bytes into bursts: (offset, bytes, beat)."""
        beat = rng.choice([b for b in (4, 8, 16, 32, 64) if b <= size])
        cuts = sorted({0, 64, *(rng.randrange(0, 64, beat) for _ in range(rng.randrange(3)))})
        pieces = [(a, b - a, beat) for a, b in itertools.pairwise(cuts)]
        body = pieces[:-1]
        rng.shuffle(body)
        return [*body, pieces[-1]]

    async def bench(ctx):
        for _ in range(40):
            number, data = rng.randrange(lines), rng.randbytes(64)
            for offset, length, beat in parts():
                assert not ctx.get(dut.arrived) >> number & 1
                at = 64 * number + offset
                chunk = data[offset : offset + length]
                assert await burst_write(ctx, dut.axi, at, chunk, beat, rng, pause=0.3) == 0
            assert ctx.get(dut.arrived) == 1 << number
            found = b""
            for word in range(64 // size):
                ctx.set(dut.r_en, 1)
                ctx.set(dut.r_addr, number * 64 // size + word)
                await ctx.tick()
                found += ctx.get(dut.r_data).to_bytes(size, "little")
            assert found == data
            ctx.set(dut.clear, 1 << number)
            await ctx.tick()
            ctx.set(dut.clear, 0)
            assert ctx.get(dut.arrived) == 0
        # Beyond the lines: refused, and nothing arrives.
        assert await burst_write(ctx, dut.axi, 64 * lines, bytes(64), size, rng) == 3
        assert ctx.get(dut.arrived) == 0

    sim = Simulator(dut)
    sim.add_clock(1e-6)
    sim.add_testbench(bench)
    sim.run()
