"""Vector memory: the residual and every intermediate vector of one row."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from ..common.arith import bits_for_range
from ..common.memory import Ram
from ..config import DeviceConfig
from ..interfaces import vm_read, vm_write

__all__ = ["VectorMemory", "lane_bits"]


def lane_bits(config: DeviceConfig) -> int:
    """Bits of an element address that choose the lane in a word of vector memory."""
    return config.lanes.bit_length() - 1


class VectorMemory(wiring.Component):
    """``vm_depth`` ACT elements (int32, 14 fraction bits) of one row, in words of ``lanes``.

    One RAM with one write and one read port, shared by the array's output lanes (one element per
    cycle) and the vector unit (one word per cycle). The array wins: it can't be stalled. The two
    never meet in a correct program, because the vector unit touches vector memory only in

    * EMBED (reads and writes), at the start of a pass, before the first MM starts, and
    * QUANT (reads), which waits for the MM that made its operand and whose consumer MM waits for
      it; an MM in between may only be one that leaves vector memory alone (SCORE, TOPK).

    A lost access sets ``collision`` until reset, so that a wrong program shows.

    *Latency* 1 cycle to read, *throughput* one read and one write per cycle.

    Parameters
    ----------
    config : DeviceConfig

    Members
    -------
    mm_w : In(vm_write), mm_r : In(vm_read)
        The array's element ports.
    r_en, r_addr, r_data : In(1), In, Out(32 * lanes)
        The vector unit's read of word ``r_addr``; data follow by one cycle.
    w_en, w_addr, w_data : In(1), In, In(32 * lanes)
        The vector unit's write.
    collision : Out(1)
        Both sides wanted one port in the same cycle; the vector unit's access was lost.
    """

    def __init__(self, config: DeviceConfig) -> None:
        self._lanes, self._words = config.lanes, config.vm_depth // config.lanes
        self._lane_bits = lane_bits(config)
        addr, width = bits_for_range(self._words), 32 * config.lanes
        super().__init__(
            {
                "mm_w": In(vm_write()),
                "mm_r": In(vm_read()),
                "r_en": In(1),
                "r_addr": In(addr),
                "r_data": Out(width),
                "w_en": In(1),
                "w_addr": In(addr),
                "w_data": In(width),
                "collision": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Return the hardware."""
        m = Module()
        m.submodules.ram = ram = Ram(32 * self._lanes, self._words, granularity=32)
        lane = Signal(max(1, self._lane_bits), reset_less=True)
        bits = self._lane_bits
        with m.If(self.mm_w.en):
            m.d.comb += [
                ram.w_en.eq(1 << self.mm_w.addr[:bits] if bits else 1),
                ram.w_addr.eq(self.mm_w.addr[bits:]),
                ram.w_data.eq(Cat([self.mm_w.data] * self._lanes)),
            ]
        with m.Else():
            m.d.comb += [
                ram.w_en.eq(self.w_en.replicate(self._lanes)),
                ram.w_addr.eq(self.w_addr),
                ram.w_data.eq(self.w_data),
            ]
        with m.If(self.mm_r.en):
            m.d.comb += [ram.r_en.eq(1), ram.r_addr.eq(self.mm_r.addr[bits:])]
            m.d.sync += lane.eq(self.mm_r.addr[:bits] if bits else 0)
        with m.Else():
            m.d.comb += [ram.r_en.eq(self.r_en), ram.r_addr.eq(self.r_addr)]
        m.d.comb += [
            self.r_data.eq(ram.r_data),
            self.mm_r.data.eq(ram.r_data.word_select(lane, 32)),
        ]
        with m.If((self.mm_w.en & self.w_en) | (self.mm_r.en & self.r_en)):
            m.d.sync += self.collision.eq(1)
        return m
