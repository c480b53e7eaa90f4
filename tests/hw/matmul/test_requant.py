"""The requantisation lane against the golden arithmetic."""

import random

import numpy as np
import pytest

from dfvg_hw.matmul.control import REQUANT_LATENCY
from dfvg_hw.matmul.requant import RequantLane
from dfvg_hw.numerics import ops
from tests.cocotb.configs import config_of
from tests.hw.matmul.bench import simulate, wide_ints


@pytest.mark.parametrize("gaps", [0.0, 0.5])
def test_requant_equals_the_golden_function(gaps, seed):
    rng = random.Random(seed)
    dut = RequantLane(config_of("tiny"))
    mants = [rng.choice([1 << 15, 65535, rng.randint(1 << 15, 65535)]) for _ in range(256)]
    exps = [rng.choice([-128, 127, rng.randint(-25, 25), rng.randint(-25, 25)]) for _ in range(256)]
    sums = wide_ints(rng, 48, 1500)

    async def bench(ctx):
        for index in range(256):
            ctx.set(dut.scale_w.en, 1)
            ctx.set(dut.scale_w.index, index)
            ctx.set(dut.scale_w.mant, mants[index])
            ctx.set(dut.scale_w.exp, exps[index])
            await ctx.tick()
        ctx.set(dut.scale_w.en, 0)
        under_way = [None] * REQUANT_LATENCY
        for acc in [*sums, *[None] * REQUANT_LATENCY]:
            go = acc is not None and rng.random() >= gaps
            expected = None
            # Without `valid` the inputs carry rubbish.
            pre, scale = rng.randrange(32), rng.randrange(256)
            shift, column = rng.randint(-159, 127), rng.choice([0, 2047, rng.randrange(2048)])
            vm = rng.randrange(1 << 14)
            ctx.set(dut.valid, go)
            ctx.set(dut.sum, acc if acc is not None else 12345)
            ctx.set(dut.control.pre, pre)
            ctx.set(dut.control.scale, scale)
            ctx.set(dut.control.shift, shift)
            ctx.set(dut.control.column, column)
            ctx.set(dut.tag.write.vm, vm)
            if go:
                args = (np.array([acc]), mants[scale], exps[scale], 2048 + column, 0, pre, shift)
                expected = (int(ops.requant(*args)[0]), vm)
            await ctx.tick()
            under_way.append(expected)
            expected = under_way.pop(1)
            assert ctx.get(dut.o_valid) == (expected is not None)
            if expected is not None:
                assert (ctx.get(dut.y), ctx.get(dut.o.tag.write.vm)) == expected

    simulate(dut, bench)
