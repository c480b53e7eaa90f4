"""Write manager: runs of full words to device memory, and the fence that waits for all of them."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Mux, ResetInserter, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from dfvg_hw.common.stream import Queue
from dfvg_hw.config import DeviceConfig

from .axi import Burst, Cache, axi4_write, burst_words
from .reader import ADDRESS_BITS, ADDRESS_UNIT

__all__ = ["RUN_BITS", "WriteMaster", "write_word"]

RUN_BITS = 12
"""Bits of a run's length in words: the longest is a V page of 192 padded dims in 8-byte words."""
COMMANDS = 8
MAX_BURST = 64


def write_word(config: DeviceConfig) -> data.StructLayout:
    """A word to write; the ``first`` of a run names its ``address`` and length in ``words``."""
    return data.StructLayout(
        {
            "data": 8 * config.bus_bytes,
            "first": 1,
            "address": ADDRESS_BITS,
            "words": RUN_BITS,
        }
    )


class WriteMaster(wiring.Component):
    """Writes runs of full words, in order.

    A burst starts only when all of its words are here, so the bus never waits for data. Bursts end
    at multiples of their longest length (64 words or 4 KiB). *Throughput*: 1 word per cycle within
    a burst, 2 cycles between bursts. *Reset*: only together with the memory.

    Parameters
    ----------
    config : DeviceConfig

    Members
    -------
    i : In(stream of `write_word`)
        Exactly ``words`` words per run, each run from a multiple of 64 bytes.
    axi : Out(`axi4_write`)
    flush : In(1)
        Finish the burst under way, drop everything behind it. Keep high until `idle`.
    idle : Out(1)
        The fence: nothing queued, every burst answered.
    pending : Out
        Bursts not answered yet.
    error : Out(1)
        Pulse: a burst was answered with an error.
    """

    def __init__(self, config: DeviceConfig) -> None:
        self._config = config
        self._burst = burst_words(config.bus_bytes, MAX_BURST)
        axi = axi4_write(addr_bits=config.addr_bits, data_bits=8 * config.bus_bytes)
        super().__init__(
            {
                "i": In(stream.Signature(write_word(config))),
                "axi": Out(axi),
                "flush": In(1),
                "idle": Out(1),
                "pending": Out(range(config.memory.outstanding + 1)),
                "error": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Return the hardware."""
        m = Module()
        run = data.StructLayout({"address": ADDRESS_BITS, "words": RUN_BITS})
        words = Queue(8 * self._config.bus_bytes, 2 * self._burst)
        runs = Queue(run, COMMANDS)
        drop = Signal()
        busy = Signal()  # a burst is on the bus
        # Nothing may change under a burst that the bus has seen.
        m.d.comb += drop.eq(self.flush & ~busy)
        m.submodules.words = ResetInserter(drop)(words)
        m.submodules.runs = ResetInserter(drop)(runs)
        item = self.i.payload
        m.d.comb += [
            words.i.payload.eq(item.data),
            words.i.valid.eq(self.i.valid & (runs.i.ready | ~item.first) & ~drop),
            runs.i.payload.address.eq(item.address),
            runs.i.payload.words.eq(item.words),
            runs.i.valid.eq(self.i.valid & item.first & words.i.ready & ~drop),
            self.i.ready.eq((words.i.ready & (runs.i.ready | ~item.first)) | self.flush),
        ]
        go = Signal()
        active = self._build_bursts(m, words, runs, busy, go)
        self._build_responses(m, go)
        m.d.comb += self.idle.eq(
            ~busy & ~active & ~runs.o.valid & (words.level == 0) & (self.pending == 0)
        )
        return m

    def _build_bursts(
        self, m: Module, words: Queue, runs: Queue, busy: Signal, go: Signal
    ) -> Signal:
        """Split runs into bursts and send them; returns whether a run is under way."""
        axi, burst = self.axi, self._burst
        sub_bits = (ADDRESS_UNIT // self._config.bus_bytes).bit_length() - 1
        byte_bits = self._config.bus_bytes.bit_length() - 1
        address = Signal(ADDRESS_BITS + sub_bits, reset_less=True)  # in words
        left = Signal(RUN_BITS, reset_less=True)
        active = Signal()
        room = Signal(range(burst + 1))
        take = Signal(range(burst + 1))
        beats = Signal(range(burst + 1))
        sending = Signal()
        free = Signal()
        m.d.comb += [
            room.eq(burst - address[: (burst - 1).bit_length()]),
            take.eq(Mux(left <= room, left, room)),
            free.eq(~busy & ~self.flush & (self.pending != self._config.memory.outstanding)),
            go.eq(active & free & (words.level >= take)),
            runs.o.ready.eq(~active & ~busy & ~self.flush),
            busy.eq(axi.awvalid | sending),
            axi.awsize.eq(byte_bits),
            axi.awburst.eq(Burst.INCR),
            axi.awcache.eq(Cache.MODIFIABLE),
            axi.wvalid.eq(sending & words.o.valid),
            axi.wdata.eq(words.o.payload),
            axi.wstrb.eq((1 << self._config.bus_bytes) - 1),
            axi.wlast.eq(beats == 1),
            words.o.ready.eq(sending & axi.wready),
        ]
        with m.If(runs.o.valid & runs.o.ready):
            m.d.sync += [
                active.eq(1),
                address.eq(runs.o.payload.address << sub_bits),
                left.eq(runs.o.payload.words),
            ]
        with m.If(axi.awready):
            m.d.sync += axi.awvalid.eq(0)
        with m.If(axi.wvalid & axi.wready):
            m.d.sync += beats.eq(beats - 1)
            with m.If(axi.wlast):
                m.d.sync += sending.eq(0)
        with m.If(go):
            m.d.sync += [
                axi.awvalid.eq(1),
                axi.awaddr.eq(address << byte_bits),
                axi.awlen.eq(take - 1),
                beats.eq(take),
                sending.eq(1),
                address.eq(address + take),
                left.eq(left - take),
                active.eq(left != take),
            ]
        with m.Elif(self.flush & ~busy):
            m.d.sync += active.eq(0)
        return active

    def _build_responses(self, m: Module, go: Signal) -> None:
        axi = self.axi
        answer = Signal()
        m.d.comb += [
            axi.bready.eq(1),
            answer.eq(axi.bvalid & axi.bready),
            self.error.eq(answer & axi.bresp[1]),
        ]
        with m.If(go != answer):
            m.d.sync += self.pending.eq(Mux(go, self.pending + 1, self.pending - 1))
