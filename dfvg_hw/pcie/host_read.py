"""Reads runs of words from host memory."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from dfvg_hw.common.stream import Queue
from dfvg_hw.memory.axi import Burst, Cache, axi4_read, burst_words

__all__ = ["HOST_ADDR_BITS", "HostReader", "host_request", "host_word"]

HOST_ADDR_BITS = 64
RUN_BITS = 24
BURST_BYTES = 1024
"""Longest burst; a bridge cuts it into read requests of its own size."""
FLIGHTS = 8


def host_request() -> data.StructLayout:
    """A run of ``words`` bus words from byte ``address``, a multiple of 64."""
    return data.StructLayout({"address": HOST_ADDR_BITS, "words": RUN_BITS})


def host_word(bus_bytes: int) -> data.StructLayout:
    """A word; ``bad`` if host memory answered it with an error."""
    return data.StructLayout({"data": 8 * bus_bytes, "bad": 1})


class HostReader(wiring.Component):
    """Turns one request at a time into AXI4 bursts; words come in order.

    Host memory may be slow or never answer at all: if nothing arrives for `timeout` cycles although
    a burst is in flight, `failed` goes high, the request and what still arrives of it are dropped,
    and the reader is of use again once the last beat has come. *Throughput*: 1 word a cycle.
    *Reset*: only together with the link.

    Parameters
    ----------
    bus_bytes : int
    timeout : int
        Cycles, a power of two.

    Members
    -------
    request : In(stream of `host_request`)
        Accepted when the one before has been answered in full.
    o : Out(stream of `host_word`)
    axi : Out(`axi4_read`)
    failed : Out(1)
        No answer; stays until all that is in flight has come after all.
    error : Out(1)
        Pulse: an error response.
    """

    def __init__(self, bus_bytes: int, timeout: int) -> None:
        self._size, self._timeout = bus_bytes, timeout
        self._burst = burst_words(bus_bytes, BURST_BYTES // bus_bytes)
        super().__init__(
            {
                "request": In(stream.Signature(host_request())),
                "o": Out(stream.Signature(host_word(bus_bytes))),
                "axi": Out(axi4_read(addr_bits=HOST_ADDR_BITS, data_bits=8 * bus_bytes)),
                "failed": Out(1),
                "error": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Return the hardware."""
        m = Module()
        m.submodules.flights = flights = Queue(range(self._burst), FLIGHTS)
        self._build_requests(m, flights)
        self._build_words(m, flights)
        return m

    def _build_requests(self, m: Module, flights: Queue) -> None:
        axi, burst = self.axi, self._burst
        byte_bits = self._size.bit_length() - 1
        address = Signal(HOST_ADDR_BITS - byte_bits, reset_less=True)  # in words
        left = Signal(RUN_BITS)
        room, take = Signal(range(burst + 1)), Signal(range(burst + 1))
        go, quiet = Signal(), Signal()
        m.d.comb += [
            room.eq(burst - address[: (burst - 1).bit_length()]),
            take.eq(Mux(left <= room, left, room)),
            quiet.eq(~axi.arvalid & ~flights.o.valid & (flights.level == 0)),
            self.request.ready.eq((left == 0) & quiet & ~self.failed),
            go.eq((left != 0) & flights.i.ready & ~axi.arvalid & ~self.failed),
            flights.i.valid.eq(go),
            flights.i.payload.eq(take - 1),
            axi.arsize.eq(byte_bits),
            axi.arburst.eq(Burst.INCR),
            axi.arcache.eq(Cache.MODIFIABLE),
        ]
        with m.If(axi.arready):
            m.d.sync += axi.arvalid.eq(0)
        with m.If(go):
            m.d.sync += [
                axi.arvalid.eq(1),
                axi.araddr.eq(address << byte_bits),
                axi.arlen.eq(take - 1),
                address.eq(address + take),
                left.eq(left - take),
            ]
        with m.If(self.request.valid & self.request.ready):
            m.d.sync += [
                address.eq(self.request.payload.address[byte_bits:]),
                left.eq(self.request.payload.words),
            ]
        waited = Signal(range(self._timeout + 1))
        m.d.sync += waited.eq(0)
        with m.If(~quiet & ~(axi.rvalid & axi.rready) & ~self.failed):
            # A word that our side doesn't take is no fault of the host's.
            m.d.sync += waited.eq(Mux(axi.rvalid, 0, waited + 1))
        with m.If(waited == self._timeout):
            m.d.sync += [self.failed.eq(1), left.eq(0)]
        with m.Elif(quiet):
            m.d.sync += self.failed.eq(0)

    def _build_words(self, m: Module, flights: Queue) -> None:
        axi = self.axi
        beat = Signal(range(self._burst))
        last, word = Signal(), Signal()
        m.d.comb += [
            axi.rready.eq(flights.o.valid & (self.o.ready | self.failed)),
            word.eq(axi.rvalid & axi.rready),
            last.eq(beat == flights.o.payload),
            flights.o.ready.eq(word & last),
            self.o.valid.eq(axi.rvalid & flights.o.valid & ~self.failed),
            self.o.payload.data.eq(axi.rdata),
            self.o.payload.bad.eq(axi.rresp[1] | (axi.rlast != last)),
            self.error.eq(word & self.o.payload.bad),
        ]
        with m.If(word):
            m.d.sync += beat.eq(Mux(last, 0, beat + 1))
