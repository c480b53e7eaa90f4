"""The fetch unit against the unrolled program."""

import random

import pytest

from dfvg_host.compile.unroll import unroll
from dfvg_hw.config import get_config
from dfvg_hw.isa import Dest, Instruction, LoadKind, Op
from dfvg_hw.overlap.fetch import QUEUE_DEPTH, Fetch
from tests.hw.overlap.helpers import collect, simulate

pytestmark = pytest.mark.rtl

CONFIG = get_config("tiny")
UNIT = {
    Op.LOAD: "load",
    Op.MM: "mm",
    Op.EMBED: "vec",
    Op.ROPE_TABLE: "vec",
    Op.QUANT: "vec",
    Op.SOFTMAX: "vec",
}


def unit_of(instruction):
    if instruction.op is Op.SYNC:
        return "vec" if instruction.dest == Dest.VEC else "mm"
    return UNIT.get(instruction.op)


def nested(layers=3, heads=2):
    """A program with every opcode, both loops, and a head that may be skipped."""
    return [
        Instruction(Op.LOAD, kind=LoadKind.EMBED_ROWS, dest=Dest.VEC),
        Instruction(Op.EMBED, groups=3, vm=5, sbase=-7),
        Instruction(Op.ROPE_TABLE, pairs=32),
        Instruction(Op.LOOP, level=0, count=layers),
        Instruction(Op.QUANT, groups=9, eps=(1 << 40) - 1, vm1=4095),
        Instruction(Op.LOAD, kind=LoadKind.LINEAR, base=(1 << 26) - 1, words=77, stride0=5),
        Instruction(Op.SYNC, wait=1, dest=Dest.VEC),
        Instruction(Op.LOOP, level=1, count=heads),
        Instruction(Op.MM, wait=1, signal=1, out=4),
        Instruction(Op.SOFTMAX, gqa=3),
        Instruction(Op.LOOP_END, level=1),
        Instruction(Op.SYNC, signal=1, dest=Dest.MM),
        Instruction(Op.LOOP_END, level=0),
        Instruction(Op.SKIP_NO_HEAD, count=2),
        Instruction(Op.LOAD, kind=LoadKind.LINEAR, words=1),
        Instruction(Op.MM, out=6),
        Instruction(Op.PASS_END),
    ]


async def load(ctx, dut, program):
    ctx.set(dut.write_en, 1)
    for index, instruction in enumerate(program):
        ctx.set(dut.write_addr, index)
        ctx.set(dut.write_data, int.from_bytes(instruction.encode(), "little"))
        await ctx.tick()
    ctx.set(dut.write_en, 0)


async def start(ctx, dut, head=True):
    ctx.set(dut.children, head)
    ctx.set(dut.start, 1)
    await ctx.tick()
    ctx.set(dut.start, 0)


def expected(program, head):
    queues = {"load": [], "mm": [], "vec": []}
    for issue in unroll(program, head):
        unit = unit_of(issue.instruction)
        if unit:
            code = int.from_bytes(issue.instruction.encode(), "little")
            queues[unit].append((code, issue.i0, issue.i1))
    return queues


@pytest.mark.parametrize("head", [True, False])
@pytest.mark.parametrize("shape", [(1, 1), (3, 2), (2, 5)])
@pytest.mark.parametrize("chance", [1.0, 0.2])
def test_every_engine_gets_its_instructions_in_order(head, shape, chance, seed):
    dut, program = Fetch(CONFIG), nested(*shape)
    right = expected(program, head)
    got = {}

    async def control(ctx):
        await load(ctx, dut, program)
        for _ in range(2):
            await start(ctx, dut, head)
            for _ in range(5000):
                await ctx.tick()
                if ctx.get(dut.ended) and all(
                    len(got.get(name, ())) == len(right[name]) for name in right
                ):
                    break
            assert not ctx.get(dut.bad)
            for name, items in right.items():
                assert got.pop(name) == items, name

    def taker(name):
        async def take(ctx):
            rng = random.Random(f"{seed}{name}")
            for _ in range(2):
                items = await collect(ctx, getattr(dut, name), len(right[name]), rng, chance)
                got[name] = [(i.code, i.i0, i.i1) for i in items]
                while name in got:
                    await ctx.tick()

        return take

    simulate(dut, control, *(taker(name) for name in right))


def test_a_full_queue_holds_the_fetch_back():
    dut = Fetch(CONFIG)
    count = QUEUE_DEPTH + 5
    program = [Instruction(Op.MM, vm=n) for n in range(count)]
    program += [Instruction(Op.SOFTMAX), Instruction(Op.PASS_END)]

    async def bench(ctx):
        await load(ctx, dut, program)
        await start(ctx, dut)
        await ctx.tick().repeat(200)
        assert ctx.get(dut.mm_level) == QUEUE_DEPTH
        assert ctx.get(dut.pc) == QUEUE_DEPTH
        assert not ctx.get(dut.vec.valid), "the instruction behind a full queue went ahead"
        assert not ctx.get(dut.ended)
        items = await collect(ctx, dut.mm, count, random.Random(1))
        assert [Instruction.decode(i.code.to_bytes(16, "little")).vm for i in items] == list(
            range(count)
        )
        await ctx.tick().repeat(10)
        assert ctx.get(dut.ended)
        assert ctx.get(dut.vec.valid)

    simulate(dut, bench)


@pytest.mark.parametrize(
    "program",
    [
        [Instruction(Op.MM)] * CONFIG.prog_depth,
        [Instruction(Op.MM), 15],
    ],
    ids=["no end", "unknown opcode"],
)
def test_a_bad_program_ends_and_is_reported(program):
    dut = Fetch(CONFIG)
    seen = []

    async def bench(ctx):
        codes = [p if isinstance(p, int) else int.from_bytes(p.encode(), "little") for p in program]
        ctx.set(dut.write_en, 1)
        for index, code in enumerate(codes):
            ctx.set(dut.write_addr, index)
            ctx.set(dut.write_data, code)
            await ctx.tick()
        ctx.set(dut.write_en, 0)
        ctx.set(dut.mm.ready, 1)
        await start(ctx, dut)
        for _ in range(4 * CONFIG.prog_depth):
            seen.append(ctx.get(dut.bad))
            await ctx.tick()
        assert ctx.get(dut.ended)

    simulate(dut, bench)
    assert sum(seen) == 1
