"""States that choose a pass's rows and give them slots, pages and visibility."""

from __future__ import annotations

import functools
import operator
from typing import Any

from amaranth.hdl import Array, Cat, Module, Mux, Signal, signed

from ..common.arith import bits_for_range
from ..interfaces import TOKEN_BITS
from .bits import count_ones, lowest, smaller
from .context import LENGTH_BITS, Context
from .sorter import SCORE_BITS, CandidateSorter
from .state import Phase, RowKind

__all__ = ["add_begin_states"]


class _Begin:
    """Registers of a pass under construction."""

    def __init__(self, t: Context) -> None:
        config = t.config
        self.step = Signal(range(config.max_seqs + 1))
        self.waiting = Signal(config.max_seqs)
        self.allowances = [
            Signal(range(config.rows + 1), name=f"allowance{i}") for i in range(config.max_seqs)
        ]
        self.todo = Signal(config.m_slots)
        self.slot = Signal(range(config.m_slots))
        self.rank = Signal(bits_for_range(config.topk + 1))
        self.tried = Signal(bits_for_range(config.topk + 1))
        self.stop = Signal()
        self.score = Signal(signed(SCORE_BITS))
        self.token = Signal(TOKEN_BITS)
        self.limit = Signal(range(config.rows + 1))
        self.index = Signal(range(config.rows + 1))
        self.new_slot = Signal(range(config.m_slots))
        t.m.submodules.sorter = self.sorter = CandidateSorter(config)


def add_begin_states(t: Context) -> None:
    """Add BEGIN and everything below it: pending rows, the scan for candidates, growth rows."""
    b = _Begin(t)
    _add_start(t, b)
    _add_pending(t, b)
    _add_scan(t, b)
    _add_growth(t, b)
    _add_hand_over(t, b)


def _add_start(t: Context, b: _Begin) -> None:
    m, config = t.m, t.config
    waiting = Signal(config.max_seqs)
    m.d.comb += waiting.eq(
        Cat((seq.phase == Phase.OPEN) & (seq.done != seq.length) for seq in t.sequences)
    )
    with m.State("BEGIN"):
        m.d.sync += [
            b.waiting.eq(waiting),
            b.step.eq(0),
            b.index.eq(0),
            t.cur.eq(t.turn),
            t.row_count.eq(0),
            *[kind.eq(0) for kind in t.kinds],
            *[context.eq(0) for context in t.contexts],
            *[share.eq(0) for share in t.shares],
        ]
        for index, seq in enumerate(t.sequences):
            m.d.sync += b.allowances[index].eq(_allowance(m, t, seq, waiting[index], index))
        m.next = "PENDING"


def _allowance(m: Module, t: Context, seq: Any, waiting: Any, index: int) -> Any:
    """Rows that a sequence may grow by, at most all; the root's slot doesn't count."""
    held = count_ones(m, seq.slots, f"held{index}")
    beside_root = Signal(len(held), name=f"beside_root{index}")
    left = Signal(17, name=f"slots_left{index}")
    grows = Signal(name=f"grows{index}")
    m.d.comb += [
        beside_root.eq(held - (held != 0)),
        left.eq(Mux(seq.max_slots > beside_root, seq.max_slots - beside_root, 0)),
        grows.eq((seq.phase == Phase.OPEN) & ~waiting),
    ]
    return Mux(grows, smaller(left, t.config.rows), 0)


def _add_pending(t: Context, b: _Begin) -> None:
    """Rows of committed tokens without KV, sequence after sequence."""
    m, config, seq = t.m, t.config, t.seq
    last = Signal()
    token = t.mem.tokens.r_data
    m.d.comb += last.eq(seq.done + 1 == seq.length)
    with m.State("PENDING"):
        m.d.comb += [
            t.mem.tokens.r_en.eq(1),
            t.mem.tokens.r_addr.eq(t.mem.token_at(t.cur, seq.done)),
        ]
        mine = Array([b.waiting[i] for i in range(config.max_seqs)])[t.cur]
        with m.If((t.row_count == config.rows) | (b.step == config.max_seqs)):
            m.next = "LOOK_START"
        with m.Elif(mine & (seq.done != seq.length)):
            m.d.sync += t.commit.eq(1)
            t.allocate.call(m, "PENDING_ROW")
        with m.Else():
            m.d.sync += b.step.eq(b.step + 1)
            with m.If(t.cur == config.max_seqs - 1):
                m.d.sync += t.cur.eq(0)
            with m.Else():
                m.d.sync += t.cur.eq(t.cur + 1)
    with m.State("PENDING_ROW"):
        prefill = seq.done < seq.prompt
        _set_row(t, token, seq.done, last, t.cur, committed=1)
        m.d.sync += [
            t.stored.done.eq(seq.done + 1),
            t.kinds[RowKind.PREFILL].eq(t.kinds[RowKind.PREFILL] + prefill),
            t.kinds[RowKind.CATCHUP].eq(t.kinds[RowKind.CATCHUP] + ~prefill),
        ]
        with m.If(last):
            t.write_slot(t.cur, kv={"page": t.page, "offset": t.offset})
            m.d.sync += [
                t.has_kv.eq(t.has_kv | t.slot_bit(t.cur)),
                t.inflight.eq(t.inflight | t.slot_bit(t.cur)),
            ]
        m.d.sync += t.show_ancestors.eq(0)
        t.show.call(m, "PENDING_NEXT")
    with m.State("PENDING_NEXT"):
        m.d.sync += t.row_count.eq(t.row_count + 1)
        m.next = "PENDING"


def _set_row(
    t: Context, token: Any, position: Any, children: Any, slot: Any, committed: int
) -> None:
    """Fill the registers of row `row_count` of the current sequence."""
    m = t.m
    for index, (row, context) in enumerate(zip(t.rows, t.contexts, strict=True)):
        with m.If(t.row_count == index):
            m.d.sync += [
                context.valid.eq(1),
                context.children.eq(children),
                context.token.eq(token),
                context.position.eq(position),
                context.seq.eq(t.cur),
                context.page.eq(t.page),
                context.phys.eq(t.phys),
                context.offset.eq(t.offset),
                row.slot.eq(slot),
                row.keep_kv.eq(1),
                row.committed.eq(committed),
                row.keep_children.eq(children),
                row.count.eq(0),
            ]
    for index, share in enumerate(t.shares):
        with m.If(t.cur == index):
            m.d.sync += share.rows.eq(share.rows | (1 << t.row_count))


def _add_scan(t: Context, b: _Begin) -> None:
    """Look at the best children of every slot once; the sorter keeps the best of all."""
    m, config, slots, sorter = t.m, t.config, t.slots, b.sorter
    owners = Signal(config.m_slots)
    terms = [Mux(b.allowances[i] != 0, seq.slots, 0) for i, seq in enumerate(t.sequences)]
    m.d.comb += owners.eq(functools.reduce(operator.or_, terms))
    free = count_ones(m, t.free, "free_count")
    next_slot = lowest(m, b.todo, "scan_slot")
    owner = Array(t.sequences)[slots.node.seq[: len(t.cur)]]
    depth = Signal(signed(LENGTH_BITS + 2))
    may_grow, good = Signal(), Signal()
    m.d.comb += [
        depth.eq(slots.node.position + 2 - owner.length),
        may_grow.eq(
            (depth <= owner.max_depth)
            & (slots.node.position + 1 < config.max_ctx)
            & (slots.next < slots.kids.count)
        ),
        good.eq(~b.stop & (b.score >= owner.threshold)),
        sorter.offer.score.eq(b.score),
        sorter.offer.token.eq(b.token),
        sorter.offer.parent.eq(b.slot),
        sorter.offer.rank.eq(b.tried),
        sorter.offer.seq.eq(slots.node.seq),
        sorter.offer.position.eq(slots.node.position + 1),
        sorter.allowance.eq(Array(b.allowances)[slots.node.seq[: len(t.cur)]]),
        sorter.limit.eq(b.limit),
    ]
    with m.State("LOOK_START"):
        room = Signal(range(config.rows + 1))
        m.d.comb += [sorter.clear.eq(1), room.eq(config.rows - t.row_count)]
        m.d.sync += [b.limit.eq(smaller(free, room)), b.todo.eq(t.ready & owners)]
        m.next = "LOOK"

    def look_on() -> None:
        t.read_slot(next_slot)
        m.d.sync += [b.slot.eq(next_slot), b.todo.eq(b.todo & (b.todo - 1))]
        with m.If((b.todo == 0) | (b.limit == 0)):
            m.next = "GROW"
        with m.Else():
            m.next = "LOOK_SLOT"

    with m.State("LOOK"):
        look_on()
    with m.State("LOOK_SLOT"):
        t.read_child(b.slot, slots.next)
        m.d.sync += b.rank.eq(slots.next)
        # A child is no better than its parent, and must be better than the list's last to enter.
        with m.If(may_grow & ~(sorter.full & (sorter.worst >= slots.score))):
            m.next = "LOOK_CHILD"
        with m.Else():
            look_on()
    with m.State("LOOK_CHILD"):
        # The next rank is read while this one is compared.
        t.read_child(b.slot, b.rank + 1)
        m.d.sync += [
            b.rank.eq(b.rank + 1),
            b.tried.eq(b.rank),
            b.stop.eq(t.child.stop),
            b.score.eq(slots.score + t.child.score),
            b.token.eq(t.child.token),
        ]
        m.next = "LOOK_TRY"
    with m.State("LOOK_TRY"):
        m.d.comb += sorter.en.eq(good)
        with m.If((b.stop | (good & sorter.accepted)) & (b.rank < slots.kids.count)):
            m.next = "LOOK_CHILD"
        with m.Else():
            look_on()


def _add_growth(t: Context, b: _Begin) -> None:
    """Rows of the candidates that the sorter holds, best first."""
    m, seq, slots = t.m, t.seq, t.slots
    entry = Array(b.sorter.entries[i] for i in range(t.config.rows))[b.index]
    new_slot = lowest(m, t.free, "new_slot")
    new_bit = t.slot_bit(b.new_slot)
    with m.State("GROW"):
        m.d.sync += t.cur.eq(entry.seq)
        with m.If(b.index == b.sorter.count):
            m.next = "HAND_OVER"
        with m.Else():
            m.next = "GROW_READ"
    with m.State("GROW_READ"):
        t.read_slot(entry.parent)
        m.d.sync += [b.new_slot.eq(new_slot), t.commit.eq(0)]
        t.allocate.call(m, "GROW_ROW")
    with m.State("GROW_ROW"):
        t.write_slot(
            b.new_slot,
            node={
                "id": slots.kids.first + entry.rank,
                "position": entry.position,
                "seq": t.cur,
            },
            kv={"page": t.page, "offset": t.offset},
            score=entry.score,
            ancestors=slots.ancestors | new_bit,
            kids=0,
            next=0,
        )
        t.link_child(entry.parent, entry.rank, b.new_slot)
        _set_row(t, entry.token, entry.position, 1, b.new_slot, committed=0)
        m.d.sync += [
            t.stored.slots.eq(seq.slots | new_bit),
            t.free.eq(t.free & ~new_bit),
            t.has_kv.eq(t.has_kv | new_bit),
            t.inflight.eq(t.inflight | new_bit),
            t.kinds[RowKind.GROWTH].eq(t.kinds[RowKind.GROWTH] + 1),
            # The root's KV is committed: visible anyway.
            t.show_ancestors.eq(slots.ancestors & ~t.slot_bit(seq.root)),
        ]
        m.next = "GROW_NEXT_RANK"
    with m.State("GROW_NEXT_RANK"):
        t.write_slot(entry.parent, next=entry.rank + 1)
        t.show.call(m, "GROWN")
    with m.State("GROWN"):
        m.d.sync += [b.index.eq(b.index + 1), t.row_count.eq(t.row_count + 1)]
        m.next = "GROW"


def _add_hand_over(t: Context, b: _Begin) -> None:
    """Offer the pass to the overlap processor, if it has rows."""
    m, config = t.m, t.config
    with m.State("HAND_OVER"):
        with m.If(t.row_count == 0):
            m.d.sync += t.stale.eq(0)
            m.next = "MAIN"
        with m.Else():
            for share, sequence in zip(t.shares, t.sequences, strict=True):
                with m.If(share.rows != 0):
                    m.d.sync += share.pages.eq(sequence.pages)
            m.d.sync += t.pass_number.eq(t.pass_number + 1)
            with m.If(b.waiting != 0):
                with m.If(t.turn == config.max_seqs - 1):
                    m.d.sync += t.turn.eq(0)
                with m.Else():
                    m.d.sync += t.turn.eq(t.turn + 1)
            m.next = "START"
    with m.State("START"):
        m.d.comb += t.ports.passes.valid.eq(1)
        with m.If(t.ports.passes.ready):
            m.d.sync += t.running.eq(1)
            m.next = "MAIN"
