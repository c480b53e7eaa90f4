"""What the state groups of the tree unit share: registers, memories, subroutines, messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from amaranth.hdl import Array, Cat, Module, Signal, Value, signed
from amaranth.lib import data

from ..common.arith import bits_for_range
from ..config import PAGE, DeviceConfig
from ..interfaces import PAGE_BITS, SLOT_BITS, TOKEN_BITS, row_context, sequence_context
from ..messages.kinds import STOP_TOKENS, Event, Message
from ..messages.layout import PAYLOAD_BYTES, Record, struct_layout
from .bits import Subroutine, bit_of
from .state import Phase
from .storage import Storage, child_entry, link_entry

__all__ = ["LENGTH_BITS", "Context", "line_view"]

LENGTH_BITS = 32
"""Committed lengths; wider than any context, because contexts that outgrow the device are still
counted."""


def line_view(record: type[Record], line: Value) -> data.View:
    """Return the fields of a message in its 448-bit payload."""
    return data.View(struct_layout(record), line)


def _sequence(config: DeviceConfig) -> data.StructLayout:
    return data.StructLayout(
        {
            "phase": max(Phase).bit_length(),
            "length": LENGTH_BITS,
            "done": LENGTH_BITS,
            "prompt": LENGTH_BITS,
            "hash": 32,
            "epoch": 32,
            "next_id": 32,
            "root": bits_for_range(config.m_slots),
            "threshold": signed(32),
            "max_depth": 16,
            "max_slots": 16,
            "topk": bits_for_range(config.topk + 1),
            "stops": data.ArrayLayout(
                data.StructLayout({"valid": 1, "token": TOKEN_BITS}), STOP_TOKENS
            ),
            "pages": PAGE_BITS,
            "low": PAGE_BITS,
            "slots": config.m_slots,
        }
    )


def _row(config: DeviceConfig) -> data.StructLayout:
    """Bookkeeping of a row beside its context; names as in `RunningRow`."""
    return data.StructLayout(
        {
            "slot": bits_for_range(config.m_slots),
            "keep_kv": 1,
            "committed": 1,
            "keep_children": 1,
            "count": bits_for_range(config.topk + 1),
            "vis_seq": bits_for_range(config.max_seqs),
            "vis_full": PAGE_BITS,
        }
    )


class Context:
    """Everything that more than one group of states uses.

    Parameters
    ----------
    m : Module
        The tree unit's module.
    config : DeviceConfig
    ports : TreeUnit
        For the streams and writes that states drive.

    Attributes
    ----------
    sequences, rows, contexts : list of Signal
        Registers of each sequence; bookkeeping and context of each row.
    seq : Signal
        The current sequence's registers, chosen by `cur`, to be read.
    stored : ArrayProxy
        The same, to be written.
    has_kv, ready, inflight, free : Signal(m_slots)
        State of every tree slot; `free` never has home slots.
    running : Signal
        A pass has been handed over and not been finished.
    stale : Signal
        Something has changed since the last look for rows.
    """

    def __init__(self, m: Module, config: DeviceConfig, ports: Any) -> None:
        self.m, self.config, self.ports = m, config, ports
        self.mem = Storage(m, config)
        self.slots = self.mem.slots
        seqs, rows, slots = config.max_seqs, config.rows, config.m_slots
        self.sequences = [Signal(_sequence(config), name=f"seq{i}") for i in range(seqs)]
        self.rows = [Signal(_row(config), name=f"row{i}") for i in range(rows)]
        self.contexts = [Signal(row_context(), name=f"context{i}") for i in range(rows)]
        self.cur = Signal(range(seqs))
        self.stored = Array(self.sequences)[self.cur]
        # Chosen once and named: every use of an array's element is a multiplexer of its own.
        self.seq = Signal(_sequence(config), name="current")
        m.d.comb += self.seq.eq(Array(s.as_value() for s in self.sequences)[self.cur])
        homes = (1 << seqs) - 1
        self.has_kv, self.ready, self.inflight = Signal(slots), Signal(slots), Signal(slots)
        self.free = Signal(slots, init=(1 << slots) - 1 - homes)
        self.homes = homes
        self.shares = [Signal(sequence_context(config), name=f"share{i}") for i in range(seqs)]
        self.commit = Signal()
        self.show_ancestors = Signal(slots)
        self.row_count = Signal(range(rows + 1))
        self.running, self.stale, self.ended = Signal(), Signal(), Signal()
        self.pass_number = Signal(32)
        self.turn = Signal(range(seqs))
        self.kinds = [Signal(range(rows + 1), name=f"kind{i}") for i in range(3)]
        self.line = Signal(8 * PAYLOAD_BYTES)
        self.message = Signal(8 * PAYLOAD_BYTES)
        self.idle_cycles = Signal(32)
        self.verdict_open, self.swallow = Signal(), Signal()
        self.pool_low = Signal(range(max(2, self.mem.pool_words)))
        self.page, self.offset = Signal(PAGE_BITS), Signal(SLOT_BITS)
        self.phys = Signal(PAGE_BITS)
        self.child = data.View(child_entry(), self.mem.child.r_data)
        self.link = data.View(link_entry(config), self.mem.link.r_data)
        self.send_state = Subroutine("SEND")
        self.allocate = Subroutine("ALLOCATE")
        self.show = Subroutine("SHOW")
        self.close = Subroutine("CLOSE")

    # Slots ---------------------------------------------------------------------------------

    def slot_bit(self, index: Value) -> Value:
        """Map over tree slots with one bit set."""
        return bit_of(index, self.config.m_slots)

    def read_slot(self, index: Value) -> None:
        """Read a tree slot; its parts are there in the next state."""
        self.m.d.comb += [self.slots.r_en.eq(1), self.slots.r_addr.eq(index)]

    def write_slot(self, index: Value, **parts: Any) -> None:
        """Write parts of a tree slot."""
        self.m.d.comb += self.slots.w_addr.eq(index)
        for name, value in parts.items():
            target = getattr(self.slots, f"w_{name}")
            self.m.d.comb += getattr(self.slots, f"en_{name}").eq(1)
            if isinstance(value, Mapping):
                self.m.d.comb += [target[key].eq(item) for key, item in value.items()]
            else:
                self.m.d.comb += target.eq(value)

    def read_child(self, slot: Value, rank: Value) -> None:
        """Read a child and its link; they are there in the next state."""
        address = self.mem.child_at(slot, rank)
        for ram in (self.mem.child, self.mem.link):
            self.m.d.comb += [ram.r_en.eq(1), ram.r_addr.eq(address)]

    def link_child(self, slot: Value, rank: Value, to: Value) -> None:
        """Note that a child has got a tree slot."""
        entry = Signal(link_entry(self.config), name="new_link")
        self.m.d.comb += [
            entry.expanded.eq(1),
            entry.slot.eq(to),
            self.mem.link.w_en.eq(1),
            self.mem.link.w_addr.eq(self.mem.child_at(slot, rank)),
            self.mem.link.w_data.eq(entry),
        ]

    def plant(self, node_id: Value) -> None:
        """Put a root that has not run into the current sequence's home slot."""
        home = self.slot_bit(self.cur)
        self.write_slot(
            self.cur,
            node={"id": node_id, "position": self.seq.length - 1, "seq": self.cur},
            score=0,
            ancestors=home,
            kids=0,
            next=0,
        )
        self.m.d.sync += [
            self.stored.root.eq(self.cur),
            self.stored.slots.eq(home),
            self.has_kv.eq(self.has_kv & ~home),
            self.ready.eq(self.ready & ~home),
            self.inflight.eq(self.inflight & ~home),
        ]

    def drop_tree(self) -> None:
        """Free the current sequence's tree slots; its pages stay as they are."""
        slots = self.seq.slots
        self.m.d.sync += [
            self.free.eq(self.free | (slots & ~self.homes)),
            self.inflight.eq(self.inflight & ~slots),
            self.ready.eq(self.ready & ~slots),
            self.stored.slots.eq(0),
        ]
        for row, context in zip(self.rows, self.contexts, strict=True):
            with self.m.If(context.seq == self.cur):
                self.m.d.sync += [
                    row.keep_kv.eq(row.keep_kv & row.committed),
                    row.keep_children.eq(0),
                ]

    # Pages ---------------------------------------------------------------------------------

    def read_page(self, page: Value, *names: str) -> None:
        """Read the current sequence's entry of the named page memories."""
        for name in names:
            ram = getattr(self.mem, name)
            self.m.d.comb += [
                ram.r_en.eq(1),
                ram.r_addr.eq(self.mem.page_at(self.cur, page)),
            ]

    def write_page(self, page: Value, **words: Any) -> None:
        """Write the current sequence's entry of the named page memories."""
        for name, word in words.items():
            ram = getattr(self.mem, name)
            self.m.d.comb += [
                ram.w_en.eq(1),
                ram.w_addr.eq(self.mem.page_at(self.cur, page)),
                ram.w_data.eq(word),
            ]

    def write_extra(self, page: Value, word: Any) -> None:
        """Write what the row under construction sees of a page besides committed tokens."""
        self.m.d.comb += [
            self.mem.extra.w_en.eq(1),
            self.mem.extra.w_addr.eq(page),
            self.mem.extra.w_data.eq(word),
        ]

    def offset_bit(self, offset: Value) -> Value:
        """Map of one page with one bit set."""
        return bit_of(offset, PAGE)

    # Messages ------------------------------------------------------------------------------

    def compose(self, record: type[Message], **fields: Any) -> None:
        """Set the outgoing message; fields that aren't given are zero."""
        view = line_view(record, self.message)
        self.m.d.sync += [self.message.eq(0), self.message[:8].eq(int(record.TYPE))]
        for name, value in fields.items():
            self.m.d.sync += view[name].eq(value)

    def event(
        self,
        back: str,
        code: Any,
        epoch: Any = 0,
        info0: Any = 0,
        info1: Any = 0,
        seq: Value | None = None,
    ) -> None:
        """Send an EVENT, about the sequence that the command names unless given another."""
        about = self.line[8:16] if seq is None else seq
        self.compose(Event, code=code, seq=about, epoch=epoch, info0=info0, info1=info1)
        self.send_state.call(self.m, back)

    def alive(self, index: int) -> Value:
        """Whether anything of a row is still of use."""
        row, context = self.rows[index], self.contexts[index]
        return context.valid & (row.keep_kv | (row.keep_children & context.children))

    def any_alive(self) -> Value:
        """Whether any row of the running pass is still of use."""
        return Cat(self.alive(i) for i in range(self.config.rows)).any()
