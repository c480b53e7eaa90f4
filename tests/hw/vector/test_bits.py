"""Bit length and normalisation against Python's integers."""

import random

import pytest
from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from dfvg_hw.vector.bits import bit_length, normalise
from tests.hw.matmul.bench import simulate


class Bits(wiring.Component):
    """Both helpers on one value."""

    def __init__(self, width):
        super().__init__({"x": In(width), "n": Out(8), "norm": Out(width), "shift": Out(8)})

    def elaborate(self, platform):
        m = Module()
        x = Signal.like(self.x)
        m.d.sync += x.eq(self.x)
        shifted, count = normalise(m, x, "norm")
        m.d.comb += [
            self.n.eq(bit_length(m, x, "length")),
            self.norm.eq(shifted),
            self.shift.eq(count),
        ]
        return m


@pytest.mark.parametrize("width", [1, 2, 3, 5, 8, 31, 32, 44, 45])
def test_helpers_match_python(width, seed):
    rng = random.Random(seed)
    values = list(range(1 << width)) if width <= 8 else []
    for bits in range(width + 1):
        values += [(1 << bits) - 1, (1 << bits) >> 1, rng.getrandbits(bits) if bits else 0]
    dut = Bits(width)

    async def bench(ctx):
        for x in values:
            ctx.set(dut.x, x)
            await ctx.tick()
            assert ctx.get(dut.n) == x.bit_length(), x
            if x:
                assert ctx.get(dut.shift) == width - x.bit_length(), x
                assert ctx.get(dut.norm) == x << (width - x.bit_length()), x
            else:
                assert ctx.get(dut.norm) == 0

    simulate(dut, bench)
