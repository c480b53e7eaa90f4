"""Copies blocks from host memory to device memory."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from dfvg_hw.config import DeviceConfig
from dfvg_hw.memory.axi import axi4_write
from dfvg_hw.memory.reader import ADDRESS_BITS, ADDRESS_UNIT
from dfvg_hw.memory.writer import WriteMaster

from .crc import Crc32c
from .host_read import RUN_BITS, host_word

__all__ = ["BulkCopy", "bulk_command"]

RUN_WORDS = 64
"""Words handed to the write manager as one run; a burst of its longest length."""


def bulk_command() -> data.StructLayout:
    """Write the next ``words`` words to ``address``, units of 64 bytes."""
    return data.StructLayout({"address": ADDRESS_BITS, "words": RUN_BITS})


class BulkCopy(wiring.Component):
    """Writes a stream of words to device memory and takes its CRC-32C.

    *Throughput*: 1 word a cycle, less the gaps between bursts. *Reset*: only together with the
    memory.

    Parameters
    ----------
    config : DeviceConfig

    Members
    -------
    start : In(1), command : In(`bulk_command`)
        Pulse; only when not `busy`.
    words : In(stream of `host_word`)
    stop : In(1)
        No more words will come: finish with zeros in place of the rest, `bad`.
    axi : Out(`axi4_write`)
    busy : Out(1)
        Until all writes have been answered.
    bad : Out(1)
        A word came with an error, a write was answered with one, or `stop`. Valid after `busy`.
    crc : Out(32)
    write_error : Out(1)
        Pulse.
    """

    def __init__(self, config: DeviceConfig) -> None:
        self._config = config
        size = config.bus_bytes
        super().__init__(
            {
                "start": In(1),
                "command": In(bulk_command()),
                "words": In(stream.Signature(host_word(size))),
                "stop": In(1),
                "axi": Out(axi4_write(addr_bits=config.addr_bits, data_bits=8 * size)),
                "busy": Out(1),
                "bad": Out(1),
                "crc": Out(32),
                "write_error": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Return the hardware."""
        m = Module()
        size = self._config.bus_bytes
        m.submodules.writer = writer = WriteMaster(self._config)
        m.submodules.crc = crc = Crc32c(size)
        wiring.connect(m, writer.axi, wiring.flipped(self.axi))
        left, run = Signal(RUN_BITS), Signal(range(RUN_WORDS + 1))
        address = Signal(ADDRESS_BITS)
        active, first, take = Signal(), Signal(), Signal()
        start_run = Signal(range(RUN_WORDS + 1))
        item = writer.i
        m.d.comb += [
            active.eq(left != 0),
            first.eq(run == 0),
            start_run.eq(Mux(left < RUN_WORDS, left, RUN_WORDS)),
            item.payload.data.eq(self.words.payload.data),
            item.payload.first.eq(first),
            item.payload.address.eq(address),
            item.payload.words.eq(start_run),
            item.valid.eq(active & (self.words.valid | self.stop)),
            self.words.ready.eq(active & item.ready & ~self.stop),
            take.eq(item.valid & item.ready),
            crc.start.eq(self.start),
            crc.valid.eq(take),
            crc.data.eq(self.words.payload.data),
            self.crc.eq(crc.crc),
            self.write_error.eq(writer.error),
            self.busy.eq(active | ~writer.idle),
        ]
        with m.If(take):
            m.d.sync += [left.eq(left - 1), run.eq(Mux(first, start_run, run) - 1)]
            with m.If(first):
                m.d.sync += address.eq(address + (RUN_WORDS * size // ADDRESS_UNIT))
            with m.If(self.words.payload.bad | self.stop):
                m.d.sync += self.bad.eq(1)
        with m.If(writer.error):
            m.d.sync += self.bad.eq(1)
        with m.If(self.start):
            m.d.sync += [
                address.eq(self.command.address),
                left.eq(self.command.words),
                run.eq(0),
                self.bad.eq(0),
            ]
        return m
