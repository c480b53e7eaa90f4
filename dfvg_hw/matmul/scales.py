"""Holds the scale words of a block or page and hands out one scale per item."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from ..config import GROUP, DeviceConfig
from ..isa import OutOp
from ..numerics.formats import SF8_M_BITS, SF16_M_BITS

__all__ = ["ScaleQueue"]

_EXPONENT_BITS = 5


class ScaleQueue(wiring.Component):
    """The scales of the items at hand, in order.

    A linear block has one word of sf16 column scales. A page has 64 bytes of sf8 K scales, then 64
    bytes of sf8 V scales; after 64 items it starts again, for the next query head. PV items have
    the scale 1.0. (Registers that shift by an item need no multiplexer as wide as a word.)

    *Latency* 1 cycle from ``load`` or ``next``.

    Parameters
    ----------
    config : DeviceConfig

    Members
    -------
    out : In(3)
        `OutOp` of the command.
    load : In(1)
        ``word`` is a scale word; with ``values`` one of V scales.
    next : In(1)
        The item at hand ends.
    column : Out(11)
        Fraction of its mantissa: the scale is (2048 + column) * 2**exponent.
    exponent : Out(5)
    v_scale : Out(8)
        The token's V scale, sf8.
    """

    def __init__(self, config: DeviceConfig) -> None:
        self._width = 8 * config.bus_bytes
        super().__init__(
            {
                "out": In(3),
                "load": In(1),
                "values": In(1),
                "word": In(self._width),
                "next": In(1),
                "column": Out(SF16_M_BITS),
                "exponent": Out(_EXPONENT_BITS),
                "v_scale": Out(8),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Return the hardware."""
        m = Module()
        columns = Signal(self._width, reset_less=True)
        keys = Signal(8 * GROUP, reset_less=True)
        values = Signal(8 * GROUP, reset_less=True)
        is_score = Signal()
        m.d.comb += [is_score.eq(self.out == OutOp.SCORE), self.v_scale.eq(values[:8])]
        with m.If(self.load):
            with m.If(~is_score):
                m.d.sync += columns.eq(self.word)
            with m.Elif(self.values):
                m.d.sync += values.eq(Cat(values, self.word)[self._width :])
            with m.Else():
                m.d.sync += keys.eq(Cat(keys, self.word)[self._width :])
        with m.Elif(self.next):
            with m.If(is_score):
                m.d.sync += [keys.eq(keys.rotate_right(8)), values.eq(values.rotate_right(8))]
            with m.Elif(self.out != OutOp.PV):
                m.d.sync += columns.eq(columns >> 16)
        with m.If(is_score):
            m.d.comb += [
                # (8 + m) * 2**e with 8 more mantissa bits.
                self.column.eq(keys[:SF8_M_BITS] << (SF16_M_BITS - SF8_M_BITS)),
                self.exponent.eq(keys[SF8_M_BITS:8]),
            ]
        with m.Elif(self.out != OutOp.PV):
            m.d.comb += [
                self.column.eq(columns[:SF16_M_BITS]),
                self.exponent.eq(columns[SF16_M_BITS:16]),
            ]
        return m
