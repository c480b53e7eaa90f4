"""KV slots: which page and offset every token's keys and values live at.

A sequence owns whole pages of 64 token slots, listed in its page table. A slot is *free*, *used* (a
tree node or a committed token has it) or used and *committed* (visible to every row of the
sequence). Slots are given out lowest first, so committed contexts fill their pages densely and the
holes that dead branches leave are refilled. Nothing ever moves.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..config import PAGE

__all__ = ["FULL_PAGE", "PageTable", "lowest_bit"]

FULL_PAGE = (1 << PAGE) - 1


def lowest_bit(mask: int) -> int:
    """Index of the lowest set bit of a nonzero mask."""
    return (mask & -mask).bit_length() - 1


@dataclass
class PageTable:
    """Pages of one sequence.

    Parameters
    ----------
    phys : list of int
        Physical page of each page index.
    used, committed : list of int
        64-bit maps of each page; ``committed`` is a subset of ``used``.
    low : int
        No page before this index has a free slot.
    """

    phys: list[int] = field(default_factory=list)
    used: list[int] = field(default_factory=list)
    committed: list[int] = field(default_factory=list)
    low: int = 0

    def copy(self) -> PageTable:
        """Return an independent copy."""
        return PageTable(self.phys[:], self.used[:], self.committed[:], self.low)

    def allocate(self, free_pages: int) -> tuple[int, int, int]:
        """Take the lowest free slot, if need be on the lowest page of the pool.

        Parameters
        ----------
        free_pages : int
            Map of the pool's free pages.

        Returns
        -------
        page, offset, free_pages : int
            The slot, and the pool's map afterwards. A pool of `DeviceConfig.pool_pages` can't run
            out: pages are added only when all earlier ones are full.
        """
        while self.low < len(self.used) and self.used[self.low] == FULL_PAGE:
            self.low += 1
        page = self.low
        if page == len(self.used):
            phys = lowest_bit(free_pages)
            free_pages &= ~(1 << phys)
            self.phys.append(phys)
            self.used.append(0)
            self.committed.append(0)
        offset = lowest_bit(~self.used[page] & FULL_PAGE)
        self.used[page] |= 1 << offset
        return page, offset, free_pages

    def commit(self, page: int, offset: int) -> None:
        """Make a used slot visible to all rows."""
        self.committed[page] |= 1 << offset

    def release(self, page: int, offset: int) -> None:
        """Return a slot that isn't committed."""
        self.used[page] &= ~(1 << offset)
        self.low = min(self.low, page)
