"""Rotary position embedding on adjacent channel pairs of one row."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Mux, Signal, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from ..common.memory import Ram
from ..interfaces import rope_write

__all__ = ["RopeUnit"]

_PAIRS = 128
_ENTRY = data.StructLayout({"cos": signed(16), "sin": signed(16)})


class RopeUnit(wiring.Component):
    """Rotates (a, b): first ``a*c - b*s``, in the next cycle ``a*s + b*c``, both unrounded.

    Two multipliers serve both halves: a pair takes two cycles, and can't come more often.

    *Latency*: with ``even`` in cycle t and ``odd`` in cycle t' > t, the first sum is at ``sum`` in
    cycle t' + 2, the second in t' + 3. ``fetch`` belongs in cycle t' - 1.

    Members
    -------
    rope_w : In(`rope_write`)
        (cos, sin) of the row's position.
    fetch : In(1)
        Read the table at ``pair``.
    even, odd : In(1)
        ``y`` is a, or b.
    y : In(signed 32)
        ACT format.
    sum : Out(signed 49)
        14 more fraction bits than ACT. Two 47-bit products: can't overflow.
    """

    def __init__(self) -> None:
        super().__init__(
            {
                "rope_w": In(rope_write()),
                "fetch": In(1),
                "pair": In(7),
                "even": In(1),
                "odd": In(1),
                "y": In(signed(32)),
                "sum": Out(signed(49)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Return the hardware."""
        m = Module()
        m.submodules.table = table = Ram(_ENTRY.size, _PAIRS, disjoint=True)
        entry = data.View(_ENTRY, table.r_data)
        write = Signal(_ENTRY)
        m.d.comb += [
            write.cos.eq(self.rope_w.cos),
            write.sin.eq(self.rope_w.sin),
            table.w_en.eq(self.rope_w.en),
            table.w_addr.eq(self.rope_w.pair),
            table.w_data.eq(write),
            table.r_en.eq(self.fetch),
            table.r_addr.eq(self.pair),
        ]
        a, b = Signal(signed(32), reset_less=True), Signal(signed(32), reset_less=True)
        left = Signal(signed(48), reset_less=True)
        right = Signal(signed(48), reset_less=True)
        second, summing, negative = Signal(), Signal(), Signal()
        with m.If(self.even):
            m.d.sync += a.eq(self.y)
        m.d.sync += [second.eq(self.odd), summing.eq(self.odd | second), negative.eq(self.odd)]
        with m.If(self.odd):
            m.d.sync += [b.eq(self.y), left.eq(a * entry.cos), right.eq(self.y * entry.sin)]
        # A new `even` may come in this cycle: it replaces `a` only at its end.
        with m.Elif(second):
            m.d.sync += [left.eq(a * entry.sin), right.eq(b * entry.cos)]
        with m.If(summing):
            m.d.sync += self.sum.eq(left + Mux(negative, -right, right))
        return m
