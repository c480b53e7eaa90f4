"""Writes messages into the device-to-host ring."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from dfvg_hw.memory.axi import Burst, Cache, axi4_write
from dfvg_hw.messages.layout import PAYLOAD_BYTES
from dfvg_hw.messages.line import CRC_OFFSET, LINE_BYTES, TAG_OFFSET

from .host_read import HOST_ADDR_BITS
from .line import LineShift

__all__ = ["RING_LINES_BITS", "RingWriter"]

RING_LINES_BITS = 17


class RingWriter(wiring.Component):
    """Seals messages into lines and writes each as one burst.

    A line is written only into a place that the host has given back, and counts as `produced` once
    host memory has acknowledged it. *Throughput*: a line every 20 + 64 / `bus_bytes` cycles.

    Parameters
    ----------
    bus_bytes : int

    Members
    -------
    i : In(stream of 448 bits)
        Messages.
    base, lines : In
        The ring: bus address, and lines as a power of two (0: not set up, nothing is written).
    restart : In(1)
        Pulse: go on at the ring's first place, with tag 1.
    consumed : In(32)
        Lines that the host has read.
    produced : Out(32)
    free : Out(RING_LINES_BITS)
        Places that can be written.
    stall : Out(1)
        A message waits for a place.
    axi : Out(`axi4_write`)
    idle : Out(1)
        Nothing is under way.
    error : Out(1)
        Pulse: an error response.
    """

    def __init__(self, bus_bytes: int) -> None:
        self._size = bus_bytes
        super().__init__(
            {
                "i": In(stream.Signature(8 * PAYLOAD_BYTES)),
                "base": In(HOST_ADDR_BITS),
                "lines": In(RING_LINES_BITS),
                "restart": In(1),
                "consumed": In(32),
                "produced": Out(32),
                "free": Out(RING_LINES_BITS),
                "stall": Out(1),
                "axi": Out(axi4_write(addr_bits=HOST_ADDR_BITS, data_bits=8 * bus_bytes)),
                "idle": Out(1),
                "error": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Return the hardware."""
        m = Module()
        axi, size = self.axi, self._size
        m.submodules.shift = shift = LineShift(size)
        sent = Signal(32)
        tag = Signal(32, init=1)
        used = Signal(32)
        body = Signal(8 * LINE_BYTES)
        m.d.comb += [
            used.eq(sent - self.consumed),
            self.free.eq(Mux(used < self.lines, self.lines - used, 0)),
            shift.payload.eq(self.i.payload),
            shift.tag.eq(tag),
            body.eq(Cat(shift.line[: 8 * CRC_OFFSET], shift.crc, shift.line[8 * TAG_OFFSET :])),
            axi.awsize.eq(size.bit_length() - 1),
            axi.awburst.eq(Burst.INCR),
            axi.awcache.eq(Cache.MODIFIABLE),
            axi.awlen.eq(LINE_BYTES // size - 1),
            axi.wstrb.eq((1 << size) - 1),
            axi.bready.eq(1),
            self.error.eq(axi.bvalid & axi.bresp[1]),
        ]
        with m.If(axi.awready):
            m.d.sync += axi.awvalid.eq(0)
        with m.If(axi.bvalid):
            m.d.sync += self.produced.eq(self.produced + 1)
        with m.FSM() as fsm:
            with m.State("IDLE"):
                ready = Signal()
                m.d.comb += [
                    ready.eq((self.free != 0) & ~axi.awvalid & ~self.restart),
                    self.i.ready.eq(ready),
                    self.stall.eq(self.i.valid & (self.free == 0)),
                    shift.load.eq(self.i.valid & ready),
                ]
                with m.If(self.i.valid & ready):
                    m.next = "SEAL"
            with m.State("SEAL"):
                m.d.comb += shift.check.eq(1)
                m.next = "CRC"
            with m.State("CRC"):
                with m.If(shift.done):
                    m.d.sync += [
                        axi.awvalid.eq(1),
                        axi.awaddr.eq(self.base + ((sent & (self.lines - 1)) << 6)),
                        sent.eq(sent + 1),
                        tag.eq(Mux(tag == 0xFFFFFFFF, 1, tag + 1)),
                    ]
                    m.next = "DATA"
            self._build_data(m, body)
            m.d.comb += self.idle.eq(fsm.ongoing("IDLE") & ~axi.awvalid & (sent == self.produced))
        with m.If(self.restart):
            m.d.sync += [sent.eq(0), self.produced.eq(0), tag.eq(1)]
        return m

    def _build_data(self, m: Module, body: Signal) -> None:
        axi = self.axi
        beats = LINE_BYTES // self._size
        beat = Signal(range(max(2, beats)))
        with m.State("DATA"):
            m.d.comb += [
                axi.wvalid.eq(1),
                axi.wdata.eq(body.word_select(beat, 8 * self._size)),
                axi.wlast.eq(beat == beats - 1),
            ]
            with m.If(axi.wready):
                m.d.sync += beat.eq(beat + 1)
                with m.If(axi.wlast):
                    m.d.sync += beat.eq(0)
                    m.next = "IDLE"
