"""SwiGLU and rotary units against the golden arithmetic."""

import random

import numpy as np
import pytest

from dfvg_hw.matmul.rope import RopeUnit
from dfvg_hw.matmul.swiglu import SigmoidGate
from dfvg_hw.numerics import ops
from tests.hw.matmul.bench import simulate, wide_ints

EDGE = 16 << 14


@pytest.mark.parametrize("gap", [1, 2, 5])
def test_gate_equals_the_golden_function(gap, seed):
    rng = random.Random(seed)
    dut = SigmoidGate()
    gates = [0, 1, -1, EDGE - 1, EDGE, EDGE + 1, -EDGE - 1, -EDGE, -EDGE + 1, 2**31 - 1, 1 - 2**31]
    gates += [rng.randint(-EDGE - 999, EDGE + 999) for _ in range(300)]
    ups = wide_ints(rng, 32, len(gates))

    async def bench(ctx):
        expected, results = [], []
        plan = {}
        for number, (g, u) in enumerate(zip(gates, ups, strict=True)):
            at = number * (gap + 1)
            plan.setdefault(at, {})["g"] = g
            # `u` meets the gate at the unit four cycles after it came to the lane.
            plan.setdefault(at + gap + 4, {})["u"] = u
            silu = (g * int(ops.sigmoid(np.array([g]))[0]) + (1 << 15)) >> 16
            expected.append(silu * u)
        for cycle in range(max(plan) + 2):
            todo = plan.get(cycle, {})
            ctx.set(dut.g_valid, "g" in todo)
            ctx.set(dut.g, todo.get("g", rng.randint(-1 << 31, (1 << 31) - 1)))
            ctx.set(dut.u_valid, "u" in todo)
            ctx.set(dut.u, todo.get("u", rng.randint(-1 << 31, (1 << 31) - 1)))
            await ctx.tick()
            if "u" in todo:
                results.append(ctx.get(dut.product))
        assert results == expected

    simulate(dut, bench)


@pytest.mark.parametrize("gaps", [0.0, 0.6])
def test_rope_rotates_pairs_at_full_rate(gaps, seed):
    rng = random.Random(seed)
    dut = RopeUnit()
    table = [(rng.randint(-32768, 32767), rng.randint(-32768, 32767)) for _ in range(96)]
    table[0] = (-32768, -32768)
    values = wide_ints(rng, 32, 400)

    async def bench(ctx):
        for pair, (cos, sin) in enumerate(table):
            ctx.set(dut.rope_w.en, 1)
            ctx.set(dut.rope_w.pair, pair)
            ctx.set(dut.rope_w.cos, cos)
            ctx.set(dut.rope_w.sin, sin)
            await ctx.tick()
        ctx.set(dut.rope_w.en, 0)
        plan, cycle, expected = {}, 1, {}
        for number in range(0, len(values), 2):
            a, b = values[number : number + 2]
            pair = rng.choice([0, rng.randrange(96)])
            cos, sin = table[pair]
            cycle += rng.random() < gaps
            plan[cycle] = ("even", a)
            cycle += 1 + (rng.random() < gaps)
            plan[cycle] = ("odd", b)
            plan.setdefault(cycle - 1, ("none", 0))
            plan[cycle - 1] = (*plan[cycle - 1], pair)
            expected[cycle + 2] = a * cos - b * sin
            expected[cycle + 3] = a * sin + b * cos
            cycle += 1
        for now in range(cycle + 4):
            what, y, *pair = plan.get(now, ("none", 0))
            ctx.set(dut.even, what == "even")
            ctx.set(dut.odd, what == "odd")
            ctx.set(dut.y, y if what != "none" else 99)
            ctx.set(dut.fetch, bool(pair))
            ctx.set(dut.pair, pair[0] if pair else 17)
            if now in expected:
                assert ctx.get(dut.sum) == expected.pop(now)
            await ctx.tick()
        assert not expected

    simulate(dut, bench)
