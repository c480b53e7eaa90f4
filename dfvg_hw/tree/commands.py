"""States that take commands: OPEN, RESYNC, CLOSE, RETUNE; verdicts have a file of their own."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Mux, Signal

from ..common.arith import bits_for_range
from ..interfaces import PAGE_BITS, TOKEN_BITS
from ..messages.kinds import (
    ROOT_ID_FLAG,
    CloseLine,
    EventCode,
    MessageType,
    Opened,
    OpenLine,
    RetuneLine,
)
from ..messages.line import HASH_START
from .bits import hash_step
from .context import Context, line_view
from .state import Phase

__all__ = ["add_close_states", "add_command_states", "append_token"]


def add_command_states(t: Context) -> None:
    """Add DISPATCH and everything below it but verdicts."""
    _add_dispatch(t)
    _add_open(t)


def _add_dispatch(t: Context) -> None:
    m = t.m
    line = line_view(CloseLine, t.line)
    kind = t.line[:8]
    known, opens = Signal(), Signal()
    m.d.comb += [
        known.eq(line.seq < t.config.max_seqs),
        opens.eq((kind == MessageType.OPEN) | (kind == MessageType.RESYNC)),
    ]
    with m.State("DISPATCH"):
        m.d.sync += t.stale.eq(1)
        with m.If(opens):
            m.next = "OPEN"
        with m.Elif(kind == MessageType.VERDICT):
            m.next = "VERDICT"
        with m.Elif(~known):
            t.event("MAIN", EventCode.BAD_MESSAGE, _epoch(t, kind, line), kind)
        with m.Elif((kind != MessageType.CLOSE) & (kind != MessageType.RETUNE)):
            t.event("MAIN", EventCode.BAD_MESSAGE, 0, kind)
        with m.Elif(t.seq.phase == Phase.CLOSED):
            t.event("MAIN", EventCode.UNKNOWN_SEQUENCE, _epoch(t, kind, line))
        with m.Elif(kind == MessageType.CLOSE):
            t.close.call(m, "MAIN")
        with m.Else():
            _set_limits(t, line_view(RetuneLine, t.line))
            m.next = "MAIN"


def _epoch(t: Context, kind: Any, line: Any) -> Any:
    """Epoch to report: RETUNE has none."""
    return Mux(kind == MessageType.RETUNE, 0, line.epoch)


def _set_limits(t: Context, line: Any) -> None:
    limit = bits_for_range(t.config.topk + 1)
    t.m.d.sync += [
        t.stored.threshold.eq(line.threshold),
        t.stored.max_depth.eq(line.max_depth),
        t.stored.max_slots.eq(line.max_slots),
        t.stored.topk.eq(Mux(line.topk < t.config.topk, line.topk, t.config.topk)[:limit]),
    ]


def _add_open(t: Context) -> None:
    """OPEN and RESYNC: end the old context, take the tokens, plant the root."""
    m = t.m
    line = line_view(OpenLine, t.line)
    kind = t.line[:8]
    left = Signal(32)
    bad = Signal()
    known = Signal()
    token = t.ports.tokens.payload
    m.d.comb += known.eq(line.seq < t.config.max_seqs)
    hashed = hash_step(m, t.seq.hash, token, "open_hash")
    with m.State("OPEN"):
        m.d.sync += [left.eq(line.count), bad.eq(line.count == 0)]
        with m.If(~known | ((kind == MessageType.RESYNC) & (t.seq.phase == Phase.CLOSED))):
            m.next = "OPEN_SKIP"
        with m.Else():
            t.close.call(m, "OPEN_START")
    with m.State("OPEN_SKIP"):
        # The tokens come whether or not anybody wants them.
        m.d.comb += t.ports.tokens.ready.eq(left != 0)
        with m.If(left == 0):
            code = Mux(known, EventCode.UNKNOWN_SEQUENCE, EventCode.BAD_MESSAGE)
            t.event("MAIN", code, line.epoch, Mux(known, 0, kind))
        with m.Elif(t.ports.tokens.valid):
            m.d.sync += left.eq(left - 1)
    with m.State("OPEN_START"):
        m.d.sync += [
            t.stored.length.eq(0),
            t.stored.done.eq(0),
            t.stored.prompt.eq(line.count),
            t.stored.hash.eq(HASH_START),
            t.stored.epoch.eq(line.epoch),
            t.stored.next_id.eq(1),
            t.stored.pages.eq(0),
            t.stored.low.eq(0),
        ]
        for index in range(len(line.stops)):
            m.d.sync += [
                t.stored.stops[index].token.eq(line.stops[index]),
                t.stored.stops[index].valid.eq(line.stops[index] < 1 << TOKEN_BITS),
            ]
        _set_limits(t, line)
        m.next = "OPEN_TOKENS"
    with m.State("OPEN_TOKENS"):
        m.d.comb += t.ports.tokens.ready.eq(left != 0)
        with m.If(left == 0):
            m.next = "OPEN_CHECK"
        with m.Elif(t.ports.tokens.valid):
            append_token(t, token, hashed)
            m.d.sync += left.eq(left - 1)
            with m.If(token >= t.ports.vocabulary):
                m.d.sync += bad.eq(1)
    with m.State("OPEN_CHECK"):
        with m.If(bad):
            t.event("MAIN", EventCode.BAD_MESSAGE, line.epoch, kind)
        with m.Elif(t.seq.hash != line.context_hash):
            t.event("MAIN", EventCode.HASH_MISMATCH, line.epoch, t.seq.hash, line.context_hash)
        with m.Else():
            t.compose(
                Opened,
                seq=t.cur,
                epoch=line.epoch,
                length=t.seq.length,
                context_hash=t.seq.hash,
            )
            t.send_state.call(m, "OPEN_PLANT")
    with m.State("OPEN_PLANT"):
        with m.If(t.seq.length > t.config.max_ctx):
            m.d.sync += [t.stored.phase.eq(Phase.FULL), t.stored.done.eq(t.seq.length)]
            t.event("MAIN", EventCode.CONTEXT_FULL, line.epoch, t.seq.length)
        with m.Else():
            m.d.sync += t.stored.phase.eq(Phase.OPEN)
            t.plant(t.seq.length | ROOT_ID_FLAG)
            m.next = "MAIN"


def append_token(t: Context, token: Any, hashed: Any) -> None:
    """Commit a token to the current sequence: memory, hash, length."""
    with t.m.If(t.seq.length < t.config.max_ctx):
        t.m.d.comb += t.mem.tokens.w_en.eq(1)
    t.m.d.comb += [
        t.mem.tokens.w_addr.eq(t.mem.token_at(t.cur, t.seq.length)),
        t.mem.tokens.w_data.eq(token),
    ]
    t.m.d.sync += [t.stored.hash.eq(hashed), t.stored.length.eq(t.seq.length + 1)]


def add_close_states(t: Context) -> None:
    """Subroutine CLOSE: end the current sequence; pages go back to the pool one by one."""
    m = t.m
    page = Signal(PAGE_BITS)
    word_bits = max(1, len(t.pool_low))
    with m.State("CLOSE"):
        t.drop_tree()
        for row, context in zip(t.rows, t.contexts, strict=True):
            with m.If(context.seq == t.cur):
                m.d.sync += row.keep_kv.eq(0)
            with m.If(row.vis_seq == t.cur):
                m.d.sync += row.vis_full.eq(0)
        m.d.sync += [page.eq(0), t.stored.phase.eq(Phase.CLOSED)]
        with m.If(t.verdict_open):
            m.d.sync += t.verdict_open.eq(0)
        m.next = "CLOSE_PAGE"
    with m.State("CLOSE_PAGE"):
        t.read_page(page, "phys")
        with m.If(page == t.seq.pages):
            m.d.sync += t.stored.pages.eq(0)
            t.close.leave(m)
        with m.Else():
            m.next = "CLOSE_POOL"
    with m.State("CLOSE_POOL"):
        word = t.mem.phys.r_data[6:][:word_bits]
        m.d.comb += [t.mem.pool.r_en.eq(1), t.mem.pool.r_addr.eq(word)]
        with m.If(word < t.pool_low):
            m.d.sync += t.pool_low.eq(word)
        m.next = "CLOSE_FREE"
    with m.State("CLOSE_FREE"):
        number = t.mem.phys.r_data
        m.d.comb += [
            t.mem.pool.w_en.eq(1),
            t.mem.pool.w_addr.eq(number[6:][:word_bits]),
            t.mem.pool.w_data.eq(t.mem.pool.r_data | t.offset_bit(number[:6])),
        ]
        m.d.sync += page.eq(page + 1)
        m.next = "CLOSE_PAGE"
