"""Hands the rows' best next tokens to the tree unit."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Array, Module, Signal, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from ..common.arith import bits_for_range, clamp, rshr
from ..common.memory import Rom
from ..config import DeviceConfig
from ..interfaces import child_result
from ..numerics import formats as fm
from ..numerics.tables import LOG2T
from ..vector.bits import normalise
from .lse import LEVEL_BITS, LSE_LATENCY, SUM_BITS
from .topk import ranked

__all__ = ["ChildEmitter"]


class ChildEmitter(wiring.Component):
    """After the head: log-sum-exp of each row that wants children, then its ranks in order.

    ``lse8 = (level << 8) + log2_fix(total) - (23 << 8)`` and per child ``logprob = clamp(y8 -
    lse8, -32768, 0)``. Starts with the first row's last logit and waits for each row's own.

    *Latency* 5 cycles per row that wants children, 1 per other row, 2 per child, longer under
    back-pressure. Reset drops what has not been sent.

    Parameters
    ----------
    config : DeviceConfig

    Members
    -------
    first, last : In(rows)
        A row's first and last logit are at the port in this cycle.
    want : In(rows)
        Rows that want children; constant during the pass.
    levels, totals : In(arrays of rows)
        From `LogSumExp`.
    rank : Out, entries : In(array of rows ranked)
        Read `TopK`.
    o : Out(child_result)
    busy : Out(1)
        From a row's first logit until the last child has been taken.
    """

    def __init__(self, config: DeviceConfig) -> None:
        self._config = config
        rows = config.rows
        super().__init__(
            {
                "first": In(rows),
                "last": In(rows),
                "want": In(rows),
                "levels": In(signed(LEVEL_BITS)).array(rows),
                "totals": In(SUM_BITS).array(rows),
                "rank": Out(bits_for_range(config.topk)),
                "entries": In(ranked()).array(rows),
                "o": Out(child_result(config)),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Return the hardware."""
        m = Module()
        self._row = Signal(bits_for_range(self._config.rows))
        self._lse = Signal(signed(29), reset_less=True)
        finished, running, active = self._build_progress(m)
        m.d.comb += self.busy.eq(self.first.any() | running.any() | active)
        step = self._build_log(m)
        self._build_sequence(m, finished, active, step)
        self._build_child(m)
        return m

    def _build_progress(self, m: Module) -> tuple[Signal, Signal, Signal]:
        """Which rows are between first and last logit, and whose sums are final."""
        rows = self._config.rows
        running, finished, active = Signal(rows), Signal(rows), Signal()
        m.d.sync += running.eq((running | self.first) & ~self.last)
        late = self.last
        for stage in range(LSE_LATENCY):
            later = Signal(rows, name=f"last_{stage + 1}")
            m.d.sync += later.eq(late)
            late = later
        m.d.sync += finished.eq((finished | late) & ~self.first)
        return finished, running, active

    def _build_log(self, m: Module) -> Signal:
        """Four steps from a row's sum to its log-sum-exp; `step` shifts one bit along."""
        m.submodules.log2 = rom = Rom(9, [int(value) for value in LOG2T])  # up to 256
        step = Signal(4)
        total = Signal(SUM_BITS, reset_less=True)
        level = Signal(signed(LEVEL_BITS), reset_less=True)
        norm = Signal(SUM_BITS, reset_less=True)
        whole = Signal(signed(LEVEL_BITS + 1), reset_less=True)
        with m.If(step[0]):
            with m.Switch(self._row):
                for index, sums in enumerate(zip(self.totals, self.levels, strict=True)):
                    with m.Case(index):
                        m.d.sync += [total.eq(sums[0]), level.eq(sums[1])]
        shifted, count = normalise(m, total, "leading")
        units = fm.PROB_DENOMINATOR_LOG2 + fm.LSE_GUARD
        with m.If(step[1]):
            m.d.sync += [norm.eq(shifted), whole.eq(level + (SUM_BITS - 1 - units) - count)]
        m.d.comb += [rom.r_en.eq(step[2]), rom.r_addr.eq(norm[-9:-1])]
        with m.If(step[3]):
            m.d.sync += self._lse.eq((whole << fm.EXP_FRAC) + rom.r_data)
        return step

    def _build_sequence(self, m: Module, finished: Signal, active: Signal, step: Signal) -> None:
        row = self._row
        self._load = Signal()
        with m.FSM(name="emit") as fsm:
            m.d.comb += active.eq(~fsm.ongoing("IDLE"))
            with m.State("IDLE"):
                m.d.sync += [row.eq(0), self.rank.eq(0)]
                with m.If(self.last.any()):
                    m.next = "ROW"
            with m.State("ROW"):
                with m.If(~self.want.bit_select(row, 1)):
                    self._next_row(m)
                with m.Elif(finished.bit_select(row, 1)):
                    m.d.sync += step.eq(1)
                    m.next = "LOG"
            with m.State("LOG"):
                m.d.sync += step.eq(step << 1)
                with m.If(step[3]):
                    m.next = "LOAD"
            with m.State("LOAD"):
                m.d.comb += self._load.eq(1)
                m.d.sync += self.o.valid.eq(1)
                m.next = "SEND"
            with m.State("SEND"):
                with m.If(self.o.ready):
                    m.d.sync += self.o.valid.eq(0)
                    with m.If(self.rank == self._config.topk - 1):
                        m.d.sync += self.rank.eq(0)
                        self._next_row(m)
                    with m.Else():
                        m.d.sync += self.rank.eq(self.rank + 1)
                        m.next = "LOAD"

    def _next_row(self, m: Module) -> None:
        with m.If(self._row == self._config.rows - 1):
            m.next = "IDLE"
        with m.Else():
            m.d.sync += self._row.eq(self._row + 1)
            m.next = "ROW"

    def _build_child(self, m: Module) -> None:
        """The output register: a child of the row, its logit turned into a log-probability."""
        rows = self._config.rows
        # Rows above `row`, as a mask for each.
        later = Array((-2 << index) & ((1 << rows) - 1) for index in range(rows))
        entry = Signal(ranked())
        with m.Switch(self._row):
            for index, candidate in enumerate(self.entries):
                with m.Case(index):
                    m.d.comb += entry.eq(candidate)
        y8 = rshr(m, entry.y, fm.ACT_FRAC - fm.EXP_FRAC, "y8")
        edge = Signal(signed(31))
        m.d.comb += edge.eq(y8 - self._lse)
        child = self.o.payload
        end = self.rank == self._config.topk - 1
        with m.If(self._load):
            m.d.sync += [
                child.row.eq(self._row),
                child.rank.eq(self.rank),
                child.channel.eq(entry.channel),
                child.logprob.eq(clamp(m, edge, fm.EDGE_MIN, 0, "logprob")),
                child.last.eq(end & ~(self.want & later[self._row]).any()),
            ]
