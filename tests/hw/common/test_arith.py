# amaranth: UnusedElaboratable=no
"""Arithmetic helpers against Python integers, extremes included."""

import itertools
import random

import pytest
from amaranth.hdl import Module, Signal, signed, unsigned
from amaranth.sim import Simulator

from dfvg_hw.common.arith import bits_for_range, clamp, rshr, sat32, saturate, tree_sum


def rounded(x, s):
    return x if s == 0 else (x + (1 << (s - 1))) >> s


def evaluate(build, shapes, vectors):
    """Apply each vector to the inputs of a combinational block; return the results."""
    m = Module()
    inputs = [Signal(shape, name=f"in_{i}") for i, shape in enumerate(shapes)]
    result = build(m, *inputs)
    out = Signal(result.shape(), name="out")
    m.d.comb += out.eq(result)
    results = []

    async def bench(ctx):
        for vector in vectors:
            for signal, value in zip(inputs, vector, strict=True):
                ctx.set(signal, value)
            await ctx.delay(1e-9)
            results.append(ctx.get(out))

    sim = Simulator(m)
    sim.add_testbench(bench)
    sim.run()
    return results


def extremes(shape, rng, count=200):
    low = -(1 << (shape.width - 1)) if shape.signed else 0
    high = low + (1 << shape.width) - 1
    values = [low, low + 1, -1 if shape.signed else 0, 0, 1, high - 1, high]
    return values + [rng.randint(low, high) for _ in range(count)]


@pytest.mark.parametrize("shape", [signed(48), signed(33), unsigned(20), signed(2)], ids=str)
def test_rshr_with_a_variable_amount(shape, seed):
    rng = random.Random(seed)
    vectors = [(x, s) for x in extremes(shape, rng, 20) for s in (0, 1, 2, 15, 31, 47, 48, 63)]
    got = evaluate(lambda m, x, s: rshr(m, x, s, "r"), [shape, unsigned(6)], vectors)
    assert got == [rounded(x, s) for x, s in vectors]


@pytest.mark.parametrize("amount", [0, 1, 6, 14, 31, 32])
def test_rshr_with_a_constant_amount(amount, seed):
    vectors = [(x,) for x in extremes(signed(32), random.Random(seed))]
    got = evaluate(lambda m, x: rshr(m, x, amount, "r"), [signed(32)], vectors)
    assert got == [rounded(x, amount) for (x,) in vectors]


@pytest.mark.parametrize("shape", [signed(48), signed(33), signed(32), signed(20), unsigned(40)])
def test_sat32_is_symmetric(shape, seed):
    edge = (1 << 31) - 1
    near = [edge - 1, edge, edge + 1, edge + 2, -edge, -edge - 1, -edge - 2]
    low = -(1 << (shape.width - 1)) if shape.signed else 0
    near = [v for v in near if low <= v < low + (1 << shape.width)]
    vectors = [(x,) for x in extremes(shape, random.Random(seed)) + near]
    got = evaluate(lambda m, x: sat32(m, x, "s"), [shape], vectors)
    assert got == [max(-edge, min(edge, x)) for (x,) in vectors]


def test_saturate_to_few_bits_exhaustively():
    vectors = [(x,) for x in range(-128, 128)]
    got = evaluate(lambda m, x: saturate(m, x, 4, "s"), [signed(8)], vectors)
    assert got == [max(-7, min(7, x)) for (x,) in vectors]


@pytest.mark.parametrize(
    ("low", "high"), [(-127, 127), (-(2**17) + 1, 2**17 - 1), (0, 63), (-3, 5)]
)
def test_clamp(low, high, seed):
    vectors = [(x,) for x in extremes(signed(24), random.Random(seed)) + [low, high, high + 1]]
    got = evaluate(lambda m, x: clamp(m, x, low, high, "c"), [signed(24)], vectors)
    assert got == [max(low, min(high, x)) for (x,) in vectors]


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8])
def test_tree_sum_never_overflows(count, seed):
    rng = random.Random(seed)
    vectors = [tuple(rng.randint(-128, 127) for _ in range(count)) for _ in range(50)]
    vectors += list(itertools.product((-128, 127), repeat=count))
    got = evaluate(lambda m, *terms: tree_sum(m, terms, "t"), [signed(8)] * count, vectors)
    assert got == [sum(v) for v in vectors]


def test_tree_sum_grows_by_the_depth_of_the_tree_only():
    m = Module()
    terms = [Signal(signed(16), name=f"t{i}") for i in range(64)]
    assert tree_sum(m, terms, "t").shape() == signed(22)


def test_bits_for_range():
    assert [bits_for_range(n) for n in (1, 2, 3, 64, 65)] == [1, 1, 2, 6, 7]
