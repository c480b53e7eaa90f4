"""Memories of the tree unit: tree slots, children, KV pages, pending tokens."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Const, Module, Value, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from ..common.arith import bits_for_range
from ..common.memory import Ram
from ..config import PAGE, DeviceConfig
from ..interfaces import PAGE_BITS, POSITION_BITS, SEQ_BITS, SLOT_BITS, TOKEN_BITS
from .sorter import SCORE_BITS

__all__ = ["SlotTable", "Storage", "child_entry", "link_entry", "slot_fields"]


def slot_fields(config: DeviceConfig) -> dict[str, Any]:
    """Parts of a tree slot that are written together, by name."""
    return {
        "node": data.StructLayout({"id": 32, "position": POSITION_BITS, "seq": SEQ_BITS}),
        "kv": data.StructLayout({"page": PAGE_BITS, "offset": SLOT_BITS}),
        "score": signed(SCORE_BITS),
        "ancestors": config.m_slots,
        "kids": data.StructLayout({"first": 32, "count": bits_for_range(config.topk + 1)}),
        "next": bits_for_range(config.topk + 1),
    }


def child_entry() -> data.StructLayout:
    """A child as found; `score` is its calibrated edge score."""
    return data.StructLayout(
        {"token": TOKEN_BITS, "logprob": signed(16), "score": signed(16), "stop": 1}
    )


def link_entry(config: DeviceConfig) -> data.StructLayout:
    """The tree slot that a child has, if it's expanded."""
    return data.StructLayout({"expanded": 1, "slot": bits_for_range(config.m_slots)})


class SlotTable(wiring.Component):
    """Tree slots: one read port for all parts of a slot, one write port with an enable per part.

    Reads take one cycle; what was read stays until the next `r_en`. Reset keeps the contents.

    Parameters
    ----------
    config : DeviceConfig

    Members
    -------
    r_en, r_addr : In
    w_addr : In
    NAME : Out
        Part NAME of the slot read (see `slot_fields`).
    w_NAME : In
        Part NAME to write.
    en_NAME : In(1)
        Write it.
    """

    def __init__(self, config: DeviceConfig) -> None:
        self._config = config
        address = bits_for_range(config.m_slots)
        members: dict[str, Any] = {"r_en": In(1), "r_addr": In(address), "w_addr": In(address)}
        for name, shape in slot_fields(config).items():
            members |= {name: Out(shape), f"w_{name}": In(shape), f"en_{name}": In(1)}
        super().__init__(members)

    def elaborate(self, platform: Any) -> Module:
        """Return the hardware."""
        m = Module()
        for name in slot_fields(self._config):
            given = Value.cast(getattr(self, f"w_{name}"))
            ram = Ram(len(given), self._config.m_slots)
            m.submodules[name] = ram
            m.d.comb += [
                ram.r_en.eq(self.r_en),
                ram.r_addr.eq(self.r_addr),
                Value.cast(getattr(self, name)).eq(ram.r_data),
                ram.w_en.eq(getattr(self, f"en_{name}")),
                ram.w_addr.eq(self.w_addr),
                ram.w_data.eq(given),
            ]
        return m


def _fit(value: Any, bits: int) -> Value:
    """Return the low `bits` bits of a value that may be narrower."""
    return (Value.cast(value) | Const(0, bits))[:bits]


class Storage:
    """The tree unit's memories, as submodules of `m`, with their address forms.

    Attributes
    ----------
    slots : SlotTable
    child, link : Ram
        By slot and rank; see `child_entry` and `link_entry`.
    used, committed, phys : Ram
        By sequence and page: 64-bit maps, and the page's number in the pool.
    extra : Ram
        By page: tokens that the row under construction sees besides the committed ones. All zero
        between rows.
    pool : Ram
        Free pages, 64 to a word.
    tokens : Ram
        By sequence and position: committed tokens that may still have to run.
    """

    def __init__(self, m: Module, config: DeviceConfig) -> None:
        self._config = config
        self._rank_bits = bits_for_range(config.topk)
        self._page_bits = bits_for_range(config.seq_pages)
        self._position_bits = bits_for_range(config.max_ctx)
        self.pool_words = -(-config.pool_pages // PAGE)
        pages = config.max_seqs << self._page_bits
        children = config.m_slots << self._rank_bits
        m.submodules.slots = self.slots = SlotTable(config)
        m.submodules.child = self.child = Ram(child_entry().size, children)
        m.submodules.link = self.link = Ram(link_entry(config).size, children)
        m.submodules.used = self.used = Ram(PAGE, pages)
        m.submodules.committed = self.committed = Ram(PAGE, pages)
        m.submodules.phys = self.phys = Ram(PAGE_BITS, pages)
        m.submodules.extra = self.extra = Ram(PAGE, config.seq_pages)
        m.submodules.pool = self.pool = Ram(PAGE, self.pool_words)
        m.submodules.tokens = self.tokens = Ram(TOKEN_BITS, config.max_seqs << self._position_bits)

    def child_at(self, slot: Value, rank: Value) -> Value:
        """Address of a child."""
        return Cat(_fit(rank, self._rank_bits), slot)

    def page_at(self, seq: Value, page: Value) -> Value:
        """Address of a page of a sequence."""
        return Cat(_fit(page, self._page_bits), seq)

    def token_at(self, seq: Value, position: Value) -> Value:
        """Address of a committed token."""
        return Cat(_fit(position, self._position_bits), seq)
