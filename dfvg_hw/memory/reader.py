"""Read manager: turns requests for runs of words into AXI4 bursts that can never stall the bus."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.wiring import In, Out

from dfvg_hw.common.stream import Queue
from dfvg_hw.config import DeviceConfig

from .axi import Burst, Cache, axi4_read, burst_words

__all__ = ["ADDRESS_BITS", "ADDRESS_UNIT", "ReadMaster", "Target", "read_request", "tagged_word"]

ADDRESS_UNIT = 64
"""Bytes of one step of an address in requests, instructions and model registers."""
ADDRESS_BITS = 26
WORDS_BITS = 24


class Target(enum.Enum, shape=2):
    """Who consumes a word; the first two values are `isa.Dest`."""

    MM = 0
    VEC = 1
    KV = 2
    """The array, through the merge unit's substitution."""
    PROGRAM = 3


def read_request() -> data.StructLayout:
    """A run of ``words`` bus words from ``address`` (units of 64 bytes), all for one consumer."""
    return data.StructLayout({"address": ADDRESS_BITS, "words": WORDS_BITS, "target": Target})


def tagged_word(config: DeviceConfig) -> data.StructLayout:
    """A memory word with its consumer."""
    return data.StructLayout({"data": 8 * config.bus_bytes, "target": Target})


class ReadMaster(wiring.Component):
    """Reads runs of words from device memory, in order.

    A burst is requested only when the FIFO behind ``o`` has room for all of it, so ``rready`` never
    waits for a consumer. Bursts end at multiples of their longest length: at most 4 KiB and 256
    beats, at most half of the FIFO, never across a 4 KiB line. Up to ``memory.outstanding`` of them
    are in flight.

    *Latency*: 2 cycles from an accepted request to ``arvalid``; data pass in the cycle in which
    they arrive. *Throughput*: 1 burst and 1 word per cycle. *Reset*: only together with the memory;
    `drain` gets rid of what is under way at any other time.

    Parameters
    ----------
    config : DeviceConfig

    Members
    -------
    request : In(stream of `read_request`)
        A request of 0 words is accepted and does nothing.
    o : Out, valid and payload of `tagged_word`
        No ready: `credits` guarantee the room.
    taken : In(1)
        A word left the FIFO behind ``o``.
    axi : Out(`axi4_read`)
    drain : In(1)
        Drop the running request, accept and drop everything else and the words that still arrive;
        the FIFO behind must be held in reset meanwhile. Keep high until `idle`.
    idle : Out(1)
        Nothing requested, nothing in flight.
    credits : Out
        Words that may still be requested.
    full : Out(1)
        A burst waits for room in the FIFO.
    error : Out(1)
        Pulse: an error response, or a burst that ended early or late. The word passes all the same,
        so that the pass can end; its results must not be used.
    """

    def __init__(self, config: DeviceConfig) -> None:
        self._config = config
        self._word_bytes = config.bus_bytes
        # Two bursts fit the FIFO, so that one can fly while the other is consumed.
        self._burst = burst_words(config.bus_bytes, max(1, config.prefetch_words // 2))
        axi = axi4_read(addr_bits=config.addr_bits, data_bits=8 * config.bus_bytes)
        super().__init__(
            {
                "request": In(stream.Signature(read_request())),
                "o_valid": Out(1),
                "o_payload": Out(tagged_word(config)),
                "taken": In(1),
                "axi": Out(axi),
                "drain": In(1),
                "idle": Out(1),
                "credits": Out(range(config.prefetch_words + 1), init=config.prefetch_words),
                "full": Out(1),
                "error": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Return the hardware."""
        m = Module()
        flight = data.StructLayout({"target": Target, "last": range(self._burst)})
        m.submodules.flights = flights = Queue(flight, self._config.memory.outstanding)
        self._build_requests(m, flights)
        self._build_words(m, flights)
        return m

    def _build_requests(self, m: Module, flights: Queue) -> None:
        axi, burst = self.axi, self._burst
        sub_bits = (ADDRESS_UNIT // self._word_bytes).bit_length() - 1
        byte_bits = self._word_bytes.bit_length() - 1
        address = Signal(ADDRESS_BITS + sub_bits, reset_less=True)  # in words
        left = Signal(WORDS_BITS, reset_less=True)
        target = Signal(Target, reset_less=True)
        active = Signal()
        room = Signal(range(burst + 1))
        take = Signal(range(burst + 1))
        final = Signal()
        fits = Signal()
        go = Signal()
        in_line = (burst - 1).bit_length()
        m.d.comb += [
            room.eq(burst - address[:in_line]),
            final.eq(left <= room),
            take.eq(Mux(final, left, room)),
            fits.eq(self.credits >= take),
            go.eq(active & fits & flights.i.ready & (~axi.arvalid | axi.arready)),
            self.full.eq(active & ~fits),
            flights.i.valid.eq(go & ~self.drain),
            flights.i.payload.target.eq(target),
            flights.i.payload.last.eq(take - 1),
            self.request.ready.eq(~active | (go & final) | self.drain),
            axi.arsize.eq(byte_bits),
            axi.arburst.eq(Burst.INCR),
            axi.arcache.eq(Cache.MODIFIABLE),
        ]
        with m.If(axi.arready):
            m.d.sync += axi.arvalid.eq(0)
        with m.If(self.drain):
            m.d.sync += active.eq(0)
        with m.Else():
            with m.If(go):
                m.d.sync += [
                    axi.arvalid.eq(1),
                    axi.araddr.eq(address << byte_bits),
                    axi.arlen.eq(take - 1),
                    address.eq(address + take),
                    left.eq(left - take),
                    active.eq(~final),
                ]
            with m.If(self.request.valid & self.request.ready):
                request = self.request.payload
                m.d.sync += [
                    address.eq(request.address << sub_bits),
                    left.eq(request.words),
                    target.eq(request.target),
                    active.eq(request.words.any()),
                ]
        issued = Signal(range(burst + 1))
        m.d.comb += issued.eq(Mux(flights.i.valid, take, 0))
        with m.If(self.drain):
            # The FIFO is held empty: all of it is free once the last word has been dropped.
            m.d.sync += self.credits.eq(self._config.prefetch_words)
        with m.Elif(flights.i.valid | self.taken):
            m.d.sync += self.credits.eq(self.credits - issued + self.taken)
        m.d.comb += self.idle.eq(~active & ~axi.arvalid & ~flights.o.valid & (flights.level == 0))

    def _build_words(self, m: Module, flights: Queue) -> None:
        axi = self.axi
        beat = Signal(range(self._burst))
        last = Signal()
        word = Signal()
        m.d.comb += [
            axi.rready.eq(flights.o.valid),
            word.eq(axi.rvalid & axi.rready),
            last.eq(beat == flights.o.payload.last),
            flights.o.ready.eq(word & last),
            self.o_valid.eq(word & ~self.drain),
            self.o_payload.data.eq(axi.rdata),
            self.o_payload.target.eq(flights.o.payload.target),
            self.error.eq(word & (axi.rresp[1] | (axi.rlast != last))),
        ]
        with m.If(word):
            m.d.sync += beat.eq(Mux(last, 0, beat + 1))
