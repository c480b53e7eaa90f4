"""CRC-32C of a stream of words, one word a cycle."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from dfvg_hw.messages.line import crc32c

__all__ = ["Crc32c"]

_ONES = 0xFFFFFFFF


def _step(state: int, data: bytes) -> int:
    """Return the CRC register after `data`: linear in both, unlike the finished CRC."""
    return crc32c(data, state ^ _ONES) ^ _ONES


def _masks(size: int) -> list[int]:
    """For each bit of the next state: which bits of (state, data) it is the parity of."""
    masks = [0] * 32
    for column in range(32 + 8 * size):
        state = 1 << column if column < 32 else 0
        data = (1 << (column - 32) if column >= 32 else 0).to_bytes(size, "little")
        image = _step(state, data)
        for row in range(32):
            masks[row] |= (image >> row & 1) << column
    return masks


class Crc32c(wiring.Component):
    """Same result as `messages.line.crc32c` over the words, byte 0 of a word in its low bits.

    Each bit is one parity of a masked word: that form costs a simulator a fraction of a tree of
    single-bit XORs. *Latency* 1 cycle, *throughput* 1 word a cycle.

    Parameters
    ----------
    size : int
        Bytes of a word.

    Members
    -------
    start : In(1)
        Forget what came before; `data` of the same cycle counts, if `valid`.
    valid, data : In
    crc : Out(32)
    """

    def __init__(self, size: int) -> None:
        self._size = size
        super().__init__({"start": In(1), "valid": In(1), "data": In(8 * size), "crc": Out(32)})

    def elaborate(self, platform: Any) -> Module:
        """Return the hardware."""
        m = Module()
        state = Signal(32, init=_ONES)
        source = Signal(32 + 8 * self._size)
        m.d.comb += [
            source.eq(Cat(Mux(self.start, _ONES, state), self.data)),
            self.crc.eq(~state),
        ]
        with m.If(self.valid):
            m.d.sync += state.eq(Cat((source & mask).xor() for mask in _masks(self._size)))
        with m.Elif(self.start):
            m.d.sync += state.eq(_ONES)
        return m
