"""Subroutines of the tree unit that handle KV slots: taking one, and showing rows what they see."""

from __future__ import annotations

from amaranth.hdl import Array, Cat, Mux, Signal

from ..config import PAGE
from ..interfaces import PAGE_BITS
from .bits import lowest
from .context import Context

__all__ = ["add_page_states"]


def add_page_states(t: Context) -> None:
    """Add the subroutines ALLOCATE (a KV slot) and SHOW (a row's visible tokens)."""
    _add_allocate(t)
    _add_show(t)


def _add_allocate(t: Context) -> None:
    """Take the lowest free KV slot of the current sequence, if need be on a new page.

    The slot is in `page`, `phys` and `offset` afterwards; with `commit` it's committed at once.
    """
    m, seq, mem = t.m, t.seq, t.mem
    offset = lowest(m, ~mem.used.r_data, "free_offset")
    free_page = lowest(m, mem.pool.r_data, "free_page")
    phys = Signal(PAGE_BITS)
    m.d.comb += phys.eq(Cat(free_page, t.pool_low))
    with m.State("ALLOCATE"):
        t.read_page(seq.low, "used", "committed", "phys")
        m.d.comb += [mem.pool.r_en.eq(1), mem.pool.r_addr.eq(t.pool_low)]
        with m.If(seq.low == seq.pages):
            m.next = "ALLOCATE_PAGE"
        with m.Else():
            m.next = "ALLOCATE_SLOT"
    with m.State("ALLOCATE_SLOT"):
        bit = t.offset_bit(offset)
        m.d.sync += [t.page.eq(seq.low), t.offset.eq(offset), t.phys.eq(mem.phys.r_data)]
        with m.If(mem.used.r_data.all()):
            m.d.sync += t.stored.low.eq(seq.low + 1)
            m.next = "ALLOCATE"
        with m.Else():
            t.write_page(seq.low, used=mem.used.r_data | bit)
            with m.If(t.commit):
                t.write_page(seq.low, committed=mem.committed.r_data | bit)
            t.allocate.leave(m)
    with m.State("ALLOCATE_PAGE"):
        m.d.sync += [t.page.eq(seq.pages), t.offset.eq(0), t.phys.eq(phys)]
        with m.If(mem.pool.r_data == 0):
            m.d.sync += t.pool_low.eq(t.pool_low + 1)
            m.next = "ALLOCATE"
        with m.Else():
            m.d.comb += [
                mem.pool.w_en.eq(1),
                mem.pool.w_addr.eq(t.pool_low),
                mem.pool.w_data.eq(mem.pool.r_data & (mem.pool.r_data - 1)),
                t.ports.pages.en.eq(1),
                t.ports.pages.seq.eq(t.cur),
                t.ports.pages.page.eq(seq.pages),
                t.ports.pages.phys.eq(phys),
            ]
            t.write_page(seq.pages, used=1, committed=t.commit, phys=phys)
            m.d.sync += t.stored.pages.eq(seq.pages + 1)
            t.allocate.leave(m)


def _add_show(t: Context) -> None:
    """Write the visibility maps of row `row_count`: committed, `show_ancestors`, own token.

    Ancestors are collected page by page in a register that swaps with `extra` when the page
    changes, which is rare. Pages that the row's memory is known to hold as all ones (full of
    committed tokens) are passed over, so the work doesn't grow with the context.
    """
    m, seq, mem, slots = t.m, t.seq, t.mem, t.slots
    todo, ancestor = Signal(t.config.m_slots), Signal(PAGE)
    collected, page_at = Signal(PAGE), Signal(PAGE_BITS)
    page, full = Signal(PAGE_BITS), Signal(PAGE_BITS)
    next_slot = lowest(m, todo, "ancestor")
    row = Array(t.rows)[t.row_count]
    m.d.comb += ancestor.eq(t.offset_bit(slots.kv.offset))
    with m.State("SHOW"):
        m.d.sync += [
            todo.eq(t.show_ancestors),
            page_at.eq(t.page),
            collected.eq(t.offset_bit(t.offset)),
            page.eq(Mux(row.vis_seq == t.cur, row.vis_full, 0)),
            full.eq(Mux(row.vis_seq == t.cur, row.vis_full, 0)),
        ]
        m.next = "SHOW_NEXT"
    with m.State("SHOW_NEXT"):
        t.read_slot(next_slot)
        m.d.sync += todo.eq(todo & (todo - 1))
        with m.If(todo != 0):
            m.next = "SHOW_SLOT"
        with m.Else():
            t.write_extra(page_at, collected)
            m.next = "SHOW_READ"
    with m.State("SHOW_SLOT"):
        with m.If(slots.kv.page == page_at):
            m.d.sync += collected.eq(collected | ancestor)
            m.next = "SHOW_NEXT"
        with m.Else():
            t.write_extra(page_at, collected)
            m.d.comb += [mem.extra.r_en.eq(1), mem.extra.r_addr.eq(slots.kv.page)]
            m.next = "SHOW_SWAP"
    with m.State("SHOW_SWAP"):
        m.d.sync += [page_at.eq(slots.kv.page), collected.eq(mem.extra.r_data | ancestor)]
        m.next = "SHOW_NEXT"
    with m.State("SHOW_READ"):
        t.read_page(page, "committed")
        m.d.comb += [mem.extra.r_en.eq(1), mem.extra.r_addr.eq(page)]
        m.next = "SHOW_WRITE"
    with m.State("SHOW_WRITE"):
        now_full, beyond = Signal(PAGE_BITS), Signal()
        m.d.comb += [
            # One page more than there are: a later row of this pass may need a new one. It can't
            # be two, because a pass has fewer rows than a page has tokens.
            beyond.eq(page == seq.pages),
            now_full.eq(full + ((page == full) & mem.committed.r_data.all() & ~beyond)),
            t.ports.visibility.en.eq(1),
            t.ports.visibility.row.eq(t.row_count),
            t.ports.visibility.page.eq(page),
            t.ports.visibility.bits.eq(Mux(beyond, 0, mem.committed.r_data | mem.extra.r_data)),
        ]
        t.write_extra(page, 0)
        m.d.sync += [full.eq(now_full), page.eq(page + 1)]
        with m.If(beyond | (page == t.config.seq_pages - 1)):
            m.d.sync += [row.vis_seq.eq(t.cur), row.vis_full.eq(now_full)]
            t.show.leave(m)
        with m.Else():
            m.next = "SHOW_READ"
