"""Copies a program from device memory into program memory."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from dfvg_hw.common.arith import bits_for_range
from dfvg_hw.config import DeviceConfig
from dfvg_hw.interfaces import word
from dfvg_hw.isa import INSTRUCTION_BYTES
from dfvg_hw.memory.reader import ADDRESS_BITS, Target, read_request

__all__ = ["LENGTH_BITS", "ProgramLoader"]

LENGTH_BITS = 16
CODE_BITS = 8 * INSTRUCTION_BYTES


class ProgramLoader(wiring.Component):
    """Reads ``length`` instructions and writes them one by one.

    *Throughput*: an instruction per cycle, or a word per cycle where a word is shorter. Reset stops
    it; if that cuts a load short, program memory holds part of the program and `loaded` stays low.

    Parameters
    ----------
    config : DeviceConfig

    Members
    -------
    start : In(1)
        Pulse, between passes; ignored while `busy`.
    base : In
        Where the program is, units of 64 bytes.
    length : In
        Instructions; more than program memory holds, or none, are refused: `loaded` stays low.
    request : Out(stream of `read_request`)
    words : In(stream of word)
    write_en, write_addr, write_data : Out
        To the fetch unit.
    busy : Out(1)
    loaded : Out(1)
        A whole program is there.
    """

    def __init__(self, config: DeviceConfig) -> None:
        self._config = config
        super().__init__(
            {
                "start": In(1),
                "base": In(ADDRESS_BITS),
                "length": In(LENGTH_BITS),
                "request": Out(stream.Signature(read_request())),
                "words": In(stream.Signature(word(config))),
                "write_en": Out(1),
                "write_addr": Out(bits_for_range(config.prog_depth)),
                "write_data": Out(CODE_BITS),
                "busy": Out(1),
                "loaded": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Return the hardware."""
        m = Module()
        config = self._config
        count = Signal(range(config.prog_depth + 1))
        index = Signal(range(config.prog_depth + 1))
        fits = Signal()
        # Outlives an aborted pass: program memory keeps the program.
        loaded = Signal(reset_less=True)
        per_word = config.bus_bytes // INSTRUCTION_BYTES  # 0: two words an instruction
        request = self.request.payload
        words = count << 1
        if per_word:
            words = (count + per_word - 1) >> (per_word.bit_length() - 1)
        m.d.comb += [
            fits.eq((self.length != 0) & (self.length <= config.prog_depth)),
            request.address.eq(self.base),
            request.words.eq(words),
            request.target.eq(Target.PROGRAM),
            self.write_addr.eq(index),
            self.loaded.eq(loaded),
        ]
        with m.FSM() as fsm:
            with m.State("IDLE"):
                with m.If(self.start):
                    m.d.sync += [loaded.eq(0), count.eq(self.length), index.eq(0)]
                    with m.If(fits):
                        m.next = "REQUEST"
            with m.State("REQUEST"):
                m.d.comb += self.request.valid.eq(1)
                with m.If(self.request.ready):
                    m.next = "COPY"
            with m.State("COPY"):
                self._build_copy(m, index, index == count - 1)
                with m.If(self.write_en):
                    m.d.sync += index.eq(index + 1)
                    with m.If(index == count - 1):
                        m.d.sync += loaded.eq(1)
                        m.next = "IDLE"
            m.d.comb += self.busy.eq(~fsm.ongoing("IDLE"))
        return m

    def _build_copy(self, m: Module, index: Signal, last: Any) -> None:
        size = self._config.bus_bytes
        if size < INSTRUCTION_BYTES:
            low = Signal(8 * size, reset_less=True)
            half = Signal()
            m.d.comb += [
                self.words.ready.eq(1),
                self.write_data.eq(Cat(low, self.words.payload)),
                self.write_en.eq(self.words.valid & half),
            ]
            with m.If(self.words.valid):
                m.d.sync += [half.eq(~half), low.eq(self.words.payload)]
            return
        parts = size // INSTRUCTION_BYTES
        part = index[: parts.bit_length() - 1]
        m.d.comb += [
            self.write_en.eq(self.words.valid),
            self.write_data.eq(self.words.payload.word_select(part, CODE_BITS)),
            self.words.ready.eq(Mux(last, 1, part == parts - 1)),
        ]
