"""The way to device memory: read manager, prefetch FIFO and write manager on one AXI4 port."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from dfvg_hw.config import DeviceConfig
from dfvg_hw.interfaces import word

from .axi import axi4, join
from .prefetch import Prefetch
from .reader import ReadMaster, read_request, tagged_word
from .writer import WriteMaster, write_word

__all__ = ["MemoryPort"]


class MemoryPort(wiring.Component):
    """Requests in, words out, runs of words back.

    See `ReadMaster`, `Prefetch` and `WriteMaster` for latency and throughput.

    Parameters
    ----------
    config : DeviceConfig

    Members
    -------
    request : In(stream of `read_request`)
    mm : Out(stream of `tagged_word`)
    vec, program : Out(stream of word)
    write : In(stream of `write_word`)
    axi : Out(`axi4`)
    clear : In(1)
        Drop everything that is under way; keep high until `read_idle` and `write_idle`.
    read_idle : Out(1)
        Nothing requested, in flight or buffered.
    write_idle : Out(1)
        The fence: every write has been answered.
    level, credits, pending : Out
        Words buffered, words that may be requested, write bursts not answered.
    full : Out(1)
        A read burst waits for room in the FIFO.
    arrived, wrote : Out(1)
        A word came from memory, went to memory.
    read_error, write_error : Out(1)
        Pulses.
    """

    def __init__(self, config: DeviceConfig) -> None:
        self._config = config
        words = range(config.prefetch_words + 1)
        super().__init__(
            {
                "request": In(stream.Signature(read_request())),
                "mm": Out(stream.Signature(tagged_word(config))),
                "vec": Out(stream.Signature(word(config))),
                "program": Out(stream.Signature(word(config))),
                "write": In(stream.Signature(write_word(config))),
                "axi": Out(axi4(addr_bits=config.addr_bits, data_bits=8 * config.bus_bytes)),
                "clear": In(1),
                "read_idle": Out(1),
                "write_idle": Out(1),
                "level": Out(words),
                "credits": Out(words),
                "pending": Out(range(config.memory.outstanding + 1)),
                "full": Out(1),
                "arrived": Out(1),
                "wrote": Out(1),
                "read_error": Out(1),
                "write_error": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Return the hardware."""
        m = Module()
        m.submodules.reader = reader = ReadMaster(self._config)
        m.submodules.prefetch = prefetch = Prefetch(self._config)
        m.submodules.writer = writer = WriteMaster(self._config)
        wiring.connect(m, wiring.flipped(self.request), reader.request)
        wiring.connect(m, wiring.flipped(self.write), writer.i)
        for name in ("mm", "vec", "program"):
            wiring.connect(m, getattr(prefetch, name), wiring.flipped(getattr(self, name)))
        join(m, self.axi, reader.axi, writer.axi)
        m.d.comb += [
            prefetch.i_valid.eq(reader.o_valid),
            prefetch.i_payload.eq(reader.o_payload),
            reader.taken.eq(prefetch.taken),
            reader.drain.eq(self.clear),
            prefetch.clear.eq(self.clear),
            writer.flush.eq(self.clear),
            self.read_idle.eq(reader.idle & (prefetch.level == 0)),
            self.write_idle.eq(writer.idle),
            self.level.eq(prefetch.level),
            self.credits.eq(reader.credits),
            self.pending.eq(writer.pending),
            self.full.eq(reader.full),
            self.arrived.eq(self.axi.rvalid & self.axi.rready),
            self.wrote.eq(self.axi.wvalid & self.axi.wready),
            self.read_error.eq(reader.error),
            self.write_error.eq(writer.error),
        ]
        return m
