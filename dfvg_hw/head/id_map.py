"""Turns channels of the head into token ids, by the table in device memory."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from dfvg_hw.common.stream import Queue
from dfvg_hw.config import DeviceConfig
from dfvg_hw.interfaces import TOKEN_BITS, child_result
from dfvg_hw.memory.axi import Burst, Cache, axi4_read
from dfvg_hw.memory.reader import ADDRESS_BITS, ADDRESS_UNIT

__all__ = ["IdMap"]

FLIGHTS = 16


class IdMap(wiring.Component):
    """Looks up ``table[channel]`` for every child, in order.

    One read of a single word each; up to 16 are in flight. The table is far too large for on-chip
    memory if the head covers a whole vocabulary, and only rows x topk entries of it are needed at
    the end of a pass, when memory has nothing else to do.

    *Throughput*: 1 child a cycle, as far as memory's latency and 16 flights allow. *Reset*: only
    together with the memory.

    Parameters
    ----------
    config : DeviceConfig

    Members
    -------
    base : In
        The table, units of 64 bytes; u32 per channel.
    i : In(`child_result`)
    o : Out(`child_result`)
        ``channel`` is the token id.
    axi : Out(`axi4_read`)
    idle : Out(1)
        No child is under way.
    error : Out(1)
        Pulse: an error response; the child passes with a token that must not be used.
    """

    def __init__(self, config: DeviceConfig) -> None:
        self._config = config
        super().__init__(
            {
                "base": In(ADDRESS_BITS),
                "i": In(child_result(config)),
                "o": Out(child_result(config)),
                "axi": Out(axi4_read(addr_bits=config.addr_bits, data_bits=8 * config.bus_bytes)),
                "idle": Out(1),
                "error": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Return the hardware."""
        m = Module()
        axi, size = self.axi, self._config.bus_bytes
        child = child_result(self._config).members["payload"].shape
        flight = data.StructLayout({"child": child, "part": max(1, (size // 4 - 1).bit_length())})
        m.submodules.flights = flights = Queue(flight, FLIGHTS)
        byte_bits = size.bit_length() - 1
        address = Signal(ADDRESS_BITS + 6)
        go = Signal()
        head = flights.o.payload
        m.d.comb += [
            address.eq(self.base * ADDRESS_UNIT + (self.i.payload.channel << 2)),
            go.eq(self.i.valid & flights.i.ready & (~axi.arvalid | axi.arready)),
            self.i.ready.eq(flights.i.ready & (~axi.arvalid | axi.arready)),
            flights.i.valid.eq(go),
            flights.i.payload.child.eq(self.i.payload),
            flights.i.payload.part.eq(address[2:byte_bits]),
            axi.arsize.eq(byte_bits),
            axi.arburst.eq(Burst.INCR),
            axi.arcache.eq(Cache.MODIFIABLE),
            axi.rready.eq(flights.o.valid & self.o.ready),
            flights.o.ready.eq(axi.rvalid & self.o.ready),
            self.o.valid.eq(axi.rvalid & flights.o.valid),
            self.o.payload.eq(head.child),
            self.o.payload.channel.eq(axi.rdata.word_select(head.part, 32)[:TOKEN_BITS]),
            self.error.eq(axi.rvalid & axi.rready & axi.rresp[1]),
            self.idle.eq(~axi.arvalid & (flights.level == 0) & ~flights.o.valid & ~self.i.valid),
        ]
        with m.If(axi.arready):
            m.d.sync += axi.arvalid.eq(0)
        with m.If(go):
            m.d.sync += [
                axi.arvalid.eq(1),
                axi.araddr.eq(address[byte_bits:] << byte_bits),
            ]
        return m
