"""Softmax: int8 probabilities with power-of-two page scales, in one walk over stored scores."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from ..common.arith import bits_for_range, rshr, tree_sum
from ..common.memory import Rom
from ..config import PAGE, DeviceConfig
from ..interfaces import ACT_GROUP_BITS, PAGE_BITS
from ..numerics import formats as fm
from ..numerics.tables import T15, T127
from .score_store import HEADS_MAX, head_maxima, page_maximum, stored_score, value_log2

__all__ = ["SOFTMAX_STAGES", "TOTAL_BITS", "SoftmaxControl", "SoftmaxLanes", "softmax_beat"]

SOFTMAX_STAGES = 5
"""Pipeline stages; stage 0 holds the scores just read, stage 4 the probabilities."""

TOTAL_BITS = 34
"""Sum of exponentials, 2**15 per token at most, over up to 2**18 tokens."""


def softmax_beat(config: DeviceConfig) -> data.StructLayout:
    """``lanes`` tokens of every row on their way through the lanes.

    ``start`` marks a head's first word, ``first`` a page's. ``addr`` and ``block`` say where the
    scores and the page's maximum are stored, ``dest`` and ``dest_group`` where probabilities go.
    """
    return data.StructLayout(
        {
            "valid": 1,
            "start": 1,
            "first": 1,
            "page": PAGE_BITS,
            "addr": bits_for_range(config.score_depth // config.lanes),
            "block": bits_for_range(config.score_depth // PAGE),
            "dest": 16,
            "dest_group": ACT_GROUP_BITS,
        }
    )


class SoftmaxControl(wiring.Component):
    """Per query head: walk over the pages of the longest row, then the row scales.

    *Latency* per head ``pages * 64 / lanes + SOFTMAX_STAGES + 4``, plus the scalar unit's
    ``rows + SCALAR_LATENCY + 1``; plus 2 per instruction.

    Parameters
    ----------
    config : DeviceConfig

    Members
    -------
    start : In(1), gqa : In(5), act : In(ACT_GROUP_BITS), pages : In(PAGE_BITS)
        Begin: heads, group of the first probabilities, pages of the longest row (0: no walk).
        They must stay until ``done``.
    issue : Out(softmax_beat), stages : Out(array of SOFTMAX_STAGES beats)
    head : Out(5), head_en : Out(1), capture : Out(1)
        Read the maxima of ``head``; a cycle later they are there to be kept.
    scalar_start : Out(1), scalar_done : In(1)
    done : Out(1)
    """

    def __init__(self, config: DeviceConfig) -> None:
        self._config = config
        beat = softmax_beat(config)
        super().__init__(
            {
                "start": In(1),
                "gqa": In(5),
                "act": In(ACT_GROUP_BITS),
                "pages": In(PAGE_BITS),
                "issue": Out(beat),
                "stages": Out(beat).array(SOFTMAX_STAGES),
                "head": Out(bits_for_range(HEADS_MAX)),
                "head_en": Out(1),
                "capture": Out(1),
                "scalar_start": Out(1),
                "scalar_done": In(1),
                "done": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Return the hardware."""
        m = Module()
        self._word = Signal(range(PAGE // self._config.lanes))
        self._page = Signal(PAGE_BITS)
        self._block = Signal.like(self.issue.block)
        self._group = Signal(ACT_GROUP_BITS)  # of the head's first page
        self._busy = Signal()
        self._build_issue(m)
        self._build_stages(m)
        self._build_sequence(m)
        return m

    def _build_issue(self, m: Module) -> None:
        issue = self.issue
        group = Signal(ACT_GROUP_BITS)
        m.d.comb += [
            group.eq(self._group + self._page),
            issue.start.eq((self._page == 0) & (self._word == 0)),
            issue.first.eq(self._word == 0),
            issue.page.eq(self._page),
            issue.addr.eq(Cat(self._word, self._block)),
            issue.block.eq(self._block),
            issue.dest.eq(Cat(self._word, group)),
            issue.dest_group.eq(group),
        ]

    def _build_stages(self, m: Module) -> None:
        previous = self.issue
        flags = []
        for index in range(SOFTMAX_STAGES):
            stage = self.stages[index]
            m.d.sync += stage.valid.eq(previous.valid)
            with m.If(previous.valid):
                m.d.sync += stage.eq(previous)
            previous = stage
            flags.append(stage.valid)
        m.d.comb += self._busy.eq(Cat(flags).any())

    def _build_sequence(self, m: Module) -> None:
        last_word = self._word == PAGE // self._config.lanes - 1
        with m.FSM(name="softmax"):
            with m.State("IDLE"):
                m.d.sync += [self.head.eq(0), self._group.eq(self.act)]
                with m.If(self.start):
                    m.next = "HEAD"
            with m.State("HEAD"):
                m.d.comb += self.head_en.eq(1)
                m.d.sync += [self._page.eq(0), self._word.eq(0), self._block.eq(self.head)]
                m.next = "CAPTURE"
            with m.State("CAPTURE"):
                m.d.comb += self.capture.eq(1)
                with m.If(self.pages == 0):
                    m.d.comb += self.done.eq(1)
                    m.next = "IDLE"
                with m.Else():
                    m.next = "WALK"
            with m.State("WALK"):
                m.d.comb += self.issue.valid.eq(1)
                m.d.sync += self._word.eq(self._word + 1)
                with m.If(last_word):
                    m.d.sync += [
                        self._page.eq(self._page + 1),
                        self._block.eq(self._block + self.gqa),
                    ]
                    with m.If(self._page + 1 == self.pages):
                        m.next = "DRAIN"
            with m.State("DRAIN"):
                with m.If(~self._busy):
                    m.d.comb += self.scalar_start.eq(1)
                    m.next = "SCALE"
            with m.State("SCALE"):
                with m.If(self.scalar_done):
                    m.d.sync += [
                        self.head.eq(self.head + 1),
                        self._group.eq(self._group + self._config.seq_pages),
                    ]
                    with m.If(self.head + 1 == self.gqa):
                        m.d.comb += self.done.eq(1)
                        m.next = "IDLE"
                    with m.Else():
                        m.next = "HEAD"


class SoftmaxLanes(wiring.Component):
    """``lanes`` tokens per cycle of one row.

    ``e = EXP2N(smax - s)`` is summed; ``q = EXP127(smax' - s' - 256 k)`` with s' = s +
    log2 of the V scale and ``k = min(15, (smax' - pmax') >> 8)`` per page (15 for a page without
    a visible token). Both exponentials are a table of 256 entries and a shift with rounding.

    *Latency* from stage 0 to ``q`` 4 cycles; *throughput* one word per cycle.

    Parameters
    ----------
    config : DeviceConfig

    Members
    -------
    stages : In
        From `SoftmaxControl`.
    valid : In(1), pages : In(PAGE_BITS)
        The row takes part, up to this page.
    capture : In(1), maxima : In(head_maxima)
        Keep the head's maxima.
    scores : In(array of lanes stored_score), page_max : In(page_maximum)
        Of stage 0; ``page_max`` stays for the page.
    q : Out(8 * lanes), group_shift : Out(4), q_en : Out(1)
        Probabilities in stage 4; 15 - k of their page.
    total : Out(TOTAL_BITS), gap : Out(16)
        Sum of exponentials, and smax' - smax, when the walk is done.
    """

    def __init__(self, config: DeviceConfig) -> None:
        self._config = config
        super().__init__(
            {
                "stages": In(softmax_beat(config)).array(SOFTMAX_STAGES),
                "valid": In(1),
                "pages": In(PAGE_BITS),
                "capture": In(1),
                "maxima": In(head_maxima()),
                "scores": In(data.ArrayLayout(stored_score(), config.lanes)),
                "page_max": In(page_maximum()),
                "q": Out(8 * config.lanes),
                "q_en": Out(1),
                "group_shift": Out(4),
                "total": Out(TOTAL_BITS),
                "gap": Out(16),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Return the hardware."""
        m = Module()
        on = [Signal(name=f"on_{index}") for index in range(SOFTMAX_STAGES)]
        begin = self.stages[0]
        m.d.comb += on[0].eq(begin.valid & self.valid & (begin.page < self.pages))
        m.d.sync += [later.eq(sooner) for sooner, later in pairwise(on)]
        self._on = on
        m.d.comb += self.q_en.eq(on[4])
        self._maxima = Signal(head_maxima(), reset_less=True)
        with m.If(self.capture):
            m.d.sync += self._maxima.eq(self.maxima)
            m.d.sync += self.gap.eq(self.maxima.weighted - self.maxima.s)
        k = self._build_page_exponent(m)
        terms, q = [], []
        for lane in range(self._config.lanes):
            term, probability = self._build_lane(m, lane, k)
            terms.append(term)
            q.append(probability)
        m.d.comb += self.q.eq(Cat(q))
        with m.If(on[4]):
            total = tree_sum(m, terms, "terms")
            m.d.sync += self.total.eq(Mux(self.stages[4].start, 0, self.total) + total)
        return m

    def _build_page_exponent(self, m: Module) -> Signal:
        """Stage 0 to 1: k of the page."""
        k = Signal(4, reset_less=True)
        below = Signal(signed(22))
        gap = Signal(signed(14))
        m.d.comb += [
            below.eq(self._maxima.weighted - self.page_max.weighted),
            gap.eq(below >> fm.EXP_FRAC),
        ]
        most = fm.GROUP_SHIFT_MAX
        with m.If(self._on[0] & self.stages[0].first):
            m.d.sync += k.eq(Mux(self.page_max.any & (gap < most), gap, most))
        # Pages are at least 8 words long, so this is the same page as in stage 1 until stage 4.
        m.d.comb += self.group_shift.eq(most - k)
        return k

    def _build_lane(self, m: Module, lane: int, k: Signal) -> tuple[Signal, Signal]:
        """One token: stage 1 score, 2 distances, 3 tables, 4 exponentials."""
        on, entry = self._on, self.scores[lane]
        log2 = value_log2(m, entry.vs, f"log2_{lane}")
        s1 = Signal(signed(18), name=f"s1_{lane}", reset_less=True)
        weighted1 = Signal(signed(20), name=f"weighted1_{lane}", reset_less=True)
        visible = [Signal(name=f"visible{i}_{lane}", reset_less=True) for i in range(4)]
        with m.If(on[0]):
            m.d.sync += [
                s1.eq(entry.s),
                weighted1.eq(entry.s + log2),
                visible[1].eq(entry.visible),
            ]
        # Distances of visible tokens are not negative; those of others are never looked at.
        d = Signal(20, name=f"d_{lane}", reset_less=True)
        d_page = Signal(21, name=f"d_page_{lane}", reset_less=True)
        with m.If(on[1]):
            m.d.sync += [
                d.eq(self._maxima.s - s1),
                d_page.eq(self._maxima.weighted - weighted1 - (k << fm.EXP_FRAC)),
                visible[2].eq(visible[1]),
            ]
        term = self._build_exponential(m, f"e_{lane}", T15, 16, d, 0, 16, visible)
        q = self._build_exponential(m, f"q_{lane}", T127, 15, d_page, 8, 8, visible)
        with m.If(on[2]):
            m.d.sync += visible[3].eq(visible[2])
        return term, q

    def _build_exponential(
        self,
        m: Module,
        name: str,
        table: Any,
        width: int,
        d: Signal,
        extra: int,
        limit: int,
        visible: list[Signal],
    ) -> Signal:
        """Stages 2 to 4: ``rshr(table[d & 255], extra + (d >> 8))``, 0 from `limit` on."""
        m.submodules[f"table_{name}"] = rom = Rom(width, [int(value) for value in table])
        whole = Signal(5, name=f"whole_{name}", reset_less=True)
        result = Signal(width if extra == 0 else 8, name=name, reset_less=True)
        integer = d[fm.EXP_FRAC :]
        m.d.comb += [rom.r_en.eq(self._on[2]), rom.r_addr.eq(d[: fm.EXP_FRAC])]
        with m.If(self._on[2]):
            m.d.sync += whole.eq(Mux(integer < limit, integer, limit))
        shifted = rshr(m, rom.r_data, whole + extra, f"shifted_{name}")
        with m.If(self._on[3]):
            m.d.sync += result.eq(Mux(visible[3] & (whole < limit), shifted, 0))
        return result
