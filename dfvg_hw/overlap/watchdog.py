"""Notices a pass that stopped making progress, and keeps what it looked like."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

__all__ = ["Watchdog"]


class Watchdog(wiring.Component):
    """Counts cycles without progress; at the limit, latches the state once.

    The pass stays as it is, so that it can be looked at, until a soft reset ends it. *Latency*: 1
    cycle. Reset forgets all.

    Parameters
    ----------
    state : ShapeLike
        What to keep.

    Members
    -------
    limit : In(32)
        Cycles a running pass may stand still; 0 for no limit. It must exceed the longest work of
        one instruction on data that is on chip.
    running, progress : In(1)
    state : In
    clear : In(1)
        Forget the finding.
    hung : Out(1)
        Sticky.
    dump : Out
        The state when the limit was reached.
    """

    def __init__(self, state: Any) -> None:
        self._shape = state
        super().__init__(
            {
                "limit": In(32),
                "running": In(1),
                "progress": In(1),
                "state": In(state),
                "clear": In(1),
                "hung": Out(1),
                "dump": Out(state),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Return the hardware."""
        m = Module()
        still = Signal(32)
        m.d.sync += still.eq(0)
        with m.If(self.running & ~self.progress & (self.limit != 0)):
            m.d.sync += still.eq(still + 1)
            with m.If((still >= self.limit) & ~self.hung):
                m.d.sync += [self.hung.eq(1), self.dump.eq(self.state)]
            with m.If(self.hung):
                m.d.sync += still.eq(still)
        with m.If(self.clear):
            m.d.sync += self.hung.eq(0)
        return m
