"""States that end a pass: children of the living rows, NODES records, PASS_DONE."""

from __future__ import annotations

from amaranth.hdl import Array, Mux, Signal

from ..common.arith import bits_for_range
from ..messages.kinds import CHILDREN_PER_LINE, EventCode, Nodes, NodesFlag, PassDone, PassKind
from .bits import count_ones, smaller
from .context import Context, line_view
from .state import Phase, RowKind

__all__ = ["add_finish_states"]


class _Finish:
    """Registers of a pass being finished."""

    def __init__(self, t: Context) -> None:
        limit = bits_for_range(t.config.topk + 1)
        self.row = Signal(range(t.config.rows + 1))
        self.slot = Signal(range(t.config.m_slots))
        self.parent, self.first = Signal(32), Signal(32)
        self.kept, self.rank = Signal(limit), Signal(limit)
        self.fill = Signal(3)
        self.first_rank = Signal(4)
        self.found = Signal(16)
        self.aborted = Signal()
        self.seq = Signal(range(t.config.max_seqs + 1))


def add_finish_states(t: Context) -> None:
    """Add FINISH and everything below it."""
    f = _Finish(t)
    _add_rows(t, f)
    _add_records(t, f)
    _add_done(t, f)
    _add_failure(t, f)


def _add_rows(t: Context, f: _Finish) -> None:
    """Go through the rows; enter the children of those that still want them."""
    m, seq = t.m, t.seq
    row, context = Array(t.rows)[f.row], Array(t.contexts)[f.row]
    with m.State("FINISH"):
        m.d.sync += [
            f.row.eq(0),
            f.found.eq(0),
            f.aborted.eq(~t.any_alive()),
            f.seq.eq(0),
            t.ended.eq(0),
        ]
        with m.If(t.ports.result.aborted & t.any_alive()):
            m.next = "FAIL"
        with m.Else():
            m.next = "ROW"
    with m.State("ROW"):
        t.read_slot(row.slot)
        m.d.sync += [t.cur.eq(context.seq), f.slot.eq(row.slot)]
        with m.If(f.row == t.row_count):
            m.next = "DONE"
        with m.Elif(context.children & row.keep_children):
            m.next = "ROW_KIDS"
        with m.Else():
            m.d.sync += f.row.eq(f.row + 1)
    kept = Signal(len(f.kept))
    m.d.comb += kept.eq(smaller(row.count, seq.topk))
    with m.State("ROW_KIDS"):
        t.write_slot(f.slot, kids={"first": seq.next_id, "count": kept}, next=0)
        t.read_child(f.slot, 0)
        m.d.sync += [
            t.ready.eq(t.ready | t.slot_bit(f.slot)),
            f.parent.eq(t.slots.node.id),
            f.first.eq(seq.next_id),
            f.kept.eq(kept),
            f.rank.eq(0),
            f.found.eq(f.found + kept),
            t.stored.next_id.eq(seq.next_id + kept),
        ]
        with m.If(kept == 0):
            m.next = "ROW_NEXT"
        with m.Else():
            m.next = "RECORD"
    with m.State("ROW_NEXT"):
        m.d.sync += f.row.eq(f.row + 1)
        m.next = "ROW"


def _add_records(t: Context, f: _Finish) -> None:
    """Send the children of one row, five to a record."""
    m, seq = t.m, t.seq
    view = line_view(Nodes, t.message)
    last = Signal()
    m.d.comb += last.eq(f.rank + 1 == f.kept)
    with m.State("RECORD"):
        t.compose(
            Nodes,
            seq=t.cur,
            parent=f.parent,
            first_id=f.first + f.rank,
            epoch=seq.epoch[:16],
            pass_number=t.pass_number[:16],
        )
        m.d.sync += [f.fill.eq(0), f.first_rank.eq(f.rank)]
        m.next = "RECORD_CHILD"
    with m.State("RECORD_CHILD"):
        t.read_child(f.slot, f.rank + 1)
        for place in range(CHILDREN_PER_LINE):
            child = view.children[place]
            with m.If(f.fill == place):
                m.d.sync += [
                    child.token.eq(t.child.token),
                    child.logprob.eq(t.child.logprob),
                    child.score.eq(t.child.score),
                ]
        m.d.sync += [f.rank.eq(f.rank + 1), f.fill.eq(f.fill + 1)]
        with m.If(last | (f.fill == CHILDREN_PER_LINE - 1)):
            m.d.sync += [
                view.count.eq(f.fill + 1),
                view.flags.eq(f.first_rank | Mux(last, 0, int(NodesFlag.MORE))),
            ]
            t.send_state.call(m, "RECORD_SENT")
    with m.State("RECORD_SENT"):
        with m.If(f.rank == f.kept):
            m.next = "ROW_NEXT"
        with m.Else():
            m.next = "RECORD"


def _add_done(t: Context, f: _Finish) -> None:
    m = t.m
    wanted = Signal(t.config.rows)
    sequences = Signal(t.config.max_seqs)
    for index, (row, context) in enumerate(zip(t.rows, t.contexts, strict=True)):
        m.d.comb += wanted[index].eq(context.valid & context.children & ~row.keep_children)
    for index, share in enumerate(t.shares):
        m.d.comb += sequences[index].eq(share.rows != 0)
    dropped = count_ones(m, wanted, "dropped")
    free = count_ones(m, t.free, "free_slots")
    kind = Signal(2)
    prefills, catchups = (t.kinds[k] != 0 for k in (RowKind.PREFILL, RowKind.CATCHUP))
    catchup_or_growth = Mux(catchups, PassKind.CATCHUP, PassKind.GROWTH)
    alive_kind = Mux(prefills, PassKind.PREFILL, catchup_or_growth)
    m.d.comb += kind.eq(Mux(f.aborted, PassKind.ABORTED, alive_kind))
    with m.State("DONE"):
        t.compose(
            PassDone,
            kind=kind,
            rows=t.row_count,
            dropped=dropped,
            number=t.pass_number,
            children=f.found,
            sequences=sequences,
            prefill_rows=t.kinds[RowKind.PREFILL],
            catchup_rows=t.kinds[RowKind.CATCHUP],
            growth_rows=t.kinds[RowKind.GROWTH],
            free_slots=free,
            cycles=t.ports.result.cycles,
            idle=t.idle_cycles,
        )
        m.d.sync += [
            t.running.eq(0),
            t.stale.eq(1),
            t.inflight.eq(0),
            t.idle_cycles.eq(0),
        ]
        t.send_state.call(m, "MAIN")


def _add_failure(t: Context, f: _Finish) -> None:
    """A pass was cut off although it was wanted: what its sequences hold can't be trusted."""
    m = t.m
    share = Array(t.shares)[f.seq]
    with m.State("FAIL"):
        m.d.sync += t.cur.eq(f.seq)
        with m.If(f.seq == t.config.max_seqs):
            m.d.sync += f.aborted.eq(1)
            m.next = "DONE"
        with m.Elif((share.rows != 0) & (Array(t.sequences)[f.seq].phase == Phase.OPEN)):
            m.next = "FAIL_SEQUENCE"
        with m.Else():
            m.d.sync += f.seq.eq(f.seq + 1)
    with m.State("FAIL_SEQUENCE"):
        t.drop_tree()
        m.d.sync += [t.stored.phase.eq(Phase.LOST), t.stored.done.eq(t.seq.length)]
        m.d.sync += f.seq.eq(f.seq + 1)
        t.event("FAIL", EventCode.WATCHDOG, t.seq.epoch, seq=t.cur)
