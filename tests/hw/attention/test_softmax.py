"""One row's score store, softmax lanes and scalar unit together, against the golden softmax."""

import random

import numpy as np
import pytest
from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from dfvg_hw.attention.score_store import STORE_LATENCY, ScoreStore
from dfvg_hw.attention.softmax import SoftmaxControl, SoftmaxLanes
from dfvg_hw.interfaces import score
from dfvg_hw.isa import Instruction, Op
from dfvg_hw.numerics import attention
from tests.cocotb.configs import config_of
from tests.hw.matmul.bench import simulate
from tests.hw.vector.model import VectorModel

TOP = (1 << 31) - 1


class Row(wiring.Component):
    """A score store and softmax lanes, wired as in the engine; the scalar unit answers at once."""

    def __init__(self, config):
        self._config = config
        self._lanes = lanes = SoftmaxLanes(config)
        outputs = ("q", "q_en", "group_shift", "total", "gap")
        members = {name: lanes.signature.members[name] for name in outputs}
        super().__init__(
            {
                **members,
                "valid": In(1),
                "score": In(score()),
                "see_en": In(1),
                "see_page": In(12),
                "see_bits": In(64),
                "start": In(1),
                "gqa": In(5),
                "pages": In(12),
                "longest": In(12),
                "dest": Out(16),
                "dest_group": Out(10),
                "first": Out(1),
                "finished": Out(1),
                "done": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.store = store = ScoreStore(self._config)
        m.submodules.control = control = SoftmaxControl(self._config)
        m.submodules.lanes = lanes = self._lanes
        for name in ("valid", "score", "see_en", "see_page", "see_bits"):
            m.d.comb += getattr(store, name).eq(getattr(self, name))
        for name in ("q", "q_en", "group_shift", "total", "gap"):
            m.d.comb += getattr(self, name).eq(getattr(lanes, name))
        issue, end = control.issue, control.stages[4]
        m.d.sync += control.scalar_done.eq(control.scalar_start)
        m.d.comb += [
            control.start.eq(self.start),
            control.gqa.eq(self.gqa),
            control.pages.eq(self.longest),
            store.r_en.eq(issue.valid),
            store.r_addr.eq(issue.addr),
            store.page_en.eq(issue.valid & issue.first),
            store.page_addr.eq(issue.block),
            store.head_en.eq(control.head_en),
            store.head_addr.eq(control.head),
            lanes.valid.eq(1),
            lanes.pages.eq(self.pages),
            lanes.capture.eq(control.capture),
            lanes.maxima.eq(store.head_data),
            lanes.scores.eq(store.r_data),
            lanes.page_max.eq(store.page_data),
            self.dest.eq(end.dest),
            self.dest_group.eq(end.dest_group),
            self.first.eq(end.first),
            self.finished.eq(control.scalar_start),
            self.done.eq(control.done),
        ]
        for ours, theirs in zip(lanes.stages, control.stages, strict=True):
            m.d.comb += ours.eq(theirs)
        return m


def cases(rng, pages, gqa):
    """(logits, V scales, visibility) of one row; the extremes first."""
    size = (pages, gqa, 64)
    one = [0] * pages
    one[-1] = 1 << 17
    full = [(1 << 64) - 1] * pages
    same = np.full((pages, 64), 5 << 3)

    def random_y(spread):
        return np.array([rng.randint(-spread, spread) for _ in range(np.prod(size))]).reshape(size)

    def random_vs():
        return np.array([rng.getrandbits(8) for _ in range(pages * 64)]).reshape(pages, 64)

    yield "single visible token", random_y(1 << 18), random_vs(), one
    yield "all equal", np.zeros(size, dtype=np.int64), same, full
    yield "all at the top", np.full(size, TOP), same, full
    yield "all at the bottom", np.full(size, -TOP), same, full
    spread = np.where(np.arange(64) == 3, TOP, -TOP) + np.zeros(size, dtype=np.int64)
    yield "one at the top", spread, random_vs(), full
    yield "invisible tokens at the top", spread, same, [full[0] & ~8] * pages
    yield "dark pages", random_y(1 << 16), random_vs(), [0] * (pages - 1) + [5]
    for power in (10, 14, 17, 20, 31):
        masks = [rng.getrandbits(64) for _ in range(pages)]
        masks[rng.randrange(pages)] |= 1 << rng.randrange(64)
        yield f"random 2**{power}", random_y((1 << power) - 1), random_vs(), masks


@pytest.mark.parametrize("name", ["tiny", "odd"])
@pytest.mark.parametrize(("pages", "gqa"), [(1, 1), (2, 3), (3, 1)])
def test_softmax_matches(name, pages, gqa, seed):
    config, rng = config_of(name), random.Random(seed)
    dut, lanes = Row(config), config.lanes

    async def load(ctx, y, vs, masks):
        for page, bits in enumerate(masks):
            ctx.set(dut.see_en, 1)
            ctx.set(dut.see_page, page)
            ctx.set(dut.see_bits, bits)
            await ctx.tick()
        ctx.set(dut.see_en, 0)
        for page in range(pages):
            for g in range(gqa):
                for token in range(64):
                    last = token == 63
                    item = {"y": int(y[page, g, token]), "g": g, "page": page, "token": token}
                    item |= {"vs": int(vs[page, token]), "last": last, "done": 0}
                    ctx.set(dut.valid, 1)
                    ctx.set(dut.score, item)
                    await ctx.tick()
        ctx.set(dut.valid, 0)
        for _ in range(STORE_LATENCY - 1):
            await ctx.tick()

    async def collect(ctx, model):
        ctx.set(dut.start, 1)
        sums = []
        for _ in range(5000):
            if ctx.get(dut.q_en):
                at, data = ctx.get(dut.dest) * lanes, ctx.get(dut.q)
                model.act[0, at : at + lanes] = [data >> 8 * i & 255 for i in range(lanes)]
                if ctx.get(dut.first):
                    model.shift[0, ctx.get(dut.dest_group)] = ctx.get(dut.group_shift)
            if ctx.get(dut.finished):
                sums.append((ctx.get(dut.total), ctx.get(dut.gap)))
            if ctx.get(dut.done):
                return sums
            await ctx.tick()
            ctx.set(dut.start, 0)
        raise AssertionError("not done")

    async def bench(ctx):
        ctx.set(dut.gqa, gqa)
        ctx.set(dut.pages, pages)
        # Another row may have more pages: the lanes must ignore those words.
        ctx.set(dut.longest, pages + (1 if (pages + 1) * gqa * 64 <= config.score_depth else 0))
        for label, y, vs, masks in cases(rng, pages, gqa):
            await load(ctx, y, vs, masks)
            valid = [True] + [False] * (config.rows - 1)
            got, wanted = (VectorModel(config, valid, [0] * config.rows, [pages]) for _ in range(2))
            sums = await collect(ctx, got)
            wanted.softmax(Instruction(Op.SOFTMAX, gqa=gqa), {0: y}, [vs], {0: masks})
            assert np.array_equal(got.act, wanted.act), label
            assert np.array_equal(got.shift, wanted.shift), label
            for g, (total, gap) in enumerate(sums):
                scale = attention._probability_scale(np.array(total), np.array(gap))
                assert list(wanted.scale[0, g]) == [scale.mantissa, scale.exponent], label

    simulate(dut, bench)
