"""The page tables: where each page of a sequence is in the pool."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from dfvg_hw.common.arith import bits_for_range
from dfvg_hw.common.memory import Ram
from dfvg_hw.config import DeviceConfig
from dfvg_hw.interfaces import PAGE_BITS, SEQ_BITS

__all__ = ["PageTable", "page_write"]


def page_write() -> wiring.Signature:
    """Write of a page table entry: page ``page`` of sequence ``seq`` is page ``phys`` of the pool.

    The tree unit may write entries at any time that no running pass reads.
    """
    return wiring.Signature(
        {"en": Out(1), "seq": Out(SEQ_BITS), "page": Out(PAGE_BITS), "phys": Out(PAGE_BITS)}
    )


class PageTable(wiring.Component):
    """Memory of page numbers by sequence and page. Reset keeps it.

    Parameters
    ----------
    config : DeviceConfig

    Members
    -------
    write : In(`page_write`)
    en, seq, page : In
        Read an entry.
    phys : Out(PAGE_BITS)
        One cycle after ``en``; kept until the next read.
    """

    def __init__(self, config: DeviceConfig) -> None:
        self._config = config
        super().__init__(
            {
                "write": In(page_write()),
                "en": In(1),
                "seq": In(SEQ_BITS),
                "page": In(PAGE_BITS),
                "phys": Out(PAGE_BITS),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Return the hardware."""
        m = Module()
        pages = bits_for_range(self._config.seq_pages)
        depth = self._config.max_seqs << pages
        m.submodules.memory = memory = Ram(PAGE_BITS, depth, disjoint=True)
        m.d.comb += [
            memory.w_en.eq(self.write.en),
            memory.w_addr.eq(Cat(self.write.page[:pages], self.write.seq)),
            memory.w_data.eq(self.write.phys),
            memory.r_en.eq(self.en),
            memory.r_addr.eq(Cat(self.page[:pages], self.seq)),
            self.phys.eq(memory.r_data),
        ]
        return m
