"""Streaming selection of a row's largest logits."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Signal, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from ..common.arith import bits_for_range
from ..config import DeviceConfig
from ..interfaces import TOKEN_BITS, logit

__all__ = ["TopK", "ranked"]

_LOWEST = -(1 << 31)


def ranked() -> data.StructLayout:
    """A channel and its logit (ACT, log2 units)."""
    return data.StructLayout({"y": signed(32), "channel": TOKEN_BITS})


class TopK(wiring.Component):
    """Keeps the ``topk`` largest logits, sorted; ties go to the lower channel.

    A sorted list in registers: a new logit takes the place of the first entry that is smaller,
    and pushes the rest down. Channels ascend, so "not larger" keeps the earlier one in front.

    *Latency* 2 cycles from a logit to the list; *throughput* one logit per cycle. A ``first``
    logit starts a new list.

    Parameters
    ----------
    config : DeviceConfig

    Members
    -------
    valid : In(1), logit : In(logit)
    rank : In
        Entry to read, 0 the largest.
    entry : Out(ranked)
        Combinational. Entries beyond the number of logits have y = -2**31, which no logit has.
    """

    def __init__(self, config: DeviceConfig) -> None:
        self._topk = config.topk
        super().__init__(
            {
                "valid": In(1),
                "logit": In(logit()),
                "rank": In(bits_for_range(config.topk)),
                "entry": Out(ranked()),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Return the hardware."""
        m = Module()
        valid = Signal()
        new = Signal(logit(), reset_less=True)
        best = [Signal(ranked(), name=f"best_{i}", reset_less=True) for i in range(self._topk)]
        m.d.sync += valid.eq(self.valid)
        with m.If(self.valid):
            m.d.sync += new.eq(self.logit)
        above = [Signal(name=f"above_{i}") for i in range(self._topk)]
        for index, flag in enumerate(above):
            m.d.comb += flag.eq(new.y > best[index].y)
        # Nearly all logits are below the last entry, which is all that is looked at then.
        with m.If(valid & new.first):
            m.d.sync += [best[0].y.eq(new.y), best[0].channel.eq(new.channel)]
            for index in range(1, self._topk):
                m.d.sync += best[index].y.eq(_LOWEST)
        with m.Elif(valid & above[-1]):
            for index, flag in enumerate(above):
                with m.If(flag):
                    displaced = above[index - 1] if index else 0
                    with m.If(displaced):
                        m.d.sync += best[index].eq(best[index - 1])
                    with m.Else():
                        m.d.sync += [best[index].y.eq(new.y), best[index].channel.eq(new.channel)]
        with m.Switch(self.rank):
            for index, candidate in enumerate(best):
                with m.Case(index):
                    m.d.comb += self.entry.eq(candidate)
        return m
