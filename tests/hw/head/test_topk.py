"""Streaming top-k and log-sum-exp against the golden arithmetic."""

import random

import numpy as np
import pytest

from dfvg_hw.head.lse import LSE_LATENCY, LogSumExp
from dfvg_hw.head.topk import TopK
from dfvg_hw.numerics import attention
from tests.cocotb.configs import config_of
from tests.hw.matmul.bench import simulate

TOP = (1 << 31) - 1


def streams(rng, least):
    """Logits in orders and with ties that a selection may get wrong."""
    yield "ascending", list(range(0, 40 * 8192, 8192))
    yield "descending", list(range(40 * 8192, 0, -8192))
    yield "equal", [5] * 30
    yield "lowest", [-TOP] * (least + 2)
    yield "ends", [TOP, -TOP] * 15
    yield "pairs", [value for value in range(20) for _ in range(2)]
    yield "few", [rng.randint(-TOP, TOP) for _ in range(least)]
    for spread in (3, 1 << 14, 1 << 20, TOP):
        yield f"random {spread}", [rng.randint(-spread, spread) for _ in range(150)]


async def send(ctx, dut, y, rng):
    """One logit per cycle or slower; junk in between."""
    for channel, value in enumerate(y):
        while rng.random() < 0.2:
            ctx.set(dut.valid, 0)
            junk = {"y": rng.randint(-TOP, TOP), "channel": 7, "first": 1, "last": 1}
            ctx.set(dut.logit, junk)
            await ctx.tick()
        ctx.set(dut.valid, 1)
        last = int(channel == len(y) - 1)
        payload = {"y": value, "channel": channel, "first": int(channel == 0), "last": last}
        ctx.set(dut.logit, payload)
        await ctx.tick()
    ctx.set(dut.valid, 0)


@pytest.mark.parametrize("name", ["tiny", "odd", "sim"])
def test_top_k_is_sorted_with_ties_to_the_lower_channel(name, seed):
    config, rng = config_of(name), random.Random(seed)
    dut = TopK(config)

    async def bench(ctx):
        for label, y in streams(rng, config.topk):
            await send(ctx, dut, y, rng)
            await ctx.tick()
            got = []
            for rank in range(config.topk):
                ctx.set(dut.rank, rank)
                entry = ctx.get(dut.entry)
                got.append((entry.y, entry.channel))
            best = attention.top_k(np.array([y]), config.topk)[0]
            assert got == [(y[channel], int(channel)) for channel in best], label

    simulate(dut, bench)


def test_a_short_head_leaves_impossible_entries():
    config = config_of("tiny")
    dut, rng = TopK(config), random.Random(1)

    async def bench(ctx):
        await send(ctx, dut, [9, 8, 7, 6, 5], rng)
        await send(ctx, dut, [3, 4], rng)
        await ctx.tick()
        got = []
        for rank in range(config.topk):
            ctx.set(dut.rank, rank)
            got.append(ctx.get(dut.entry).y)
        assert got == [4, 3, -(1 << 31), -(1 << 31)]

    simulate(dut, bench)


def test_log_sum_exp_matches_at_every_step_of_its_level(seed):
    rng, dut = random.Random(seed), LogSumExp()

    async def bench(ctx):
        for label, y in streams(rng, 4):
            await send(ctx, dut, y, rng)
            for _ in range(LSE_LATENCY - 1):
                await ctx.tick()
            y8 = attention.to_log2_frac8(np.array([y]))
            level, total = ctx.get(dut.level), ctx.get(dut.total)
            assert level == y8.max() >> 8, label
            lse = (level << 8) + int(attention.log2_fix(np.array(total))) - (23 << 8)
            assert lse == attention.log_sum_exp(y8)[0], label

    simulate(dut, bench)


def test_a_long_head_fits_the_sum():
    """The worst case: a vocabulary of equal logits. The sum is loaded, not counted up to."""
    from dfvg_hw.head.lse import SUM_BITS
    from dfvg_hw.interfaces import TOKEN_BITS
    from dfvg_hw.numerics.tables import T2

    assert (int(T2.max()) << 8) << TOKEN_BITS < 1 << SUM_BITS
