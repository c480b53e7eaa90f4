"""The LOAD engine: turns LOAD instructions into runs of words to read."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from dfvg_hw.config import GROUP, PAGE, DeviceConfig
from dfvg_hw.interfaces import (
    LOOP1_BITS,
    PAGE_BITS,
    SEQ_BITS,
    TOKEN_BITS,
    issue,
    model_registers,
    row_context,
    sequence_context,
)
from dfvg_hw.isa import Dest, LoadKind, Op
from dfvg_hw.memory.reader import ADDRESS_BITS, Target, read_request

from .decode import view

__all__ = ["LoadEngine"]

SCALE_UNITS = 2
"""64-byte units of K and V scales before K in a page."""


class LoadEngine(wiring.Component):
    """Executes LOAD instructions; never waits for compute, so it runs ahead of it.

    LINEAR gives one run; EMBED_ROWS and ROPE_ROWS one per valid row, rows ascending; K_PAGES and
    V_PAGES one per page of each sequence, in the order of `PageWalk`. *Throughput*: a run every 4
    cycles, after 4 cycles for an instruction (7 for pages); runs that matter are longer. Reset
    drops the instruction under way.

    Parameters
    ----------
    config : DeviceConfig

    Members
    -------
    issue : In(stream of `issue`)
    request : Out(stream of `read_request`)
    rows, sequences, model : In
        Constant during a pass.
    fenced : In(1)
        Every KV write of the passes before has been answered; KV loads wait for it.
    page_en, page_seq, page_index : Out; page_phys : In
        Read port of the `PageTable`.
    idle : Out(1)
        No instruction under way.
    """

    def __init__(self, config: DeviceConfig) -> None:
        self._config = config
        self._sub = (GROUP // config.bus_bytes).bit_length() - 1
        super().__init__(
            {
                "issue": In(stream.Signature(issue())),
                "request": Out(stream.Signature(read_request())),
                "rows": In(row_context()).array(config.rows),
                "sequences": In(sequence_context(config)).array(config.max_seqs),
                "model": In(model_registers()),
                "fenced": In(1),
                "page_en": Out(1),
                "page_seq": Out(SEQ_BITS),
                "page_index": Out(PAGE_BITS),
                "page_phys": In(PAGE_BITS),
                "idle": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Return the hardware."""
        m = Module()
        self._build_registers(m)
        with m.FSM() as fsm:
            with m.State("IDLE"):
                self._build_accept(m)
            with m.State("OUTER"):
                # First product under way: start the second.
                self._multiply(m)
                m.d.sync += [self._factor.eq(self._inner), self._times.eq(self._i1)]
                m.next = "INNER"
            with m.State("INNER"):
                self._multiply(m)
                m.d.sync += self._base.eq(self._base + self._product)
                m.next = "BASE"
            with m.State("BASE"):
                m.d.sync += self._base.eq(self._base + self._product)
                with m.If(self._pages):
                    m.next = "FENCE"
                with m.Else():
                    m.d.sync += self._product.eq(0)
                    m.next = "REQUEST"
            with m.State("FENCE"):
                with m.If(self.fenced):
                    m.next = "ITEM"
            with m.State("ITEM"):
                self._build_item(m)
            with m.State("PHYS"):
                m.d.sync += self._times.eq(self.page_phys)
                m.next = "PRODUCT"
            with m.State("PRODUCT"):
                self._multiply(m)
                m.next = "REQUEST"
            with m.State("REQUEST"):
                m.d.comb += self.request.valid.eq(1)
                with m.If(self.request.ready):
                    m.next = "ITEM"
                    with m.If(self._single):
                        m.next = "IDLE"
            m.d.comb += self.idle.eq(fsm.ongoing("IDLE"))
        return m

    def _build_registers(self, m: Module) -> None:
        config = self._config
        self._base = Signal(ADDRESS_BITS, name="base", reset_less=True)
        self._factor = Signal(ADDRESS_BITS, name="factor", reset_less=True)
        self._inner = Signal(ADDRESS_BITS, name="inner", reset_less=True)
        self._times = Signal(TOKEN_BITS, name="times", reset_less=True)
        self._product = Signal(ADDRESS_BITS, name="product", reset_less=True)
        self._i1 = Signal(LOOP1_BITS, name="i1", reset_less=True)
        self._single = Signal(name="single", reset_less=True)
        self._pages = Signal(name="pages", reset_less=True)
        self._embed = Signal(name="embed", reset_less=True)
        self._row = Signal(range(config.rows + 1), name="row", reset_less=True)
        self._seq = Signal(range(config.max_seqs + 1), name="seq", reset_less=True)
        self._page = Signal(PAGE_BITS, name="page", reset_less=True)
        request = self.request.payload
        self._words = Signal.like(request.words, name="words", reset_less=True)
        self._target = Signal(Target, name="target", reset_less=True)
        m.d.comb += [
            request.address.eq(self._base + self._product),
            request.words.eq(self._words),
            request.target.eq(self._target),
            self.page_seq.eq(self._seq),
            self.page_index.eq(self._page),
        ]

    def _multiply(self, m: Module) -> None:
        # One multiplier for every stride; the product must stand still while a request waits.
        m.d.sync += self._product.eq(self._factor * self._times)

    def _build_accept(self, m: Module) -> None:
        """Take an instruction and set up its addresses."""
        model, item = self.model, self.issue.payload
        load = view(Op.LOAD, item.code)
        kv_words = Signal(self._words.shape())
        keys = Signal()
        m.d.comb += [
            self.issue.ready.eq(1),
            keys.eq(load.kind == LoadKind.K_PAGES),
            # K: 64 tokens of the head's padded size, and the scales before; V: as many dims of 64.
            kv_words.eq(((model.head_groups * PAGE) + Mux(keys, SCALE_UNITS, 0)) << self._sub),
        ]
        with m.If(self.issue.valid):
            m.d.sync += [
                self._row.eq(0),
                self._seq.eq(0),
                self._page.eq(0),
                self._single.eq(load.kind == LoadKind.LINEAR),
                self._pages.eq(0),
                self._embed.eq(load.kind == LoadKind.EMBED_ROWS),
                self._i1.eq(item.i1),
                self._times.eq(item.i0),
                self._target.eq(Mux(load.dest == Dest.VEC, Target.VEC, Target.MM)),
            ]
            with m.Switch(load.kind):
                with m.Case(LoadKind.LINEAR):
                    self._set(m, load.base, load.stride0, load.stride1, load.words)
                    m.next = "OUTER"
                with m.Case(LoadKind.EMBED_ROWS):
                    self._set(m, model.embed_base, model.embed_stride, 0, model.embed_words)
                    m.next = "ITEM"
                with m.Case(LoadKind.ROPE_ROWS):
                    self._set(m, model.rope_base, model.rope_stride, 0, model.rope_words)
                    m.next = "ITEM"
                with m.Case(LoadKind.K_PAGES, LoadKind.V_PAGES):
                    start = model.kv_base + Mux(keys, 0, model.kv_v)
                    self._set(m, start, model.kv_layer, model.kv_head, kv_words)
                    m.d.sync += [self._pages.eq(1), self._target.eq(Target.KV)]
                    m.next = "OUTER"

    def _set(self, m: Module, base: Any, outer: Any, inner: Any, words: Any) -> None:
        m.d.sync += [
            self._base.eq(base),
            self._factor.eq(outer),
            self._inner.eq(inner),
            self._words.eq(words),
        ]

    def _build_item(self, m: Module) -> None:
        """Look at the next row or page; go on to its request, or end."""
        config = self._config
        pages = self._of_sequence(m)
        valid, index = self._of_row(m)
        with m.If(self._pages):
            m.d.comb += self.page_en.eq(1)
            m.d.sync += self._factor.eq(self.model.kv_page)
            with m.If(self._seq == config.max_seqs):
                m.next = "IDLE"
            with m.Elif(self._page == pages):
                m.d.sync += [self._seq.eq(self._seq + 1), self._page.eq(0)]
            with m.Else():
                m.d.sync += self._page.eq(self._page + 1)
                m.next = "PHYS"
        with m.Else():
            m.d.sync += [self._row.eq(self._row + 1), self._times.eq(index)]
            with m.If(self._row == config.rows):
                m.next = "IDLE"
            with m.Elif(valid):
                m.next = "PRODUCT"

    def _of_sequence(self, m: Module) -> Signal:
        """Pages of the current sequence."""
        pages = Signal(PAGE_BITS)
        with m.Switch(self._seq):
            for number, sequence in enumerate(self.sequences):
                with m.Case(number):
                    m.d.comb += pages.eq(sequence.pages)
        return pages

    def _of_row(self, m: Module) -> tuple[Signal, Signal]:
        """Whether the current row is valid, and the table index it wants."""
        valid = Signal()
        index = Signal(TOKEN_BITS)
        with m.Switch(self._row):
            for number, row in enumerate(self.rows):
                with m.Case(number):
                    m.d.comb += [
                        valid.eq(row.valid),
                        index.eq(Mux(self._embed, row.token, row.position)),
                    ]
        return valid, index
