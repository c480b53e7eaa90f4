"""The queue of scales: channels of blocks, tokens of pages for several heads, dims."""

import random

import pytest

from dfvg_hw.isa import OutOp
from dfvg_hw.matmul.scales import ScaleQueue
from tests.cocotb.configs import config_of
from tests.hw.matmul.bench import simulate


def words_of(config, data):
    size = config.bus_bytes
    return [int.from_bytes(data[i : i + size], "little") for i in range(0, len(data), size)]


@pytest.mark.parametrize("name", ["tiny", "odd", "sim"])
def test_scales_come_in_order(name, seed):
    config, rng = config_of(name), random.Random(seed)
    dut = ScaleQueue(config)

    async def load(ctx, data, values=0):
        ctx.set(dut.values, values)
        for word in words_of(config, data):
            ctx.set(dut.load, 1)
            ctx.set(dut.word, word)
            await ctx.tick()
            ctx.set(dut.load, 0)
            # Words of items pass in between.
            ctx.set(dut.word, rng.getrandbits(8 * config.bus_bytes))
            await ctx.tick()

    async def expect(ctx, column, exponent, v_scale=None):
        assert (ctx.get(dut.column), ctx.get(dut.exponent)) == (column, exponent)
        if v_scale is not None:
            assert ctx.get(dut.v_scale) == v_scale
        while rng.random() < 0.5:
            await ctx.tick()
        ctx.set(dut.next, 1)
        await ctx.tick()
        ctx.set(dut.next, 0)

    async def bench(ctx):
        for out in (OutOp.STORE, OutOp.SCORE, OutOp.PV, OutOp.TOPK, OutOp.SCORE):
            ctx.set(dut.out, out)
            if out == OutOp.SCORE:
                keys, values = rng.randbytes(64), rng.randbytes(64)
                await load(ctx, keys)
                await load(ctx, values, 1)
                for _ in range(3):
                    for k, v in zip(keys, values, strict=True):
                        await expect(ctx, (k & 7) << 8, k >> 3, v)
            elif out == OutOp.PV:
                for _ in range(5):
                    await expect(ctx, 0, 0)
            else:
                codes = [rng.getrandbits(16) for _ in range(config.bus_bytes // 2)]
                await load(ctx, b"".join(c.to_bytes(2, "little") for c in codes))
                for code in codes:
                    await expect(ctx, code & 2047, code >> 11)

    simulate(dut, bench)
