"""Vector memory: element and word access, and collisions."""

import random

import pytest

from dfvg_hw.vector.memory import VectorMemory
from tests.cocotb.configs import config_of
from tests.hw.matmul.bench import simulate


@pytest.mark.parametrize("lanes", [1, 2, 4, 8])
def test_elements_and_words_share_one_memory(lanes, seed):
    rng = random.Random(seed)
    dut = VectorMemory(config_of("tiny").replace(lanes=lanes))
    model = [0] * 1024

    async def read_word(ctx, word):
        ctx.set(dut.r_en, 1)
        ctx.set(dut.r_addr, word)
        await ctx.tick()
        ctx.set(dut.r_en, 0)
        data = ctx.get(dut.r_data)
        return [data >> 32 * i & 0xFFFFFFFF for i in range(lanes)]

    async def bench(ctx):
        for _ in range(400):
            address, value = rng.randrange(1024), rng.randint(-(1 << 31), (1 << 31) - 1)
            word = rng.randrange(1024 // lanes)
            kind = rng.randrange(4)
            if kind == 0:
                ctx.set(dut.mm_w.en, 1)
                ctx.set(dut.mm_w.addr, address)
                ctx.set(dut.mm_w.data, value)
                await ctx.tick()
                ctx.set(dut.mm_w.en, 0)
                model[address] = value & 0xFFFFFFFF
            elif kind == 1:
                values = [rng.getrandbits(32) for _ in range(lanes)]
                ctx.set(dut.w_en, 1)
                ctx.set(dut.w_addr, word)
                ctx.set(dut.w_data, sum(v << 32 * i for i, v in enumerate(values)))
                await ctx.tick()
                ctx.set(dut.w_en, 0)
                model[word * lanes : (word + 1) * lanes] = values
            elif kind == 2:
                ctx.set(dut.mm_r.en, 1)
                ctx.set(dut.mm_r.addr, address)
                await ctx.tick()
                ctx.set(dut.mm_r.en, 0)
                # The data stay, whatever the address does then.
                ctx.set(dut.mm_r.addr, rng.randrange(1024))
                assert ctx.get(dut.mm_r.data) & 0xFFFFFFFF == model[address]
            else:
                assert await read_word(ctx, word) == model[word * lanes : (word + 1) * lanes]
        assert not ctx.get(dut.collision)

    simulate(dut, bench)


@pytest.mark.parametrize("ports", [("mm_w", "w_en"), ("mm_r", "r_en")])
def test_array_wins_and_the_collision_shows(ports):
    dut = VectorMemory(config_of("tiny"))

    async def bench(ctx):
        ctx.set(getattr(dut, ports[0]).en, 1)
        ctx.set(getattr(dut, ports[0]).addr, 6)
        ctx.set(dut.mm_w.data, -7)
        ctx.set(dut.w_addr, 3)
        ctx.set(dut.w_data, 1)
        await ctx.tick()
        assert not ctx.get(dut.collision)
        ctx.set(getattr(dut, ports[1]), 1)
        await ctx.tick()
        ctx.set(getattr(dut, ports[1]), 0)
        assert ctx.get(dut.collision)
        ctx.set(dut.mm_r.en, 1)
        ctx.set(dut.mm_r.addr, 6)
        await ctx.tick()
        assert ctx.get(dut.mm_r.data) == (-7 if ports[0] == "mm_w" else 0)
        assert ctx.get(dut.collision)

    simulate(dut, bench)
