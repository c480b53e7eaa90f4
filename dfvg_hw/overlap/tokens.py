"""Counts the tokens that order the two compute engines."""

from typing import Any

from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

__all__ = ["TOKEN_LIMIT", "TokenCounter"]

TOKEN_LIMIT = 63
"""Most tokens under way in one direction."""


class TokenCounter(wiring.Component):
    """Tokens that one engine gave and the other hasn't taken.

    *Latency*: a token given is available in the next cycle. Reset removes all.

    Members
    -------
    give, take : In(1)
        Pulses; both in one cycle leave the count.
    available : Out(1)
        At least one token is there.
    count : Out
        For diagnosis.
    bad : Out(1)
        Pulse: a token was taken that wasn't there, or given above the limit: a program that can't
        be right.
    """

    give: In(1)
    take: In(1)
    available: Out(1)
    count: Out(range(TOKEN_LIMIT + 1))
    bad: Out(1)

    def elaborate(self, platform: Any) -> Module:
        """Return the hardware."""
        m = Module()
        m.d.comb += self.available.eq(self.count != 0)
        with m.If(self.give & ~self.take):
            with m.If(self.count == TOKEN_LIMIT):
                m.d.comb += self.bad.eq(1)
            with m.Else():
                m.d.sync += self.count.eq(self.count + 1)
        with m.Elif(self.take & ~self.give):
            with m.If(self.available):
                m.d.sync += self.count.eq(self.count - 1)
            with m.Else():
                m.d.comb += self.bad.eq(1)
        return m
