"""The replay buffer: pages of any size, several times over, with gaps."""

import random

import pytest

from dfvg_hw.matmul.replay import ReplayBuffer
from tests.cocotb.configs import config_of
from tests.hw.matmul.bench import simulate


@pytest.mark.parametrize("name", ["tiny", "odd"])
def test_pages_pass_and_come_again(name, seed):
    config = config_of(name)
    rng = random.Random(seed)
    dut = ReplayBuffer(config)
    largest = 3 * 64 * config.group_words

    async def step(ctx, kind, word, last):
        ctx.set(dut.take, kind != "replay")
        ctx.set(dut.keep, kind == "keep")
        ctx.set(dut.replay, kind == "replay")
        ctx.set(dut.restart, last)
        ctx.set(dut.word_i, word if kind != "replay" else rng.getrandbits(64))
        await ctx.tick()
        assert ctx.get(dut.word_o) == word
        for signal in (dut.take, dut.keep, dut.replay):
            ctx.set(signal, 0)
        while rng.random() < 0.2:
            await ctx.tick()

    async def bench(ctx):
        for size in (64, largest, 64 * config.group_words, 3):
            page = [rng.getrandbits(8 * config.bus_bytes) for _ in range(size)]
            for kind in ("keep", "replay", "replay"):
                for index, word in enumerate(page):
                    await step(ctx, kind, word, index == size - 1)
            # Words of linear layers pass without leaving a trace.
            for _ in range(5):
                await step(ctx, "pass", rng.getrandbits(8 * config.bus_bytes), 0)

    simulate(dut, bench)
