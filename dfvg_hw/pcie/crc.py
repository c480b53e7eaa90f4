"""CRC-32C of a stream of words, one word a cycle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from amaranth.hdl import Const, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from dfvg_hw.messages.line import crc32c

__all__ = ["Crc32c"]

_ONES = 0xFFFFFFFF


def _step(state: int, data: bytes) -> int:
    """Return the CRC register after `data`: linear in both, unlike the finished CRC."""
    return crc32c(data, state ^ _ONES) ^ _ONES


def _column(bit: int, size: int) -> int:
    """Return what one bit of a word adds (by XOR) to the next state."""
    return _step(0, (1 << bit).to_bytes(size, "little"))


def _sum(terms: Sequence[Value]) -> Value:
    """Return the XOR of all terms as a balanced tree."""
    if len(terms) == 1:
        return terms[0]
    half = len(terms) // 2
    return _sum(terms[:half]) ^ _sum(terms[half:])


class Crc32c(wiring.Component):
    """Same result as `messages.line.crc32c` over the words, byte 0 of a word in its low bits.

    The next state is the sum (XOR) of a constant for each bit that is set in the word, the state
    having been added to the word's first 4 bytes. To synthesis, these are the usual parities; a
    simulator has one 32-bit operation for each bit of the word instead of 32 parities of words put
    together bit by bit. *Latency* 1 cycle, *throughput* 1 word a cycle.

    Parameters
    ----------
    size : int
        Bytes of a word, at least 4.

    Members
    -------
    start : In(1)
        Forget what came before; `data` of the same cycle counts, if `valid`.
    valid, data : In
    crc : Out(32)
    """

    def __init__(self, size: int) -> None:
        if size < 4:
            raise ValueError(f"word of {size} bytes: at least the 4 of the state are needed")
        self._size = size
        super().__init__({"start": In(1), "valid": In(1), "data": In(8 * size), "crc": Out(32)})

    def elaborate(self, platform: Any) -> Module:
        """Return the hardware."""
        m = Module()
        state = Signal(32, init=_ONES)
        word = Signal(8 * self._size)
        terms = [Mux(word[bit], Const(_column(bit, self._size), 32), 0) for bit in range(len(word))]
        m.d.comb += [
            word.eq(self.data ^ Mux(self.start, _ONES, state)),
            self.crc.eq(~state),
        ]
        with m.If(self.valid):
            m.d.sync += state.eq(_sum(terms))
        with m.Elif(self.start):
            m.d.sync += state.eq(_ONES)
        return m
