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
LSE_LATENCY = 5
"""Cycles from a logit to the sum that contains it."""

_FARTHEST = 63
"""Shifts from here on leave nothing of either addend."""


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
        valid = [Signal(name=f"valid_{i}") for i in range(LSE_LATENCY)]
        first = [Signal(name=f"first_{i}", reset_less=True) for i in range(LSE_LATENCY)]
        y8 = Signal(signed(27), reset_less=True)
        integer = Signal(signed(LEVEL_BITS), reset_less=True)
        m.d.comb += [valid[0].eq(self.valid), first[0].eq(self.logit.first)]
        for stage in range(1, LSE_LATENCY):
            m.d.sync += valid[stage].eq(valid[stage - 1])
            with m.If(valid[stage - 1]):
                m.d.sync += first[stage].eq(first[stage - 1])
        rounded = rshr(m, self.logit.y, fm.ACT_FRAC - fm.EXP_FRAC, "rounded")
        with m.If(valid[0]):
            m.d.sync += y8.eq(rounded)
        m.d.comb += [rom.r_en.eq(valid[1]), rom.r_addr.eq(y8[: fm.EXP_FRAC])]
        with m.If(valid[1]):
            m.d.sync += integer.eq(y8 >> fm.EXP_FRAC)
        up, distance, power = self._build_level(m, valid[2], first[2], integer, rom.r_data)
        self._build_sum(m, valid[3:], first[4], up, distance, power)
        return m

    def _build_level(
        self, m: Module, valid: Signal, first: Signal, integer: Signal, power: Signal
    ) -> tuple[Signal, Signal, Signal]:
        """Stage 2: compare with the level; whichever of sum and term is smaller will be shifted."""
        difference = Signal(signed(LEVEL_BITS + 1))
        distance = Signal(LEVEL_BITS + 1)
        above = Signal()
        up = Signal(reset_less=True)
        capped = Signal(6, reset_less=True)
        power3 = Signal(16, reset_less=True)
        m.d.comb += [
            difference.eq(integer - self.level),
            above.eq(difference > 0),
            distance.eq(Mux(above, difference, -difference)),
        ]
        with m.If(valid):
            m.d.sync += [up.eq(first | above), power3.eq(power)]
            m.d.sync += capped.eq(Mux(distance > _FARTHEST, _FARTHEST, distance))
            with m.If(first | above):
                m.d.sync += self.level.eq(integer)
        return up, capped, power3

    def _build_sum(
        self,
        m: Module,
        valid: list[Signal],
        first: Signal,
        up: Signal,
        distance: Signal,
        power: Signal,
    ) -> None:
        """Stages 3 and 4: shift the term; shift the sum and add. Only the sum feeds back."""
        term = Signal(24)
        shifted = Signal(24, reset_less=True)
        up4 = Signal(reset_less=True)
        distance4 = Signal(6, reset_less=True)
        old = Signal(SUM_BITS)
        m.d.comb += term.eq(power << fm.LSE_GUARD)
        with m.If(valid[0]):
            m.d.sync += [
                shifted.eq(Mux(up, term, term >> distance)),
                up4.eq(up),
                distance4.eq(distance),
            ]
        with m.If(first):
            m.d.comb += old.eq(0)
        with m.Elif(up4):
            m.d.comb += old.eq(self.total >> distance4)
        with m.Else():
            m.d.comb += old.eq(self.total)
        with m.If(valid[1]):
            m.d.sync += self.total.eq(old + shifted)
