# amaranth: UnusedElaboratable=no
"""The CRC unit against the protocol's own CRC."""

import random

import pytest
from amaranth.sim import Simulator

from dfvg_hw.messages import crc32c
from dfvg_hw.pcie.crc import Crc32c
from dfvg_hw.pcie.line import LineShift


@pytest.mark.parametrize("size", [4, 8, 16, 64])
def test_crc_of_random_blocks_with_gaps(size, seed):
    rng = random.Random(seed)
    dut = Crc32c(size)

    async def bench(ctx):
        for words in (1, 2, 7, 1, 16):
            block = rng.randbytes(words * size)
            separate = rng.random() < 0.5  # start alone, or with the first word
            ctx.set(dut.start, 1)
            ctx.set(dut.valid, 0)
            if separate:
                await ctx.tick()
                ctx.set(dut.start, 0)
            for at in range(0, len(block), size):
                while rng.random() < 0.3:
                    ctx.set(dut.valid, 0)
                    ctx.set(dut.data, rng.getrandbits(8 * size))
                    await ctx.tick()
                    ctx.set(dut.start, 0 if separate or at else 1)
                ctx.set(dut.valid, 1)
                ctx.set(dut.data, int.from_bytes(block[at : at + size], "little"))
                await ctx.tick()
                ctx.set(dut.start, 0)
            ctx.set(dut.valid, 0)
            assert ctx.get(dut.crc) == crc32c(block)

    sim = Simulator(dut)
    sim.add_clock(1e-6)
    sim.add_testbench(bench)
    sim.run()


def test_word_narrower_than_the_state_is_refused():
    with pytest.raises(ValueError, match="2 bytes"):
        Crc32c(2)


@pytest.mark.parametrize("size", [8, 64])
def test_line_crc_covers_message_and_tag_only(size, seed):
    rng = random.Random(seed)
    dut = LineShift(size)

    async def check(ctx):
        ctx.set(dut.check, 1)
        await ctx.tick()
        ctx.set(dut.check, 0)
        while not ctx.get(dut.done):
            await ctx.tick()
        return ctx.get(dut.crc)

    async def bench(ctx):
        for _ in range(3):
            line = rng.randbytes(64)
            expected = crc32c(line[:56] + line[60:])
            ctx.set(dut.shift, 1)
            for at in range(0, 64, size):
                ctx.set(dut.word, int.from_bytes(line[at : at + size], "little"))
                await ctx.tick()
            ctx.set(dut.shift, 0)
            assert await check(ctx) == expected
            assert ctx.get(dut.line) == int.from_bytes(line, "little")
            ctx.set(dut.load, 1)
            ctx.set(dut.payload, int.from_bytes(line[:56], "little"))
            ctx.set(dut.tag, int.from_bytes(line[60:], "little"))
            await ctx.tick()
            ctx.set(dut.load, 0)
            assert await check(ctx) == expected
            assert ctx.get(dut.line) == int.from_bytes(line[:56] + bytes(4) + line[60:], "little")

    sim = Simulator(dut)
    sim.add_clock(1e-6)
    sim.add_testbench(bench)
    sim.run()
