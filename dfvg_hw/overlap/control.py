"""Runs passes: latches what a pass works on, starts the program, and knows when it has ended."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from dfvg_hw.config import DeviceConfig
from dfvg_hw.interfaces import row_context, sequence_context

__all__ = ["PassController", "pass_context", "pass_result"]

SETTLE = 4
"""Cycles for which everything must be idle before a pass counts as ended: an item on its way from
one block to the next shows in neither for at most 2."""


def pass_context(config: DeviceConfig) -> data.StructLayout:
    """Everything that distinguishes one pass from the next."""
    return data.StructLayout(
        {
            "rows": data.ArrayLayout(row_context(), config.rows),
            "sequences": data.ArrayLayout(sequence_context(config), config.max_seqs),
        }
    )


def pass_result(config: DeviceConfig) -> data.StructLayout:
    """How a pass ended: its ``cycles``, the rows ``killed`` in it, whether it was ``aborted``."""
    return data.StructLayout({"cycles": 32, "aborted": 1, "killed": config.rows})


class PassController(wiring.Component):
    """One pass at a time, from its context to its result.

    A pass ends when the program has ended and every engine has been idle for `SETTLE` cycles. The
    write fence is not waited for: the next pass may load what doesn't depend on KV meanwhile, its
    KV loads wait for `fenced`. A pass whose valid rows have all been killed, or a soft reset,
    aborts at once: `clear` resets the engines, the read manager drains, the write manager finishes
    its burst (every word written is right, whichever burst is the last). Nothing that a pass leaves
    half done matters: its slots are unused until a later pass writes them.

    *Latency*: 1 cycle from an accepted pass to `start`. Reset forgets everything.

    Parameters
    ----------
    config : DeviceConfig

    Members
    -------
    i : In(stream of `pass_context`)
        Accepted between passes only, and not while `hold`.
    hold : In(1)
        No pass may start.
    rows, sequences : Out
        The running pass's contexts; they stay until the next pass.
    children : Out(1)
        Some row wants children.
    start : Out(1)
        Pulse.
    ended : In(1)
        The program has ended.
    busy : In(1)
        Some engine, queue or buffer has work left.
    kill : In(rows)
        Rows whose results nobody wants any more; pulses or levels.
    soft_reset : In(1)
        Abort whatever runs.
    clear : Out(1)
        Reset the engines, drain the managers.
    drained : In(1)
        Both managers are idle.
    writes_idle : In(1)
        Every write has been answered.
    fenced : Out(1)
        The writes of all earlier passes have been answered.
    running : Out(1)
    done : Out(1)
        Pulse: the pass ended as `result` says.
    result : Out(`pass_result`)
        Stays until the next pass ends.
    """

    def __init__(self, config: DeviceConfig) -> None:
        self._config = config
        super().__init__(
            {
                "i": In(stream.Signature(pass_context(config))),
                "hold": In(1),
                "rows": Out(row_context()).array(config.rows),
                "sequences": Out(sequence_context(config)).array(config.max_seqs),
                "children": Out(1),
                "start": Out(1),
                "ended": In(1),
                "busy": In(1),
                "kill": In(config.rows),
                "soft_reset": In(1),
                "clear": Out(1),
                "drained": In(1),
                "writes_idle": In(1),
                "fenced": Out(1),
                "running": Out(1),
                "done": Out(1),
                "result": Out(pass_result(config)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Return the hardware."""
        m = Module()
        cycles = Signal(32)
        killed = Signal(self._config.rows)
        quiet = Signal(range(SETTLE + 1))
        dead = self._build_rows(m, killed)
        settled = Signal()
        m.d.comb += settled.eq(self.ended & ~self.busy & ~self.start)
        with m.FSM() as fsm:
            with m.State("IDLE"):
                m.d.comb += self.i.ready.eq(~self.hold & ~self.soft_reset)
                with m.If(self.soft_reset):
                    m.next = "CLEAR"
                with m.Elif(self.i.valid & ~self.hold):
                    self._latch(m)
                    m.d.sync += [cycles.eq(0), killed.eq(0), quiet.eq(0), self.start.eq(1)]
                    m.next = "RUN"
            with m.State("RUN"):
                m.d.sync += [self.start.eq(0), cycles.eq(cycles + 1), killed.eq(killed | self.kill)]
                m.d.sync += quiet.eq(0)
                with m.If(settled):
                    m.d.sync += quiet.eq(quiet + 1)
                with m.If(self.soft_reset | dead):
                    m.next = "ABORT"
                with m.Elif(quiet == SETTLE):
                    self._finish(m, cycles, killed, aborted=0)
                    m.next = "IDLE"
            with m.State("ABORT"):
                m.d.comb += self.clear.eq(1)
                m.d.sync += [self.start.eq(0), cycles.eq(cycles + 1), killed.eq(killed | self.kill)]
                with m.If(self.drained):
                    self._finish(m, cycles, killed, aborted=1)
                    m.next = "IDLE"
            with m.State("CLEAR"):
                m.d.comb += self.clear.eq(1)
                with m.If(self.drained & ~self.soft_reset):
                    m.next = "IDLE"
            m.d.comb += self.running.eq(fsm.ongoing("RUN") | fsm.ongoing("ABORT"))
        with m.If(self.done):
            m.d.sync += self.done.eq(0)
        with m.If(self.writes_idle):
            m.d.sync += self.fenced.eq(1)
        with m.If(self.i.valid & self.i.ready):
            # Writes of this pass come long after, so idle at any later time is the fence.
            m.d.sync += self.fenced.eq(self.writes_idle)
        return m

    def _build_rows(self, m: Module, killed: Signal) -> Signal:
        """Whether no row of the pass is alive; drives `children`."""
        valid = Cat(row.valid for row in self.rows)
        alive = Signal(self._config.rows)
        dead = Signal()
        m.d.comb += [
            alive.eq(valid & ~killed),
            dead.eq(~alive.any()),
            self.children.eq(Cat(row.valid & row.children for row in self.rows).any()),
        ]
        return dead

    def _latch(self, m: Module) -> None:
        context = self.i.payload
        for index, row in enumerate(self.rows):
            m.d.sync += row.eq(context.rows[index])
        for index, sequence in enumerate(self.sequences):
            m.d.sync += sequence.eq(context.sequences[index])

    def _finish(self, m: Module, cycles: Signal, killed: Signal, aborted: int) -> None:
        m.d.sync += [
            self.done.eq(1),
            self.result.cycles.eq(cycles),
            self.result.killed.eq(killed),
            self.result.aborted.eq(aborted),
        ]
