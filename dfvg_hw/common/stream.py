"""Stream buffers: a skid buffer that cuts both directions, and a queue."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Shape, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.fifo import SyncFIFO, SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

__all__ = ["Queue", "SkidBuffer"]


class SkidBuffer(wiring.Component):
    """Two registers between streams: no combinational path from ``i`` to ``o`` or back.

    *Latency* 1 cycle, *throughput* 1 item per cycle. Reset empties it.

    Parameters
    ----------
    shape : ShapeLike
        The payload.

    Members
    -------
    i : In(stream)
    o : Out(stream)
    """

    def __init__(self, shape: Any) -> None:
        self._shape = shape
        super().__init__({"i": In(stream.Signature(shape)), "o": Out(stream.Signature(shape))})

    def elaborate(self, platform: Any) -> Module:
        """Return the hardware."""
        m = Module()
        # `spare` catches the item that was under way when the consumer stopped.
        spare = Signal(self._shape, reset_less=True)
        full = Signal()
        accept = Signal()
        m.d.comb += [self.i.ready.eq(~full), accept.eq(self.i.valid & ~full)]
        with m.If(~self.o.valid | self.o.ready):
            m.d.sync += [self.o.valid.eq(full | self.i.valid), full.eq(0)]
            with m.If(full):
                m.d.sync += self.o.payload.eq(spare)
            with m.Elif(self.i.valid):
                m.d.sync += self.o.payload.eq(self.i.payload)
        with m.Elif(accept):
            m.d.sync += [spare.eq(self.i.payload), full.eq(1)]
        return m


class Queue(wiring.Component):
    """First-in first-out buffer.

    *Latency* 2 cycles (1 for up to 4 items), *throughput* 1 item per cycle. Reset empties it.

    Parameters
    ----------
    shape : ShapeLike
        The payload.
    depth : int
        Items it holds, at least 1.

    Members
    -------
    i : In(stream)
    o : Out(stream)
    level : Out
        Items held.
    """

    def __init__(self, shape: Any, depth: int) -> None:
        self._shape, self._depth = shape, depth
        super().__init__(
            {
                "i": In(stream.Signature(shape)),
                "o": Out(stream.Signature(shape)),
                "level": Out(range(depth + 1)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Return the hardware."""
        m = Module()
        width = Shape.cast(self._shape).width
        kind = SyncFIFO if self._depth <= 4 else SyncFIFOBuffered
        m.submodules.fifo = fifo = kind(width=width, depth=self._depth)
        payload = Signal(self._shape)
        m.d.comb += [
            payload.eq(self.i.payload),
            fifo.w_data.eq(payload),
            fifo.w_en.eq(self.i.valid),
            self.i.ready.eq(fifo.w_rdy),
            self.o.payload.eq(fifo.r_data),
            self.o.valid.eq(fifo.r_rdy),
            fifo.r_en.eq(self.o.ready),
            self.level.eq(fifo.level),
        ]
        return m
