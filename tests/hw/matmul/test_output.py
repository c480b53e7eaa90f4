"""The output lane: instructions of every kind back to back, one result per cycle."""

import random

import numpy as np
import pytest

from dfvg_hw.isa import OutOp
from dfvg_hw.matmul.control import OUTPUT_LATENCY
from dfvg_hw.matmul.output import OutputLane
from dfvg_hw.numerics import ops
from tests.cocotb.configs import config_of
from tests.hw.matmul.bench import simulate, wide_ints

WRITES = (OutOp.STORE, OutOp.ADD, OutOp.ROPE, OutOp.SWIGLU, OutOp.PV)


def golden(out, values, cos, sin, held):
    y = np.array([values])
    if out == OutOp.ROPE:
        return ops.rope(y, np.array([cos]), np.array([sin]))[0]
    if out == OutOp.SWIGLU:
        return ops.swiglu(y)[0]
    if out == OutOp.ADD:
        return ops.sat32(y[0] + np.array(held))
    return y[0]


def make_plan(rng, gaps, cos, sin):
    """Items (out, value, element, odd, pair) per cycle, and the writes that must come."""
    items, writes, vm = [], [], 0
    for _ in range(60):
        out = rng.choice(WRITES)
        pairs = len(cos)
        values = wide_ints(rng, 32, 2 * pairs)
        held = wide_ints(rng, 32, 2 * pairs)
        results = golden(out, values, cos, sin, held)
        for number, value in enumerate(values):
            element = vm + (number // 2 if out == OutOp.SWIGLU else number)
            while rng.random() < gaps:
                items.append(None)
            items.append((out, value, element, number % 2, number // 2, held[number]))
        writes += [(vm + number, int(result)) for number, result in enumerate(results)]
        vm = (vm + 2 * pairs) % 16000
    return items, writes


@pytest.mark.parametrize("gaps", [0.0, 0.3, 0.7])
def test_writes_of_back_to_back_instructions(gaps, seed):
    rng = random.Random(seed)
    dut = OutputLane(config_of("tiny"))
    cos, sin = ([rng.randint(-32768, 32767) for _ in range(7)] for _ in range(2))
    items, writes = make_plan(rng, gaps, cos, sin)

    async def bench(ctx):
        for pair in range(7):
            ctx.set(dut.rope_w.en, 1)
            ctx.set(dut.rope_w.pair, pair)
            ctx.set(dut.rope_w.cos, cos[pair])
            ctx.set(dut.rope_w.sin, sin[pair])
            await ctx.tick()
        ctx.set(dut.rope_w.en, 0)
        got, held = [], {}
        last_item = 0
        for cycle, item in enumerate([*items, *[None] * 20]):
            ctx.set(dut.valid, item is not None)
            if item is not None:
                out, value, element, odd, pair, before = item
                ctx.set(dut.y, value)
                ctx.set(dut.i.out, out)
                ctx.set(dut.i.tag.write.vm, element)
                ctx.set(dut.i.tag.write.odd, odd)
                ctx.set(dut.i.tag.write.pair, pair)
                held[element] = before if out == OutOp.ADD else None
                last_item = cycle
            if ctx.get(dut.vm_w.en):
                got.append((ctx.get(dut.vm_w.addr), ctx.get(dut.vm_w.data)))
                last_write = cycle
            reads, addr = ctx.get(dut.vm_r.en), ctx.get(dut.vm_r.addr)
            assert not ctx.get(dut.scores.valid)
            assert not ctx.get(dut.logits.valid)
            await ctx.tick()
            ctx.set(dut.vm_r.data, held[addr] if reads else 77)
        assert got == writes
        assert last_write - last_item == OUTPUT_LATENCY

    simulate(dut, bench)


@pytest.mark.parametrize("out", [OutOp.SCORE, OutOp.TOPK])
def test_scores_and_logits_pass_with_their_tags(out, seed):
    rng = random.Random(seed)
    dut = OutputLane(config_of("tiny"))
    port, name = (dut.scores, "score") if out == OutOp.SCORE else (dut.logits, "logit")
    fields = [key for key, _ in dut.i.tag[name].shape()]

    async def bench(ctx):
        for y in wide_ints(rng, 32, 100):
            ctx.set(dut.valid, 1)
            ctx.set(dut.y, y)
            ctx.set(dut.i.out, out)
            tag = dut.i.tag[name]
            sent = {key: rng.getrandbits(len(tag[key])) if key != "vs" else 255 for key in fields}
            for key, value in sent.items():
                ctx.set(tag[key], value)
            await ctx.tick()
            assert ctx.get(port.valid)
            assert ctx.get(port.payload.y) == y
            assert {key: ctx.get(port.payload[key]) for key in fields} == sent
            assert not ctx.get(dut.vm_w.en)

    simulate(dut, bench)
