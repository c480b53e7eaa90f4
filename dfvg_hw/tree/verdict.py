"""States that apply a verdict: walk by token, re-root in one scan over the sequence's slots."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Mux, Signal, signed

from ..common.arith import bits_for_range
from ..messages.kinds import (
    ROOT_ID_FLAG,
    EventCode,
    HitClass,
    MessageType,
    VerdictAck,
    VerdictFlag,
    VerdictLine,
)
from .bits import hash_step, lowest
from .commands import append_token
from .context import LENGTH_BITS, Context, line_view
from .sorter import SCORE_BITS
from .state import Phase

__all__ = ["add_verdict_states"]


class _Walk:
    """Registers of a verdict in progress."""

    def __init__(self, t: Context) -> None:
        slot = bits_for_range(t.config.m_slots)
        rank = bits_for_range(t.config.topk)
        self.line = line_view(VerdictLine, t.line)
        self.index = Signal(4)
        self.base, self.base_hash = Signal(LENGTH_BITS), Signal(32)
        self.current = Signal(slot)
        self.on_tree, self.leaf, self.bad, self.blind = Signal(), Signal(), Signal(), Signal()
        self.leaf_id, self.root_id = Signal(32), Signal(32)
        self.token = Signal(32)
        self.rank = Signal(rank)
        self.count = Signal(bits_for_range(t.config.topk + 1))
        self.first = Signal(32)
        self.path, self.todo = Signal(t.config.m_slots), Signal(t.config.m_slots)
        self.removed = Signal(t.config.m_slots)
        self.score = Signal(signed(SCORE_BITS))
        self.slot = Signal(slot)
        self.on_path = Signal()
        self.expanded, self.candidates = Signal(16), Signal(16)
        self.hit = Signal(2)
        self.cycles = Signal(32)


def add_verdict_states(t: Context) -> None:
    """Add VERDICT and everything below it."""
    w = _Walk(t)
    t.m.d.sync += w.cycles.eq(w.cycles + 1)
    _add_check(t, w)
    _add_tokens(t, w)
    _add_walk(t, w)
    _add_re_root(t, w)
    _add_answer(t, w)


def _add_check(t: Context, w: _Walk) -> None:
    """A line has come: the first of a verdict, another one, or one to be ignored."""
    m, line, seq = t.m, w.line, t.seq
    first, last = Signal(), Signal()
    m.d.comb += [
        first.eq((line.flags & VerdictFlag.FIRST) != 0),
        last.eq((line.flags & VerdictFlag.LAST) != 0),
    ]

    def refuse(code: EventCode, info0: Any = 0, info1: Any = 0, lose: bool = False) -> None:
        m.d.sync += [t.swallow.eq(~last), t.verdict_open.eq(0)]
        if lose:
            t.drop_tree()
            m.d.sync += [t.stored.phase.eq(Phase.LOST), t.stored.done.eq(seq.length)]
        t.event("MAIN", code, line.epoch, info0, info1)

    with m.State("VERDICT"):
        m.d.sync += [w.index.eq(0), w.cycles.eq(0)]
        with m.If(~first):
            with m.If(t.verdict_open):
                m.next = "TOKEN"
            with m.Elif(t.swallow):
                m.d.sync += t.swallow.eq(~last)
                m.next = "MAIN"
            with m.Else():
                t.event("MAIN", EventCode.BAD_MESSAGE, line.epoch, MessageType.VERDICT)
        with m.Elif(line.seq >= t.config.max_seqs):
            refuse(EventCode.BAD_MESSAGE, MessageType.VERDICT)
        with m.Elif(seq.phase == Phase.CLOSED):
            refuse(EventCode.UNKNOWN_SEQUENCE)
        with m.Elif((seq.phase == Phase.LOST) | (line.base_length != seq.length)):
            refuse(EventCode.LENGTH_MISMATCH, seq.length, line.base_length, lose=True)
        with m.Elif(line.context_hash != seq.hash):
            refuse(EventCode.HASH_MISMATCH, seq.hash, line.context_hash, lose=True)
        with m.Else():
            m.d.sync += [
                t.verdict_open.eq(1),
                t.swallow.eq(0),
                w.base.eq(seq.length),
                w.base_hash.eq(seq.hash),
                w.current.eq(seq.root),
                w.on_tree.eq(1),
                w.leaf.eq(0),
                w.bad.eq(0),
                w.blind.eq(seq.length + line.total > t.config.max_ctx),
            ]
            m.next = "TOKEN"


def _add_tokens(t: Context, w: _Walk) -> None:
    """Commit the line's tokens one by one."""
    m, line, seq = t.m, w.line, t.seq
    token = Signal(32)
    m.d.comb += token.eq(line.tokens[w.index[:3]])
    hashed = hash_step(m, seq.hash, token, "verdict_hash")
    is_ready = Signal()
    m.d.comb += is_ready.eq((t.ready & t.slot_bit(w.current)) != 0)
    with m.State("TOKEN"):
        with m.If(w.index == line.count):
            with m.If((line.flags & VerdictFlag.LAST) == 0):
                m.next = "MAIN"
            with m.Else():
                m.d.sync += t.verdict_open.eq(0)
                m.next = "TOKENS_DONE"
        with m.Else():
            append_token(t, token, hashed)
            t.read_slot(w.current)
            m.d.sync += [
                w.index.eq(w.index + 1),
                w.token.eq(token),
                w.leaf.eq(0),
                w.rank.eq(0),
                w.bad.eq(w.bad | (token >= t.ports.vocabulary)),
            ]
            with m.If(w.on_tree & ~w.blind & is_ready):
                m.next = "WALK"
            with m.Else():
                m.d.sync += w.on_tree.eq(0)


def _add_walk(t: Context, w: _Walk) -> None:
    """Look for the token among the current slot's children, one a cycle."""
    m, seq, slots = t.m, t.seq, t.slots
    with m.State("WALK"):
        t.read_child(w.current, w.rank)
        m.d.sync += [w.count.eq(slots.kids.count), w.first.eq(slots.kids.first)]
        with m.If(slots.kids.count == 0):
            m.d.sync += w.on_tree.eq(0)
            m.next = "TOKEN"
        with m.Else():
            m.next = "WALK_CHILD"
    with m.State("WALK_CHILD"):
        t.read_child(w.current, w.rank + 1)
        m.d.sync += w.rank.eq(w.rank + 1)
        with m.If(t.child.token == w.token):
            with m.If(t.link.expanded):
                m.d.sync += [w.current.eq(t.link.slot), t.stored.done.eq(seq.done + 1)]
            with m.Else():
                m.d.sync += [w.on_tree.eq(0), w.leaf.eq(1), w.leaf_id.eq(w.first + w.rank)]
            m.next = "TOKEN"
        with m.Elif(w.rank + 1 == w.count):
            m.d.sync += w.on_tree.eq(0)
            m.next = "TOKEN"


def _add_re_root(t: Context, w: _Walk) -> None:
    """Commit the path, keep what lies below its end, free the rest."""
    m, seq, slots = t.m, t.seq, t.slots
    next_slot = lowest(m, w.todo, "next_slot")
    bit = Signal(t.config.m_slots)
    below, on_path, flying = Signal(), Signal(), Signal()
    m.d.comb += [
        bit.eq(t.slot_bit(w.slot)),
        on_path.eq((w.path & bit) != 0),
        below.eq(w.on_tree & ((slots.ancestors & t.slot_bit(w.current)) != 0)),
        flying.eq((t.inflight & bit) != 0),
    ]
    with m.State("RE_ROOT"):
        current = t.slot_bit(w.current)
        m.d.sync += [
            w.path.eq(slots.ancestors),
            w.removed.eq(slots.ancestors & ~current),
            w.score.eq(slots.score),
            w.root_id.eq(slots.node.id),
            w.todo.eq(seq.slots),
            w.expanded.eq(0),
            w.candidates.eq(0),
        ]
        m.next = "SCAN"
    with m.State("SCAN"):
        t.read_slot(next_slot)
        m.d.sync += [w.slot.eq(next_slot), w.todo.eq(w.todo & (w.todo - 1))]
        with m.If(w.todo == 0):
            m.next = "RE_ROOTED"
        with m.Else():
            m.next = "SCAN_SLOT"
    with m.State("SCAN_SLOT"):
        m.d.sync += w.on_path.eq(on_path)
        with m.If(below):
            t.write_slot(
                w.slot, ancestors=slots.ancestors & ~w.removed, score=slots.score - w.score
            )
            m.d.sync += w.expanded.eq(w.expanded + (w.slot != w.current))
            with m.If((t.ready & bit) != 0):
                m.d.sync += w.candidates.eq(w.candidates + slots.kids.count)
        with m.Else():
            m.d.sync += [
                t.stored.slots.eq(seq.slots & ~bit),
                t.free.eq(t.free | (bit & ~t.homes)),
                t.inflight.eq(t.inflight & ~bit),
                t.ready.eq(t.ready & ~bit),
            ]
        for row in t.rows:
            with m.If(flying & (row.slot == w.slot)):
                m.d.sync += [
                    row.committed.eq(row.committed | on_path),
                    row.keep_children.eq(row.keep_children & below),
                    row.keep_kv.eq(row.keep_kv & (on_path | below)),
                ]
        t.read_page(slots.kv.page, "used", "committed")
        with m.If(((t.has_kv & bit) != 0) & (on_path | ~below)):
            m.next = "SCAN_KV"
        with m.Else():
            m.next = "SCAN"
    with m.State("SCAN_KV"):
        page, token = slots.kv.page, t.offset_bit(slots.kv.offset)
        with m.If(w.on_path):
            t.write_page(page, committed=t.mem.committed.r_data | token)
        with m.Else():
            t.write_page(page, used=t.mem.used.r_data & ~token)
            with m.If(page < seq.low):
                m.d.sync += t.stored.low.eq(page)
        m.next = "SCAN"


def _add_answer(t: Context, w: _Walk) -> None:
    """Decide what the new root is, and acknowledge."""
    m, line, seq = t.m, w.line, t.seq
    is_ready = (t.ready & t.slot_bit(w.current)) != 0
    missed = Signal(32)
    m.d.comb += missed.eq(seq.length | ROOT_ID_FLAG)
    with m.State("TOKENS_DONE"):
        t.read_slot(w.current)
        with m.If(w.bad):
            t.drop_tree()
            m.d.sync += [
                t.stored.phase.eq(Phase.LOST),
                t.stored.length.eq(w.base),
                t.stored.done.eq(w.base),
                t.stored.hash.eq(w.base_hash),
            ]
            t.event("MAIN", EventCode.BAD_MESSAGE, line.epoch, MessageType.VERDICT)
        with m.Elif(w.blind):
            t.drop_tree()
            m.d.sync += [
                t.stored.epoch.eq(line.epoch),
                t.stored.done.eq(seq.length),
                t.stored.phase.eq(Phase.FULL),
                w.expanded.eq(0),
                w.candidates.eq(0),
                w.hit.eq(HitClass.MISS),
                w.root_id.eq(missed),
            ]
            with m.If(seq.phase == Phase.FULL):
                m.next = "ACKNOWLEDGE"
            with m.Else():
                t.event("ACKNOWLEDGE", EventCode.CONTEXT_FULL, line.epoch, seq.length)
        with m.Else():
            m.d.sync += t.stored.epoch.eq(line.epoch)
            m.next = "RE_ROOT"
    with m.State("RE_ROOTED"):
        with m.If(w.on_tree):
            m.d.sync += [
                t.stored.root.eq(w.current),
                w.hit.eq(Mux(is_ready, HitClass.EXPANDED, HitClass.LEAF)),
            ]
        with m.Else():
            root_id = Signal(32)
            m.d.comb += root_id.eq(Mux(w.leaf, w.leaf_id, missed))
            t.plant(root_id)
            m.d.sync += [
                w.root_id.eq(root_id),
                w.hit.eq(Mux(w.leaf, HitClass.LEAF, HitClass.MISS)),
            ]
        m.next = "ACKNOWLEDGE"
    with m.State("ACKNOWLEDGE"):
        t.compose(
            VerdictAck,
            seq=t.cur,
            hit=w.hit,
            flags=t.running | ((t.running & ~t.any_alive()) << 1),
            epoch=line.epoch,
            root_id=w.root_id,
            length=seq.length,
            context_hash=seq.hash,
            expanded=w.expanded,
            candidates=w.candidates - w.expanded,
            pending=seq.length - seq.done,
            cycles=w.cycles,
        )
        t.send_state.call(m, "MAIN")
