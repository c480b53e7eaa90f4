"""The LOAD engine against a list of runs computed in Python."""

import itertools
import random

import pytest
from amaranth.hdl import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from dfvg_hw.config import get_config
from dfvg_hw.interfaces import issue, model_registers, row_context, sequence_context
from dfvg_hw.isa import Dest, Instruction, LoadKind, Op
from dfvg_hw.memory.reader import Target, read_request
from dfvg_hw.overlap.load import LoadEngine
from dfvg_hw.overlap.page_table import PageTable, page_write
from tests.hw.overlap.helpers import collect, put, simulate, struct

pytestmark = pytest.mark.rtl

MASK = (1 << 26) - 1


class LoadTop(wiring.Component):
    """The engine with its page table."""

    def __init__(self, config):
        self.config = config
        super().__init__(
            {
                "issue": In(stream.Signature(issue())),
                "request": Out(stream.Signature(read_request())),
                "write": In(page_write()),
            }
        )
        self.load, self.table = LoadEngine(config), PageTable(config)

    def elaborate(self, platform):
        m = Module()
        m.submodules.load, m.submodules.table = load, table = self.load, self.table
        wiring.connect(m, wiring.flipped(self.issue), load.issue)
        wiring.connect(m, load.request, wiring.flipped(self.request))
        wiring.connect(m, wiring.flipped(self.write), table.write)
        m.d.comb += [
            table.en.eq(load.page_en),
            table.seq.eq(load.page_seq),
            table.page.eq(load.page_index),
            load.page_phys.eq(table.phys),
        ]
        return m


def contexts(config, rng):
    """Random model registers, rows, sequences and page tables."""
    model = {
        name: rng.randrange(1 << 20)
        for name in ("kv_base", "kv_page", "kv_layer", "kv_head", "kv_v", "embed_base", "rope_base")
    } | {
        "head_groups": rng.randint(1, 3),
        "embed_stride": rng.randrange(1 << 16),
        "rope_stride": rng.randrange(1 << 16),
        "embed_words": rng.randint(1, 100),
        "rope_words": rng.randint(1, 20),
    }
    rows = [
        {
            "valid": int(rng.random() < 0.7),
            "token": rng.randrange(1 << 20),
            "position": rng.randrange(1 << 17),
        }
        for _ in range(config.rows)
    ]
    pages = [rng.choice([0, 1, config.seq_pages]) for _ in range(config.max_seqs)]
    table = [rng.sample(range(4096), config.seq_pages) for _ in range(config.max_seqs)]
    return model, rows, pages, table


def runs(config, instruction, i0, i1, model, rows, pages, table):
    """The right requests: (address, words, target)."""
    kind = LoadKind(instruction.kind)
    target = Target.VEC if instruction.dest == Dest.VEC else Target.MM
    if kind is LoadKind.LINEAR:
        base = instruction.base + i0 * instruction.stride0 + i1 * instruction.stride1
        return [(base & MASK, instruction.words, target)]
    if kind in (LoadKind.EMBED_ROWS, LoadKind.ROPE_ROWS):
        name, index = ("embed", "token") if kind is LoadKind.EMBED_ROWS else ("rope", "position")
        return [
            (
                (model[f"{name}_base"] + row[index] * model[f"{name}_stride"]) & MASK,
                model[f"{name}_words"],
                target,
            )
            for row in rows
            if row["valid"]
        ]
    keys = kind is LoadKind.K_PAGES
    words = (64 * model["head_groups"] + (2 if keys else 0)) * (64 // config.bus_bytes)
    base = model["kv_base"] + (0 if keys else model["kv_v"])
    base += i0 * model["kv_layer"] + i1 * model["kv_head"]
    return [
        ((base + table[seq][page] * model["kv_page"]) & MASK, words, Target.KV)
        for seq in range(config.max_seqs)
        for page in range(pages[seq])
    ]


async def drive(ctx, top, model, rows, pages, table):
    load = top.load
    ctx.set(load.model, struct(model_registers(), **model))
    for port, row in zip(load.rows, rows, strict=True):
        ctx.set(port, struct(row_context(), **row))
    for port, count in zip(load.sequences, pages, strict=True):
        ctx.set(port, struct(sequence_context(top.config), pages=count))
    ctx.set(top.write.en, 1)
    for seq, entries in enumerate(table):
        for page, phys in enumerate(entries):
            ctx.set(top.write.seq, seq)
            ctx.set(top.write.page, page)
            ctx.set(top.write.phys, phys)
            await ctx.tick()
    ctx.set(top.write.en, 0)


def item(instruction, i0=0, i1=0):
    code = int.from_bytes(instruction.encode(), "little")
    return struct(issue(), code=code, i0=i0, i1=i1)


@pytest.mark.parametrize("config", ["tiny", "sim"])
@pytest.mark.parametrize("chance", [1.0, 0.3])
def test_requests_equal_the_model(config, chance, seed):
    config, rng = get_config(config), random.Random(seed)
    top = LoadTop(config)
    model, rows, pages, table = contexts(config, rng)
    pages[0] = config.seq_pages
    cases = []
    for _ in range(25):
        kind = rng.choice(list(LoadKind))
        fields = {"kind": kind, "dest": rng.choice(list(Dest))}
        if kind is LoadKind.LINEAR:
            for name, width in (("base", 26), ("words", 24), ("stride0", 26), ("stride1", 26)):
                fields[name] = rng.randrange(1 << width)
        cases.append((Instruction(Op.LOAD, **fields), rng.randrange(1 << 16), rng.randrange(256)))
    right = [r for case in cases for r in runs(config, *case, model, rows, pages, table)]
    got = []

    async def feed(ctx):
        await drive(ctx, top, model, rows, pages, table)
        ctx.set(top.load.fenced, 1)
        for case in cases:
            await put(ctx, top.issue, item(*case))

    async def take(ctx):
        taken = await collect(ctx, top.request, len(right), rng, chance, 20_000)
        got.extend((i.address, i.words, i.target) for i in taken)
        await ctx.tick().repeat(50)
        assert not ctx.get(top.request.valid), "a request too many"
        assert ctx.get(top.load.idle)

    simulate(top, feed, take)
    assert got == right


def test_kv_loads_wait_for_the_fence_and_others_do_not(seed):
    config, rng = get_config("tiny"), random.Random(seed)
    top = LoadTop(config)
    model, rows, _, table = contexts(config, rng)

    async def bench(ctx):
        await drive(ctx, top, model, rows, [1, 0], table)
        ctx.set(top.request.ready, 1)
        await put(ctx, top.issue, item(Instruction(Op.LOAD, kind=LoadKind.LINEAR, words=3)))
        await put(ctx, top.issue, item(Instruction(Op.LOAD, kind=LoadKind.K_PAGES)))
        for _ in range(100):
            assert not ctx.get(top.request.valid)
            await ctx.tick()
        ctx.set(top.load.fenced, 1)
        await ctx.tick().repeat(6)
        seen = 0
        for _ in range(20):
            seen += ctx.get(top.request.valid)
            await ctx.tick()
        assert seen <= 1
        assert ctx.get(top.load.idle)

    simulate(top, bench)


def test_latency_is_as_documented():
    config = get_config("sim")
    top = LoadTop(config)
    model, rows, _, table = contexts(config, random.Random(3))

    async def bench(ctx):
        await drive(ctx, top, model, rows, [9, 0], table)
        ctx.set(top.request.ready, 1)
        ctx.set(top.load.fenced, 1)
        for kind, first, each in ((LoadKind.LINEAR, 4, None), (LoadKind.V_PAGES, 7, 4)):
            await put(ctx, top.issue, item(Instruction(Op.LOAD, kind=kind, words=3)))
            times = []
            for cycle in range(1, 60):
                if ctx.get(top.request.valid):
                    times.append(cycle)
                await ctx.tick()
            assert times[0] <= first + 1, times
            assert len(times) == (1 if each is None else 9)
            assert all(b - a == each for a, b in itertools.pairwise(times))

    simulate(top, bench)
