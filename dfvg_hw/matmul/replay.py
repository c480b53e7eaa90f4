"""Holds the words of a KV page on chip, for the query heads that share it."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from ..common.arith import bits_for_range
from ..common.memory import Ram
from ..config import GROUP, DeviceConfig
from .control import HEAD_GROUPS_MAX

__all__ = ["ReplayBuffer"]


class ReplayBuffer(wiring.Component):
    """Passes words on, and again as often as asked.

    In a cycle with ``take`` the word at ``word_i`` passes (and, with ``keep``, is stored at the
    running position); in one with ``replay`` the stored word at that position does. ``restart``
    beside either brings the position back to 0 for the next word.

    *Latency* 1 cycle, *throughput* one word per cycle. A word may be replayed from the second
    cycle after its ``take`` on. Reset brings the position to 0.

    Parameters
    ----------
    config : DeviceConfig

    Members
    -------
    take, keep, replay, restart : In(1)
    word_i, word_o : In, Out(8 * bus_bytes)
        ``word_o`` counts one cycle after ``take`` or ``replay``.
    """

    def __init__(self, config: DeviceConfig) -> None:
        self._width = 8 * config.bus_bytes
        self._depth = HEAD_GROUPS_MAX * GROUP * config.group_words
        super().__init__(
            {
                "take": In(1),
                "keep": In(1),
                "replay": In(1),
                "restart": In(1),
                "word_i": In(self._width),
                "word_o": Out(self._width),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Return the hardware."""
        m = Module()
        m.submodules.page = page = Ram(self._width, self._depth, disjoint=True)
        position = Signal(bits_for_range(self._depth))
        passed = Signal(self._width, reset_less=True)
        replayed = Signal(reset_less=True)
        step = Signal()
        m.d.comb += [
            step.eq((self.take & self.keep) | self.replay),
            page.w_en.eq(self.take & self.keep),
            page.w_addr.eq(position),
            page.w_data.eq(self.word_i),
            page.r_en.eq(self.replay),
            page.r_addr.eq(position),
            self.word_o.eq(Mux(replayed, page.r_data, passed)),
        ]
        m.d.sync += replayed.eq(self.replay)
        with m.If(self.take):
            m.d.sync += passed.eq(self.word_i)
        with m.If(step):
            m.d.sync += position.eq(Mux(self.restart, 0, position + 1))
        return m
