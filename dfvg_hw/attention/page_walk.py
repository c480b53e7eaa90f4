"""Walks the KV pages of a command in stream order and says which rows have a slot in each."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from dfvg_hw.common.stream import Queue
from dfvg_hw.config import DeviceConfig
from dfvg_hw.interfaces import (
    HEAD_BITS,
    PAGE_BITS,
    kv_command,
    model_registers,
    row_context,
    sequence_context,
)
from dfvg_hw.isa import KvKind
from dfvg_hw.memory.reader import ADDRESS_BITS

__all__ = ["PageWalk", "page_step"]


def page_step(config: DeviceConfig) -> data.StructLayout:
    """One page of a KV stream.

    ``match`` marks the rows with a slot in it, ``address`` (units of 64 bytes) is where the part
    of ``kind`` starts in memory, valid if any row matches; ``tail`` is the first group of the
    head in a row's tail.
    """
    return data.StructLayout(
        {
            "kind": 1,
            "match": config.rows,
            "address": ADDRESS_BITS,
            "head": HEAD_BITS,
            "tail": HEAD_BITS + 2,
        }
    )


class PageWalk(wiring.Component):
    """Turns a KV command into page steps: sequences ascending, pages ascending.

    Works ahead of the stream by two pages; a step takes 4 cycles, a page's words at least 64, so
    only the first page of a command can wait. Reset drops everything.

    Parameters
    ----------
    config : DeviceConfig

    Members
    -------
    command : In(stream of `kv_command`)
    rows, sequences, model : In
        Constant during a pass.
    o : Out(stream of `page_step`)
    idle : Out(1)
        No step left.
    """

    def __init__(self, config: DeviceConfig) -> None:
        self._config = config
        super().__init__(
            {
                "command": In(stream.Signature(kv_command())),
                "rows": In(row_context()).array(config.rows),
                "sequences": In(sequence_context(config)).array(config.max_seqs),
                "model": In(model_registers()),
                "o": Out(stream.Signature(page_step(config))),
                "idle": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Return the hardware."""
        m = Module()
        m.submodules.steps = steps = Queue(page_step(self._config), 2)
        wiring.connect(m, steps.o, wiring.flipped(self.o))
        command = Signal(kv_command(), reset_less=True)
        base = Signal(ADDRESS_BITS, reset_less=True)
        tail = Signal(HEAD_BITS + 2, reset_less=True)
        seq = Signal(range(self._config.max_seqs))
        page = Signal(PAGE_BITS)
        # One multiplier for all strides; only the low bits of a product count.
        factor = Signal(ADDRESS_BITS, reset_less=True)
        times = Signal(16, reset_less=True)
        product = Signal(ADDRESS_BITS, reset_less=True)
        m.d.sync += product.eq(factor * times)
        match, phys, pages = self._build_match(m, seq, page)
        found = Signal(self._config.rows, reset_less=True)
        step = steps.i.payload
        m.d.comb += [
            step.kind.eq(command.kind),
            step.match.eq(found),
            step.address.eq(base + product),
            step.head.eq(command.head),
            step.tail.eq(tail),
        ]
        model = self.model
        with m.FSM() as fsm:
            with m.State("IDLE"):
                m.d.comb += self.command.ready.eq(1)
                with m.If(self.command.valid):
                    request = self.command.payload
                    m.d.sync += [
                        command.eq(request),
                        factor.eq(model.kv_layer),
                        times.eq(request.layer),
                        base.eq(model.kv_base + Mux(request.kind == KvKind.V, model.kv_v, 0)),
                        tail.eq(request.head * model.head_groups),
                        seq.eq(0),
                        page.eq(0),
                    ]
                    m.next = "LAYER"
            with m.State("LAYER"):
                m.d.sync += [factor.eq(model.kv_head), times.eq(command.head)]
                m.next = "HEAD"
            with m.State("HEAD"):
                m.d.sync += base.eq(base + product)
                m.next = "BASE"
            with m.State("BASE"):
                m.d.sync += base.eq(base + product)
                m.next = "PAGE"
            with m.State("PAGE"):
                m.d.sync += [factor.eq(model.kv_page), times.eq(phys), found.eq(match)]
                with m.If(page == pages):
                    m.d.sync += [seq.eq(seq + 1), page.eq(0)]
                    with m.If(seq == self._config.max_seqs - 1):
                        m.next = "IDLE"
                with m.Else():
                    m.next = "ADDRESS"
            with m.State("ADDRESS"):
                m.next = "EMIT"
            with m.State("EMIT"):
                m.d.comb += steps.i.valid.eq(1)
                with m.If(steps.i.ready):
                    m.d.sync += page.eq(page + 1)
                    m.next = "PAGE"
            m.d.comb += self.idle.eq(fsm.ongoing("IDLE") & ~steps.o.valid)
        return m

    def _build_match(self, m: Module, seq: Signal, page: Signal) -> tuple[Signal, Signal, Signal]:
        """Rows with a slot in the page, the page's place in the pool, the sequence's pages."""
        config = self._config
        match = Signal(config.rows)
        phys = Signal(PAGE_BITS)
        pages = Signal(PAGE_BITS)
        for index in range(config.rows):
            row = self.rows[index]
            m.d.comb += match[index].eq(row.valid & (row.seq == seq) & (row.page == page))
            with m.If(match[index]):
                m.d.comb += phys.eq(row.phys)
        with m.Switch(seq):
            for index in range(config.max_seqs):
                with m.Case(index):
                    m.d.comb += pages.eq(self.sequences[index].pages)
        return match, phys, pages
