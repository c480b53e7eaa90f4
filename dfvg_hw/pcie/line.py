"""Checks a received line: CRC and tag."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from dfvg_hw.messages.line import CRC_OFFSET, LINE_BYTES, TAG_OFFSET

from .crc import Crc32c

__all__ = ["LINE_BITS", "LineShift"]

LINE_BITS = 8 * LINE_BYTES
_WORD = 32
_COVERED = CRC_OFFSET // 4 + 1
"""Words that the CRC covers: the message and the tag."""


class LineShift(wiring.Component):
    """A line, word by word in or out, and its CRC, 4 bytes a cycle.

    The CRC of a line takes 17 cycles: a narrow unit, because lines are few and a wide one would be
    the largest logic of the link.

    Parameters
    ----------
    bus_bytes : int

    Members
    -------
    load, payload, tag : In
        Put a message and its tag into the line.
    shift, word : In
        Take in a bus word; after 64 bytes the first is at the front.
    check : In(1)
        Pulse: compute the CRC. `done` follows as a pulse; until then, nothing may be shifted.
    done : Out(1)
    crc : Out(32)
        The CRC computed; with it, `line` can be sent.
    line : Out(512)
        The line as it was loaded, with the CRC field as received (or 0).
    """

    def __init__(self, bus_bytes: int) -> None:
        self._bits = 8 * bus_bytes
        super().__init__(
            {
                "load": In(1),
                "payload": In(8 * CRC_OFFSET),
                "tag": In(32),
                "shift": In(1),
                "word": In(self._bits),
                "check": In(1),
                "done": Out(1),
                "crc": Out(32),
                "line": Out(LINE_BITS),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Return the hardware."""
        m = Module()
        m.submodules.crc = crc = Crc32c(_WORD // 8)
        line = Signal(LINE_BITS, reset_less=True)
        step = Signal(range(_COVERED + 2))
        words = LINE_BYTES // 4
        m.d.comb += [
            self.line.eq(line),
            self.crc.eq(crc.crc),
            crc.start.eq(self.check),
            crc.data.eq(line[:_WORD]),
            crc.valid.eq((step != 0) & (step <= words) & (step != CRC_OFFSET // 4 + 1)),
        ]
        m.d.sync += self.done.eq(0)
        with m.If(self.check):
            m.d.sync += step.eq(1)
        # The last that holds counts. An If with Elif would do the same, but where `shift` is never
        # used, Verilator takes what is left of it for an overlap.
        with m.If(self.load):
            m.d.sync += line.eq(Cat(self.payload, self.tag << 8 * (TAG_OFFSET - CRC_OFFSET)))
        with m.If(self.shift):
            m.d.sync += line.eq(Cat(line, self.word)[self._bits :])
        with m.If(step != 0):
            m.d.sync += [line.eq(Cat(line[_WORD:], line[:_WORD])), step.eq(step + 1)]
            with m.If(step == words):
                m.d.sync += [step.eq(0), self.done.eq(1)]
        return m
