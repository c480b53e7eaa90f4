"""Turns commands and words into beats of the array: who meets which operand, and what for."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from ..common.arith import bits_for_range
from ..config import DeviceConfig
from ..interfaces import PAGE_BITS, SLOT_BITS, TOKEN_BITS, kv_command, sequence_context, word
from ..isa import KvKind, OutOp
from .control import act_words, beat, command, result_control, result_tag
from .scales import ScaleQueue

__all__ = ["Sequencer"]

_PAIR_BITS = 7


class Sequencer(wiring.Component):
    """Walks blocks or pages, query heads, items and words of one command after the other.

    An item is an output channel, a token (SCORE) or a dim (PV). A linear block is one scale word
    and ``bus_bytes / 2`` channels; a page is its K and V scale bytes and 64 tokens (SCORE), or its
    dims (PV), and passes again from the replay buffer for every further query head. Sequences
    without pages are skipped.

    *Latency* 1 cycle from an accepted word to its beat. *Throughput* one word per cycle within an
    instruction; between instructions that don't wait one cycle is lost, two after one that
    signals. ``words.ready`` depends on registers only. Reset forgets the command under way.

    Parameters
    ----------
    config : DeviceConfig

    Members
    -------
    command : In(stream of `command`)
    words : In(stream of `word`)
    kv : Out(stream of `kv_command`)
        Sent when a SCORE or PV command starts.
    sequences : In(`sequence_context`), per sequence
    head_groups : In(2)
        64-element groups of an attention head: where ROPE's pair index starts again.
    vec_token : In(1)
        A token of the vector unit is there.
    vec_take : Out(1)
        It is consumed in this cycle.
    take, keep, replay, restart : Out(1)
        To the replay buffer.
    addr : Out
        Activation word; with ``beat``, ``control`` and ``tag`` one cycle after the word.
    beat, control, tag : Out(`beat`, `result_control`, `result_tag`)
    busy : Out(1)
        A command is under way.
    """

    def __init__(self, config: DeviceConfig) -> None:
        self._config = config
        super().__init__(
            {
                "command": In(stream.Signature(command(config))),
                "words": In(stream.Signature(word(config))),
                "kv": Out(stream.Signature(kv_command())),
                "sequences": In(sequence_context(config)).array(config.max_seqs),
                "head_groups": In(2),
                "vec_token": In(1),
                "vec_take": Out(1),
                "take": Out(1),
                "keep": Out(1),
                "replay": Out(1),
                "restart": Out(1),
                "addr": Out(bits_for_range(act_words(config))),
                "beat": Out(beat()),
                "control": Out(result_control(config)),
                "tag": Out(result_tag(config)),
                "busy": Out(1),
            }
        )
        self._declare_positions()
        self._declare_conditions()

    def elaborate(self, platform: Any) -> Module:
        """Return the hardware."""
        m = Module()
        self._build_conditions(m)
        self._build_issue(m, self._build_scales(m))
        with m.FSM(name="state"):
            self._build_start(m)
            self._build_pages(m)
            self._build_words(m)
            with m.State("MARK"):
                m.d.comb += [self._mark.eq(self.command.p.signal), self.command.ready.eq(1)]
                m.next = "START"
        return m

    def _declare_positions(self) -> None:
        """Create the registers: positions (counting up) and what remains (counting down)."""
        config, shape = self._config, command(self._config)
        self._word_left = Signal(shape["words"].shape)
        self._item_left = Signal(shape["items"].shape)
        self._outer_left = Signal(shape["blocks"].shape)
        self._head_left = Signal(shape["heads"].shape)
        self._header_left = Signal(range(2 * config.group_words))
        self._first = Signal()
        self._addr = Signal(self.addr.shape())
        self._item_addr = Signal(self.addr.shape())
        self._page_addr = Signal(self.addr.shape())
        self._scale = Signal(shape["scale"].shape)
        self._vm = Signal(shape["vm"].shape)
        self._entry = Signal(bits_for_range(config.acc_depth))
        self._odd = Signal()
        self._pair = Signal(_PAIR_BITS)
        self._channel = Signal(TOKEN_BITS)
        self._item = Signal(SLOT_BITS)
        self._head = Signal(shape["heads"].shape)
        self._page = Signal(PAGE_BITS)
        self._seq = Signal(range(config.max_seqs + 1))
        self._rows = Signal(config.rows)
        self._replaying = Signal()

    def _declare_conditions(self) -> None:
        """Name what several parts ask for."""
        self._score, self._pv = Signal(name="is_score"), Signal(name="is_pv")
        self._header, self._body = Signal(name="in_header"), Signal(name="in_body")
        self._mark, self._go = Signal(name="mark"), Signal(name="go")
        self._item_end, self._head_end = Signal(name="item_end"), Signal(name="head_end")
        self._page_end, self._outer_end = Signal(name="page_end"), Signal(name="outer_end")

    def _build_conditions(self, m: Module) -> None:
        """Derive them from the registers and from whether a word is there."""
        p = self.command.p
        m.d.comb += [
            self._score.eq(p.out == OutOp.SCORE),
            self._pv.eq(p.out == OutOp.PV),
            self._go.eq(self._body & (self._replaying | self.words.valid)),
            self._item_end.eq(self._word_left == 0),
            self._head_end.eq(self._item_end & (self._item_left == 0)),
            self._page_end.eq(self._head_end & (self._head_left == 0)),
            self._outer_end.eq(self._page_end & (self._outer_left == 0)),
            self.words.ready.eq(self._header | (self._body & ~self._replaying)),
            self.take.eq(self._body & ~self._replaying & self.words.valid),
            self.keep.eq(p.paged & (p.heads != 0)),
            self.replay.eq(self._body & self._replaying),
            self.restart.eq(self._head_end),
        ]

    def _build_scales(self, m: Module) -> ScaleQueue:
        """Feed the queue of scales."""
        m.submodules.scales = scales = ScaleQueue(self._config)
        m.d.comb += [
            scales.out.eq(self.command.p.out),
            scales.word.eq(self.words.payload),
            scales.load.eq(self._header & self.words.valid),
            # The V scales come after the K scales.
            scales.values.eq(self._header_left < self._config.group_words),
            scales.next.eq(self._go & self._item_end),
        ]
        return scales

    def _build_issue(self, m: Module, scales: ScaleQueue) -> None:
        """Register the beat of an accepted word, or the marker that ends an instruction."""
        p, control = self.command.p, self.control
        last = Signal()
        m.d.comb += last.eq(self._go & self._item_end)
        m.d.sync += [
            self.beat.valid.eq(self._go | self._mark),
            self.beat.first.eq(self._first | self._mark),
            self.beat.last.eq(last | self._mark),
        ]
        with m.If(self._go):
            m.d.sync += self.addr.eq(self._addr)
        with m.If(last | self._mark):
            m.d.sync += [
                control.out.eq(Mux(self._mark, OutOp.STORE, p.out)),
                control.pre.eq(p.pre),
                control.shift.eq(p.sbase - scales.exponent),
                control.column.eq(scales.column),
                control.scale.eq(self._scale),
                control.marker.eq(self._mark),
                control.rows.eq(Mux(self._mark, 0, self._rows)),
            ]
        self._build_tag(m, last, scales)

    def _build_tag(self, m: Module, last: Signal, scales: ScaleQueue) -> None:
        """Register the destination of the item that ends."""
        with m.If(last):
            with m.If(self._score):
                score = self.tag.score
                m.d.sync += [
                    score.g.eq(self._head),
                    score.page.eq(self._page),
                    score.token.eq(self._item),
                    score.vs.eq(scales.v_scale),
                    score.last.eq(self._head_end),
                    score.done.eq(self._outer_end),
                ]
            with m.Elif(self.command.p.out == OutOp.TOPK):
                logit = self.tag.logit
                m.d.sync += [
                    logit.channel.eq(self._channel),
                    logit.first.eq(self._channel == 0),
                    logit.last.eq(self._outer_end),
                ]
            with m.Else():
                write = self.tag.write
                m.d.sync += [
                    write.vm.eq(self._vm),
                    write.odd.eq(self._odd),
                    write.pair.eq(self._pair),
                    write.entry.eq(self._entry),
                    write.first_page.eq(self._page == 0),
                    write.last_page.eq(self._outer_left == 0),
                ]

    def _restart(self, m: Module) -> None:
        """Set the registers to a command's first item (of each sequence, if it is paged)."""
        p = self.command.p
        m.d.sync += [
            self._word_left.eq(p.words),
            self._item_left.eq(p.items),
            self._head_left.eq(p.heads),
            self._header_left.eq(Mux(p.paged, 2 * self._config.group_words - 1, 0)),
            self._first.eq(1),
            *(addr.eq(p.act) for addr in (self._addr, self._item_addr, self._page_addr)),
            self._scale.eq(p.scale),
            self._vm.eq(p.vm),
            *(
                register.eq(0)
                for register in (
                    self._entry,
                    self._odd,
                    self._pair,
                    self._channel,
                    self._item,
                    self._head,
                    self._page,
                    self._replaying,
                )
            ),
        ]

    def _build_start(self, m: Module) -> None:
        """States that begin a command."""
        p, can = self.command.p, Signal()
        m.d.comb += can.eq(self.command.valid & (~p.wait | self.vec_token))
        m.d.comb += self.busy.eq(self.command.valid)
        m.d.comb += [
            self.kv.p.kind.eq(Mux(self._pv, KvKind.V, KvKind.K)),
            self.kv.p.layer.eq(p.layer),
            self.kv.p.head.eq(p.head),
        ]
        with m.State("START"):
            m.d.comb += self.vec_take.eq(can & p.wait)
            with m.If(can):
                self._restart(m)
                m.d.sync += [
                    self._outer_left.eq(p.blocks),
                    self._rows.eq(~0),
                    self._seq.eq(0),
                ]
                with m.If(p.nothing):
                    m.next = "MARK"
                with m.Elif(p.paged):
                    m.next = "ANNOUNCE"
                with m.Else():
                    m.next = "HEADER"
        with m.State("ANNOUNCE"):
            m.d.comb += self.kv.valid.eq(1)
            with m.If(self.kv.ready):
                m.next = "SEQUENCE"

    def _build_pages(self, m: Module) -> None:
        """State that finds the next sequence with pages."""
        with m.State("SEQUENCE"):
            pages, rows = Signal(PAGE_BITS), Signal(self._config.rows)
            with m.Switch(self._seq):
                for index, sequence in enumerate(self.sequences):
                    with m.Case(index):
                        m.d.comb += [pages.eq(sequence.pages), rows.eq(sequence.rows)]
            self._restart(m)
            m.d.sync += [
                self._outer_left.eq(pages - 1),
                self._rows.eq(rows),
                self._seq.eq(self._seq + 1),
            ]
            with m.If(self._seq == self._config.max_seqs):
                m.next = "MARK"
            with m.Elif(pages != 0):
                m.next = "BODY"
                with m.If(self._score):
                    m.next = "HEADER"

    def _build_words(self, m: Module) -> None:
        """States that consume words."""
        with m.State("HEADER"):
            m.d.comb += self._header.eq(1)
            with m.If(self.words.valid):
                m.d.sync += self._header_left.eq(self._header_left - 1)
                with m.If(self._header_left == 0):
                    m.next = "BODY"
        with m.State("BODY"):
            m.d.comb += self._body.eq(1)
            with m.If(self._go):
                self._advance(m)

    def _advance(self, m: Module) -> None:
        """Step the registers past a word; inside the condition that it goes."""
        p = self.command.p
        m.d.sync += [
            self._first.eq(self._item_end),
            self._word_left.eq(self._word_left - 1),
            self._addr.eq(self._addr + 1),
        ]
        with m.If(self._item_end):
            self._advance_item(m)
        with m.If(self._head_end):
            head_addr = Signal(self.addr.shape())
            m.d.comb += head_addr.eq(self._item_addr + p.act_head)
            m.d.sync += [
                self._head_left.eq(self._head_left - 1),
                self._head.eq(self._head + 1),
                self._scale.eq(self._scale + p.paged),
                self._replaying.eq(1),
            ]
            with m.If(p.paged):
                m.d.sync += [self._addr.eq(head_addr), self._item_addr.eq(head_addr)]
        with m.If(self._page_end):
            self._advance_page(m)

    def _advance_item(self, m: Module) -> None:
        p = self.command.p
        last_pair = Signal(_PAIR_BITS)
        m.d.comb += last_pair.eq((self.head_groups << 5) - 1)
        m.d.sync += [
            self._word_left.eq(p.words),
            self._addr.eq(self._item_addr),
            self._item_left.eq(Mux(self._item_left == 0, p.items, self._item_left - 1)),
            self._item.eq(self._item + 1),
            self._entry.eq(self._entry + 1),
            self._channel.eq(self._channel + 1),
            self._odd.eq(~self._odd),
            # SWIGLU has one result for two channels.
            self._vm.eq(self._vm + Mux(p.out == OutOp.SWIGLU, self._odd, 1)),
        ]
        with m.If(self._odd):
            m.d.sync += self._pair.eq(Mux(self._pair == last_pair, 0, self._pair + 1))

    def _advance_page(self, m: Module) -> None:
        p, page_addr = self.command.p, Signal(self.addr.shape())
        # A page has its own group of probabilities (PV); queries are the same for every page.
        m.d.comb += page_addr.eq(self._page_addr + Mux(self._pv, self._config.group_words, 0))
        m.d.sync += [
            self._replaying.eq(0),
            self._outer_left.eq(self._outer_left - 1),
            self._page.eq(self._page + 1),
            self._head_left.eq(p.heads),
            self._head.eq(0),
            self._scale.eq(p.scale),
            self._addr.eq(page_addr),
            self._item_addr.eq(page_addr),
            self._page_addr.eq(page_addr),
            self._header_left.eq(Mux(p.paged, 2 * self._config.group_words - 1, 0)),
        ]
        with m.If(self._pv):
            m.d.sync += [self._vm.eq(p.vm), self._entry.eq(0)]
        with m.Else():
            m.next = "HEADER"
        with m.If(self._outer_left == 0):
            with m.If(p.paged):
                m.next = "SEQUENCE"
            with m.Elif(p.signal):
                m.next = "MARK"
            with m.Else():
                m.d.comb += self.command.ready.eq(1)
                m.next = "START"
