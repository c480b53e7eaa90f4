"""Running log-sum-exp of a row's logits."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Mux, Signal, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from ..common.arith import rshr
from ..common.memory import Rom
from ..interfaces import logit
from ..numerics import formats as fm
from ..numerics.tables import T2

__all__ = ["LEVEL_BITS", "LSE_LATENCY", "SUM_BITS", "LogSumExp"]

LEVEL_BITS = 19
"""Integer part of a logit: 32 bits less 14 of fraction, and one for the carry of rounding."""
SUM_BITS = 44
"""2**20 terms below 2**24."""
LSE_LATENCY = 3
"""Cycles from a logit to the sum that contains it."""


class LogSumExp(wiring.Component):
    """Keeps ``level``, the largest integer part so far, and ``total`` in units of 2**(level-23).

    ``y8 = rshr(y, 6)``, i = y8 >> 8, f = y8 & 255: if i > level, total >>= i - level and level =
    i; then total += (T2[f] << 8) >> min(40, level - i) (`attention.log_sum_exp`).

    *Latency* `LSE_LATENCY`; *throughput* one logit per cycle. A ``first`` logit restarts.

    Members
    -------
    valid : In(1), logit : In(logit)
    level : Out(signed(LEVEL_BITS)), total : Out(SUM_BITS)
    """

    def __init__(self) -> None:
        super().__init__(
            {
                "valid": In(1),
                "logit": In(logit()),
                "level": Out(signed(LEVEL_BITS)),
                "total": Out(SUM_BITS),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Return the hardware."""
        m = Module()
        m.submodules.exp2 = rom = Rom(16, [int(value) for value in T2])
        valid1, valid2 = Signal(), Signal()
        first1, first2 = Signal(reset_less=True), Signal(reset_less=True)
        y8 = Signal(signed(27), reset_less=True)
        integer = Signal(signed(LEVEL_BITS), reset_less=True)
        m.d.sync += [valid1.eq(self.valid), valid2.eq(valid1)]
        rounded = rshr(m, self.logit.y, fm.ACT_FRAC - fm.EXP_FRAC, "rounded")
        with m.If(self.valid):
            m.d.sync += [y8.eq(rounded), first1.eq(self.logit.first)]
        m.d.comb += [rom.r_en.eq(valid1), rom.r_addr.eq(y8[: fm.EXP_FRAC])]
        with m.If(valid1):
            m.d.sync += [integer.eq(y8 >> fm.EXP_FRAC), first2.eq(first1)]
        self._build_update(m, valid2, first2, integer, rom.r_data)
        return m

    def _build_update(
        self, m: Module, valid: Signal, first: Signal, integer: Signal, power: Signal
    ) -> None:
        """Stage 2: one of the two addends is shifted, never both."""
        difference = Signal(signed(LEVEL_BITS + 1))
        up, distance = Signal(), Signal(LEVEL_BITS)
        capped = Signal(6)
        term = Signal(24)
        m.d.comb += [
            difference.eq(integer - self.level),
            up.eq(difference > 0),
            distance.eq(Mux(up, difference, -difference)),
            capped.eq(Mux(distance > 63, 63, distance)),
            term.eq(power << fm.LSE_GUARD),
        ]
        with m.If(valid):
            with m.If(first | up):
                m.d.sync += self.level.eq(integer)
                m.d.sync += self.total.eq(Mux(first, 0, self.total >> capped) + term)
            with m.Else():
                m.d.sync += self.total.eq(self.total + (term >> capped))
