"""KV tail of one row: K and V of its own token, for every KV head of the running layer."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Const, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from dfvg_hw.common.arith import bits_for_range
from dfvg_hw.common.memory import Ram
from dfvg_hw.config import GROUP, DeviceConfig
from dfvg_hw.interfaces import kv_tail_write

__all__ = ["KvTail", "tail_elements"]


def tail_elements(config: DeviceConfig) -> int:
    """Return the elements of K (or of V) that a row's tail holds.

    Vector memory holds Q, K and V of a layer beside the residual, and Q is at least as long as K,
    so no model that fits vector memory has more than a third of it in K.
    """
    return max(GROUP, config.vm_depth // 2)


class KvTail(wiring.Component):
    """Memories for K, V and their scales of one row.

    Written by the vector unit as it quantises, read by the merge unit: K as bus words, V as
    elements, scales by head. *Latency* 1 cycle from an enable to its data, which stay until the
    next enable. Contents survive reset.

    Parameters
    ----------
    config : DeviceConfig

    Members
    -------
    k, v : In(`kv_tail_write`)
    k_en, k_addr : In
        Read bus word ``k_addr``, counted from KV head 0.
    k_data : Out(8 * bus_bytes)
    v_en, v_addr : In
        Read element ``v_addr`` of V.
    v_data : Out(8)
    scale_en, scale_head : In
        Read the scales of a head.
    k_scale, v_scale : Out(8)
        sf8.
    """

    def __init__(self, config: DeviceConfig) -> None:
        self._config = config
        elements = tail_elements(config)
        self._heads = elements // GROUP
        super().__init__(
            {
                "k": In(kv_tail_write(config)),
                "v": In(kv_tail_write(config)),
                "k_en": In(1),
                "k_addr": In(range(elements // config.bus_bytes)),
                "k_data": Out(8 * config.bus_bytes),
                "v_en": In(1),
                "v_addr": In(range(elements)),
                "v_data": Out(8),
                "scale_en": In(1),
                "scale_head": In(bits_for_range(self._heads)),
                "k_scale": Out(8),
                "v_scale": Out(8),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Return the hardware."""
        m = Module()
        self._build_keys(m)
        self._build_values(m)
        for name, write in (("k_scales", self.k), ("v_scales", self.v)):
            m.submodules[name] = ram = Ram(8, self._heads)
            m.d.comb += [
                ram.w_en.eq(write.scale_en),
                ram.w_addr.eq(write.head),
                ram.w_data.eq(write.scale),
                ram.r_en.eq(self.scale_en),
                ram.r_addr.eq(self.scale_head),
                (self.k_scale if name == "k_scales" else self.v_scale).eq(ram.r_data),
            ]
        return m

    def _build_keys(self, m: Module) -> None:
        config = self._config
        parts = config.bus_bytes // config.lanes
        bits = parts.bit_length() - 1
        depth = tail_elements(config) // config.bus_bytes
        m.submodules.keys = ram = Ram(8 * config.bus_bytes, depth, granularity=8 * config.lanes)
        m.d.comb += [
            ram.w_en.eq(self.k.en << self.k.addr[:bits] if bits else self.k.en),
            ram.w_addr.eq(self.k.addr[bits:]),
            ram.w_data.eq(self.k.data.replicate(parts)),
            ram.r_en.eq(self.k_en),
            ram.r_addr.eq(self.k_addr),
            self.k_data.eq(ram.r_data),
        ]

    def _build_values(self, m: Module) -> None:
        lanes = self._config.lanes
        bits = lanes.bit_length() - 1
        m.submodules.values = ram = Ram(8 * lanes, tail_elements(self._config) // lanes)
        lane = Signal(max(1, bits), reset_less=True)
        with m.If(self.v_en):
            m.d.sync += lane.eq(self.v_addr[:bits] if bits else Const(0))
        m.d.comb += [
            ram.w_en.eq(self.v.en),
            ram.w_addr.eq(self.v.addr),
            ram.w_data.eq(self.v.data),
            ram.r_en.eq(self.v_en),
            ram.r_addr.eq(self.v_addr[bits:]),
            self.v_data.eq(ram.r_data.word_select(lane, 8)),
        ]
