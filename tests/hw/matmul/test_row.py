"""An array row: skewed slices, group shifts, accumulation of extremes, sums over pages."""

import random

import pytest
from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In

from dfvg_hw.common.pipeline import delayed
from dfvg_hw.isa import OutOp
from dfvg_hw.matmul.control import array_latency
from dfvg_hw.matmul.row import ArrayRow
from tests.cocotb.configs import config_of
from tests.hw.matmul.bench import simulate


class AlignedRow(wiring.Component):
    """A row fed with whole words: slices skewed and control delayed as the engine does it."""

    def __init__(self, config):
        self.config, self.row = config, ArrayRow(config)
        members = self.row.signature.members
        names = ("weight", "addr", "beat", "control", "tag")
        super().__init__({name: In(members[f"{name}_i"].shape) for name in names})

    def elaborate(self, platform):
        m = Module()
        m.submodules.row = row = self.row
        slices = []
        for index in range(self.config.cells):
            part = Signal(64, name=f"slice_{index}")
            m.d.comb += part.eq(self.weight[64 * index : 64 * index + 64])
            slices.append(delayed(m, part, index, f"skew_{index}")[-1])
        delay = ArrayRow.beat_delay(self.config.cells)
        m.d.comb += [row.weight_i.eq(Cat(slices)), row.addr_i.eq(self.addr)]
        for name in ("beat", "control", "tag"):
            late = delayed(m, getattr(self, name), delay, name)[-1]
            m.d.comb += getattr(row, f"{name}_i").eq(late)
        return m


async def load(ctx, dut, acts, shifts):
    """Write operands (groups of 64) and shifts."""
    row, lanes = dut.row, dut.config.lanes
    flat = [v for group in acts for v in group]
    for index in range(len(flat) // lanes):
        ctx.set(row.act_w.en, 1)
        ctx.set(row.act_w.addr, index)
        part = flat[index * lanes : (index + 1) * lanes]
        ctx.set(row.act_w.data, int.from_bytes(bytes(v & 255 for v in part), "little"))
        ctx.set(row.shift_w.en, index < len(shifts))
        ctx.set(row.shift_w.group, min(index, len(shifts) - 1))
        ctx.set(row.shift_w.shift, shifts[min(index, len(shifts) - 1)])
        await ctx.tick()
    ctx.set(row.act_w.en, 0)
    ctx.set(row.shift_w.en, 0)
    await ctx.tick().repeat(3)


def word_of(values):
    return int.from_bytes(bytes(v & 255 for v in values), "little")


@pytest.mark.parametrize("name", ["tiny", "odd"])
@pytest.mark.parametrize("extreme", [False, True])
def test_items_of_any_length(name, extreme, seed):
    config, rng = config_of(name), random.Random(seed)
    dut = AlignedRow(config)
    size, per_group = config.bus_bytes, config.group_words
    groups = 5

    def byte():
        return rng.choice([-127, 127]) if extreme else rng.randint(-127, 127)

    # All of the same sign: sums reach what the accumulator's width is made for.
    acts = [[127 if extreme else byte() for _ in range(64)] for _ in range(groups)]
    shifts = [15] * groups if extreme else [rng.randrange(16) for _ in range(groups)]
    latency = array_latency(config)

    async def bench(ctx):
        await load(ctx, dut, acts, shifts)
        due, cycle = {}, 0
        lengths = [1, 1, 1, 2, 700, 1, 3, 1, 64]
        for item, length in enumerate(lengths):
            total, sign = 0, rng.choice([-127, 127])
            mine = rng.random() < 0.7
            for index in range(length):
                addr = rng.randrange(groups * per_group)
                weights = [sign if extreme else byte() for _ in range(size)]
                group, part = divmod(addr, per_group)
                q = acts[group][part * size : (part + 1) * size]
                total += sum(w * a for w, a in zip(weights, q, strict=True)) << shifts[group]
                ctx.set(dut.weight, word_of(weights))
                ctx.set(dut.addr, addr)
                last = index == length - 1
                ctx.set(dut.beat, {"valid": 1, "first": index == 0, "last": last})
                ctx.set(dut.control.rows, mine)
                ctx.set(dut.control.scale, item)
                if last and mine:
                    due[cycle + latency] = (total, item)
                await self_check(ctx, due, cycle)
                cycle += 1
            # Gaps between items carry rubbish.
            ctx.set(dut.beat.valid, 0)
            ctx.set(dut.beat.first, 1)
            for _ in range(rng.choice([0, 0, 2])):
                await self_check(ctx, due, cycle)
                cycle += 1
        for _ in range(latency + 2):
            await self_check(ctx, due, cycle)
            cycle += 1
        assert not due

    async def self_check(ctx, due, cycle):
        row = dut.row
        assert ctx.get(row.valid) == (cycle in due)
        if cycle in due:
            assert (ctx.get(row.sum), ctx.get(row.control.scale)) == due.pop(cycle)
        await ctx.tick()

    simulate(dut, bench)


def test_pages_add_up_per_entry(seed):
    config, rng = config_of("tiny"), random.Random(seed)
    dut = AlignedRow(config)
    entries, pages = 70, 3
    acts = [[rng.randint(-127, 127) for _ in range(64)] for _ in range(2)]

    async def bench(ctx):
        await load(ctx, dut, acts, [3, 0])
        got = []
        sums = [0] * entries
        ctx.set(dut.control.out, OutOp.PV)
        ctx.set(dut.control.rows, 1)
        for page in range(pages):
            for entry in range(entries):
                weights = [rng.randint(-127, 127) for _ in range(config.bus_bytes)]
                dot = sum(w * a for w, a in zip(weights, acts[0], strict=False)) << 3
                sums[entry] += dot
                ctx.set(dut.weight, word_of(weights))
                ctx.set(dut.beat, {"valid": 1, "first": 1, "last": 1})
                ctx.set(dut.tag.write.entry, entry)
                ctx.set(dut.tag.write.first_page, page == 0)
                ctx.set(dut.tag.write.last_page, page == pages - 1)
                if ctx.get(dut.row.valid):
                    got.append((ctx.get(dut.row.tag.write.entry), ctx.get(dut.row.sum)))
                await ctx.tick()
        ctx.set(dut.beat.valid, 0)
        for _ in range(array_latency(config) + 2):
            if ctx.get(dut.row.valid):
                got.append((ctx.get(dut.row.tag.write.entry), ctx.get(dut.row.sum)))
            await ctx.tick()
        assert got == list(enumerate(sums))

    simulate(dut, bench)
