"""Attention scores of one row, with the maxima that softmax needs."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from ..common.arith import bits_for_range, clamp, rshr
from ..common.memory import Ram
from ..config import PAGE, DeviceConfig
from ..interfaces import PAGE_BITS, score
from ..numerics import formats as fm
from ..numerics.tables import LOG2M

__all__ = [
    "HEADS_MAX",
    "STORE_LATENCY",
    "ScoreStore",
    "head_maxima",
    "page_maximum",
    "stored_score",
    "value_log2",
]

HEADS_MAX = 32
"""Query heads per KV head that the maxima have room for."""

STORE_LATENCY = 3
"""Cycles from a score at the port to the last memory written because of it."""

SCORE_BITS, WEIGHTED_BITS = 18, 20


def stored_score() -> data.StructLayout:
    """A token's score (8 fraction bits), its V scale, and whether the row sees it."""
    return data.StructLayout({"s": signed(SCORE_BITS), "vs": 8, "visible": 1})


def head_maxima() -> data.StructLayout:
    """Maxima over a head's visible tokens: of scores, and of scores plus log2 of the V scale."""
    return data.StructLayout({"any": 1, "s": signed(SCORE_BITS), "weighted": signed(WEIGHTED_BITS)})


def page_maximum() -> data.StructLayout:
    """Maximum over a page's visible tokens, if it has any."""
    return data.StructLayout({"any": 1, "weighted": signed(WEIGHTED_BITS)})


def value_log2(m: Module, code: Any, name: str) -> Signal:
    """256 * log2 of an sf8 V scale, combinational (`attention.value_log2` of the numerics)."""
    # A tree of multiplexers: synthesis would make a memory of a case statement.
    level: list[Value] = [Const(int(value), 10) for value in LOG2M]
    for bit in range(fm.SF8_M_BITS):
        level = [
            Mux(code[bit], high, low) for low, high in zip(level[::2], level[1::2], strict=True)
        ]
    result = Signal(14, name=name)
    m.d.comb += result.eq((code[fm.SF8_M_BITS :] << fm.EXP_FRAC) + level[0])
    return result


def _context() -> data.StructLayout:
    """What stays of a score beside its value: narrow, so that simulators keep it in one word."""
    kept = {name: field.shape for name, field in score() if name not in ("y", "done")}
    return data.StructLayout(kept)


class ScoreStore(wiring.Component):
    """Takes one score per cycle, in the order of `interfaces.score`; softmax reads them back.

    ``s = clamp(rshr(y, 6), +-(2**17 - 1))``, stored at ``block * 64 + token``, where blocks count
    (page, head) pairs in order of arrival. A token is visible if the row's visibility memory says
    so. Per (page, head) and per head the maxima over visible tokens are kept; a head's are
    final when its last page has arrived.

    *Latency* `STORE_LATENCY`; *throughput* one score per cycle, never stalls. Page 0, head 0
    restarts the block count, so no reset between instructions is needed. Reads must not overlap
    scoring: SOFTMAX waits for SCORE, and the next SCORE follows a PV that waits for SOFTMAX.

    Parameters
    ----------
    config : DeviceConfig

    Members
    -------
    valid : In(1), score : In(score)
    see_en, see_page, see_bits : In
        Write port of the visibility memory.
    r_en, r_addr, r_data : In(1), In, Out(array of lanes stored_score)
        Words of ``lanes`` tokens.
    page_en, page_addr, page_data : In(1), In, Out(page_maximum)
        Maximum of a block.
    head_en, head_addr, head_data : In(1), In, Out(head_maxima)
        Maxima of a head.
    All reads follow their enable by one cycle and keep their data.
    """

    def __init__(self, config: DeviceConfig) -> None:
        self._config = config
        words, blocks = config.score_depth // config.lanes, config.score_depth // PAGE
        super().__init__(
            {
                "valid": In(1),
                "score": In(score()),
                "see_en": In(1),
                "see_page": In(PAGE_BITS),
                "see_bits": In(PAGE),
                "r_en": In(1),
                "r_addr": In(bits_for_range(words)),
                "r_data": Out(data.ArrayLayout(stored_score(), config.lanes)),
                "page_en": In(1),
                "page_addr": In(bits_for_range(blocks)),
                "page_data": Out(page_maximum()),
                "head_en": In(1),
                "head_addr": In(bits_for_range(HEADS_MAX)),
                "head_data": Out(head_maxima()),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Return the hardware."""
        m = Module()
        first, now = self._build_input(m)
        self._build_store(m, now)
        self._build_maxima(m, first, now)
        return m

    def _build_input(self, m: Module) -> tuple[Any, dict[str, Any]]:
        """Stages 0 and 1: look up visibility, clamp, add the logarithm of the V scale."""
        config = self._config
        m.submodules.visibility = see = Ram(PAGE, config.seq_pages, disjoint=True)
        valid1, valid2 = Signal(), Signal()
        y1 = Signal(signed(32), reset_less=True)
        first = Signal(_context(), name="first", reset_less=True)
        block = Signal(range(config.score_depth // PAGE), reset_less=True)
        m.d.comb += [
            see.w_en.eq(self.see_en),
            see.w_addr.eq(self.see_page),
            see.w_data.eq(self.see_bits),
            see.r_en.eq(self.valid),
            see.r_addr.eq(self.score.page),
        ]
        m.d.sync += [valid1.eq(self.valid), valid2.eq(valid1)]
        with m.If(self.valid):
            m.d.sync += y1.eq(self.score.y)
            m.d.sync += [first[name].eq(self.score[name]) for name, _ in _context()]
            with m.If(self.score.token == 0):
                restart = (self.score.page == 0) & (self.score.g == 0)
                m.d.sync += block.eq(Mux(restart, 0, block + 1))
        rounded = rshr(m, y1, fm.ACT_FRAC - fm.EXP_FRAC, "rounded")
        clamped = clamp(m, rounded, -fm.SCORE_MAX, fm.SCORE_MAX, "clamped")
        log2 = value_log2(m, first.vs, "value_log2")
        now = {
            "s": Signal(signed(SCORE_BITS), name="s2", reset_less=True),
            "weighted": Signal(signed(WEIGHTED_BITS), name="weighted2", reset_less=True),
            "visible": Signal(name="visible2", reset_less=True),
            "context": Signal(_context(), name="second", reset_less=True),
            "block": Signal.like(block, name="block2", reset_less=True),
        }
        with m.If(valid1):
            m.d.sync += [
                now["s"].eq(clamped),
                now["weighted"].eq(clamped + log2),
                now["visible"].eq(see.r_data.bit_select(first.token, 1)),
                now["context"].eq(first),
                now["block"].eq(block),
            ]
        self._valid1, now["valid"] = valid1, valid2
        return first, now

    def _build_store(self, m: Module, now: dict[str, Any]) -> None:
        """Stage 2: write the token's entry."""
        config = self._config
        lanes, low = config.lanes, config.lanes.bit_length() - 1
        entry_bits = stored_score().size
        m.submodules.scores = ram = Ram(
            entry_bits * lanes,
            config.score_depth // lanes,
            granularity=entry_bits,
            disjoint=True,
        )
        entry = Signal(stored_score())
        place = Signal(range(config.score_depth))
        context = now["context"]
        m.d.comb += [
            entry.s.eq(now["s"]),
            entry.vs.eq(context.vs),
            entry.visible.eq(now["visible"]),
            place.eq(Cat(context.token, now["block"])),
            ram.w_addr.eq(place >> low),
            ram.w_data.eq(Cat([entry.as_value()] * lanes)),
            ram.r_en.eq(self.r_en),
            ram.r_addr.eq(self.r_addr),
            self.r_data.eq(ram.r_data),
        ]
        with m.If(now["valid"]):
            m.d.comb += ram.w_en.eq(1 << place[:low] if low else 1)

    def _build_maxima(self, m: Module, first: Any, now: dict[str, Any]) -> None:
        """Stage 2: maxima of the running page; at its end, into the page's and head's entries."""
        config, context = self._config, now["context"]
        running = Signal(head_maxima(), reset_less=True)
        page, total, old = Signal(head_maxima()), Signal(head_maxima()), Signal(head_maxima())
        m.submodules.pages = pages = Ram(
            page_maximum().size, config.score_depth // PAGE, disjoint=True
        )
        m.submodules.heads = heads = Ram(head_maxima().size, HEADS_MAX, disjoint=True)
        start = context.token == 0
        self._merge(m, page, running, ~start, now["s"], now["weighted"], now["visible"])
        m.d.comb += old.eq(heads.r_data)
        self._merge(m, total, old, context.page != 0, page.s, page.weighted, page.any)
        end = Signal()
        end_next = Signal()
        m.d.comb += [
            end.eq(now["valid"] & context.last),
            end_next.eq(self._valid1 & first.last),
            pages.w_en.eq(end),
            pages.w_addr.eq(now["block"]),
            pages.w_data.eq(Cat(page.any, page.weighted)),
            pages.r_en.eq(self.page_en),
            pages.r_addr.eq(self.page_addr),
            self.page_data.eq(pages.r_data),
            heads.w_en.eq(end),
            heads.w_addr.eq(context.g),
            heads.w_data.eq(total),
            # A page takes 64 cycles, so the head's previous entry was written long ago.
            heads.r_en.eq(end_next | self.head_en),
            heads.r_addr.eq(Mux(end_next, first.g, self.head_addr)),
            self.head_data.eq(heads.r_data),
        ]
        with m.If(now["valid"]):
            m.d.sync += running.eq(page)

    def _merge(
        self, m: Module, result: Any, old: Any, keep: Any, s: Any, weighted: Any, any_: Any
    ) -> None:
        """Maxima of `old` (if `keep`) and of a new pair (if `any_`)."""
        have = Signal(name=f"{result.as_value().name}_have")
        m.d.comb += [have.eq(keep & old.any), result.any.eq(have | any_)]
        m.d.comb += [
            result.s.eq(Mux(have & ~(any_ & (s > old.s)), old.s, s)),
            result.weighted.eq(
                Mux(have & ~(any_ & (weighted > old.weighted)), old.weighted, weighted)
            ),
        ]
