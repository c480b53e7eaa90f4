# amaranth: UnusedElaboratable=no
"""Memories against a list of words."""

import random

import pytest
from amaranth.sim import Simulator

from dfvg_hw.common.memory import Ram, Rom


@pytest.mark.parametrize(
    ("width", "depth", "granularity"), [(8, 1, None), (24, 37, 8), (16, 64, 4)]
)
def test_ram_reads_old_word_under_write_and_holds_while_not_enabled(
    width, depth, granularity, seed
):
    rng = random.Random(seed)
    dut = Ram(width, depth, granularity=granularity)
    part = granularity or width

    async def bench(ctx):
        words, expected = [0] * depth, 0
        for _ in range(600):
            en = rng.getrandbits(width // part)
            w_addr, r_addr = rng.randrange(depth), rng.randrange(depth)
            data, read = rng.getrandbits(width), rng.getrandbits(1)
            ctx.set(dut.w_en, en)
            ctx.set(dut.w_addr, w_addr)
            ctx.set(dut.w_data, data)
            ctx.set(dut.r_en, read)
            ctx.set(dut.r_addr, r_addr)
            if read:
                expected = words[r_addr]
            for i in range(width // part):
                if en >> i & 1:
                    mask = ((1 << part) - 1) << (i * part)
                    words[w_addr] = words[w_addr] & ~mask | data & mask
            await ctx.tick()
            assert ctx.get(dut.r_data) == expected

    sim = Simulator(dut)
    sim.add_clock(1e-6)
    sim.add_testbench(bench)
    sim.run()


def test_rom_returns_its_words():
    words = [3, 1, 4, 1, 5, 9, 2, 6]
    dut = Rom(4, words)

    async def bench(ctx):
        ctx.set(dut.r_en, 1)
        for addr, word in enumerate(words):
            ctx.set(dut.r_addr, addr)
            await ctx.tick()
            assert ctx.get(dut.r_data) == word

    sim = Simulator(dut)
    sim.add_clock(1e-6)
    sim.add_testbench(bench)
    sim.run()


def test_granularity_must_divide_the_width():
    with pytest.raises(ValueError, match="granularity 5 doesn't divide the width 24"):
        Ram(24, 16, granularity=5)
