"""The mailbox window: lines that the host's processor writes directly."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from dfvg_hw.common.arith import bits_for_range
from dfvg_hw.common.memory import Ram
from dfvg_hw.config import DeviceConfig
from dfvg_hw.memory.axi import axi4_write
from dfvg_hw.messages.line import LINE_BYTES
from dfvg_hw.registers import MAILBOX_LINES

__all__ = ["MAILBOX_ADDR_BITS", "Mailbox"]

MAILBOX_ADDR_BITS = 12


class Mailbox(wiring.Component):
    """A write-only window of `MAILBOX_LINES` lines a sequence.

    Takes INCR bursts of any length, alignment and beat size, with any strobes: a bridge may cut a
    line as it likes, as long as the line's last dword is written last and whole. Writes beyond the
    lines are answered DECERR.

    *Latency*: `arrived` follows the last dword by 1 cycle. *Throughput*: 1 beat a cycle. Reset
    forgets what has arrived.

    Parameters
    ----------
    config : DeviceConfig

    Members
    -------
    axi : In(`axi4_write`)
    arrived : Out, a bit per line
        The last dword was written since `clear` of the line. Line ``4 * seq + n``.
    clear : In, a bit per line
    r_en, r_addr, r_data : read port
        Bus words of the lines; 1 cycle.
    """

    def __init__(self, config: DeviceConfig) -> None:
        self._size = config.bus_bytes
        self._lines = config.max_seqs * MAILBOX_LINES
        self._beats = LINE_BYTES // self._size
        depth = self._lines * self._beats
        axi = axi4_write(addr_bits=MAILBOX_ADDR_BITS, data_bits=8 * self._size)
        super().__init__(
            {
                "axi": In(axi),
                "arrived": Out(self._lines),
                "clear": In(self._lines),
                "r_en": In(1),
                "r_addr": In(bits_for_range(depth)),
                "r_data": Out(8 * self._size),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Return the hardware."""
        m = Module()
        axi, size = self.axi, self._size
        m.submodules.ram = ram = Ram(8 * size, self._lines * self._beats, granularity=8)
        byte_bits = size.bit_length() - 1
        address = Signal(MAILBOX_ADDR_BITS)
        step = Signal(byte_bits + 1)
        busy, bad, take = Signal(), Signal(), Signal()
        awake = Signal()  # nothing may be accepted in cycles in which it would be forgotten
        m.d.sync += awake.eq(1)
        inside = Signal()
        word = address[byte_bits:]
        m.d.comb += [
            axi.awready.eq(~busy & ~axi.bvalid & awake),
            axi.wready.eq(busy),
            take.eq(axi.wvalid & busy),
            inside.eq(address < self._lines * LINE_BYTES),
            ram.w_addr.eq(word),
            ram.w_data.eq(axi.wdata),
            ram.w_en.eq(Mux(take & inside, axi.wstrb, 0)),
            ram.r_en.eq(self.r_en),
            ram.r_addr.eq(self.r_addr),
            self.r_data.eq(ram.r_data),
        ]
        with m.If(axi.bready):
            m.d.sync += axi.bvalid.eq(0)
        with m.If(axi.awvalid & axi.awready):
            m.d.sync += [
                busy.eq(1),
                bad.eq(0),
                address.eq(axi.awaddr),
                step.eq((1 << axi.awsize)[: byte_bits + 1]),
                axi.bid.eq(axi.awid),
            ]
        m.d.sync += self.arrived.eq(self.arrived & ~self.clear)
        with m.If(take):
            # Only the first beat of a burst may be unaligned.
            m.d.sync += address.eq((address & ~(step - 1)) + step)
            m.d.sync += bad.eq(bad | ~inside)
            last_dword = (word & (self._beats - 1)) == self._beats - 1
            with m.If(inside & last_dword & axi.wstrb[size - 4 :].all()):
                line = address[6 : 6 + bits_for_range(self._lines)]
                m.d.sync += self.arrived.eq((self.arrived & ~self.clear) | (1 << line))
            with m.If(axi.wlast):
                m.d.sync += [
                    busy.eq(0),
                    axi.bvalid.eq(1),
                    axi.bresp.eq(Cat(bad | ~inside, bad | ~inside)),
                ]
        return m
