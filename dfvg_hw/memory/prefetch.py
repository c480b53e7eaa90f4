"""The prefetch FIFO: everything loaded for a pass goes through it, in program order."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, ResetInserter, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from dfvg_hw.common.stream import Queue
from dfvg_hw.config import DeviceConfig
from dfvg_hw.interfaces import word

from .reader import Target, tagged_word

__all__ = ["Prefetch"]


class Prefetch(wiring.Component):
    """Buffers ``prefetch_words`` words and hands each to its consumer.

    The one FIFO keeps program order, so a consumer can block the others: the program must load
    words in the order in which the engines use them. *Latency* 2 cycles, *throughput* 1 word per
    cycle.

    Parameters
    ----------
    config : DeviceConfig

    Members
    -------
    i_valid, i_payload : In, `tagged_word`
        From the read manager, which counts the room.
    taken : Out(1)
        A word left.
    mm : Out(stream of `tagged_word`)
        Words for the array, plain and KV.
    vec, program : Out(stream of word)
    clear : In(1)
        Drop everything.
    level : Out
        Words held.
    """

    def __init__(self, config: DeviceConfig) -> None:
        self._config = config
        super().__init__(
            {
                "i_valid": In(1),
                "i_payload": In(tagged_word(config)),
                "taken": Out(1),
                "mm": Out(stream.Signature(tagged_word(config))),
                "vec": Out(stream.Signature(word(config))),
                "program": Out(stream.Signature(word(config))),
                "clear": In(1),
                "level": Out(range(config.prefetch_words + 1)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Return the hardware."""
        m = Module()
        queue = Queue(tagged_word(self._config), self._config.prefetch_words)
        m.submodules.queue = ResetInserter(self.clear)(queue)
        head = queue.o.payload
        valid = Signal()
        m.d.comb += [
            queue.i.valid.eq(self.i_valid),
            queue.i.payload.eq(self.i_payload),
            self.level.eq(queue.level),
            # A consumer may be reset in the same cycle as the FIFO: nothing moves meanwhile.
            valid.eq(queue.o.valid & ~self.clear),
            self.mm.payload.eq(head),
            self.vec.payload.eq(head.data),
            self.program.payload.eq(head.data),
            self.taken.eq(valid & queue.o.ready),
        ]
        with m.Switch(head.target):
            with m.Case(Target.MM, Target.KV):
                m.d.comb += [self.mm.valid.eq(valid), queue.o.ready.eq(self.mm.ready)]
            with m.Case(Target.VEC):
                m.d.comb += [self.vec.valid.eq(valid), queue.o.ready.eq(self.vec.ready)]
            with m.Case(Target.PROGRAM):
                m.d.comb += [self.program.valid.eq(valid), queue.o.ready.eq(self.program.ready)]
        return m
