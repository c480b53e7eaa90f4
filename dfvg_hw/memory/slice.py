"""Registers on every channel of an AXI4 port."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from dfvg_hw.common.stream import SkidBuffer

from .axi import axi4

__all__ = ["AxiSlice"]


class AxiSlice(wiring.Component):
    """Cuts all combinational paths between a manager and what it talks to.

    Two registers a channel. Besides closing timing at the edge of the device, it keeps a simulator
    from evaluating the logic behind the inputs twice a cycle. *Latency* 1 cycle a channel,
    *throughput* 1 beat a cycle. *Reset*: only together with both sides.

    Parameters
    ----------
    addr_bits, data_bits : int
        See `axi4`.

    Members
    -------
    i : In(`axi4`)
        The manager.
    o : Out(`axi4`)
    """

    def __init__(self, *, addr_bits: int, data_bits: int) -> None:
        shape = {"addr_bits": addr_bits, "data_bits": data_bits}
        super().__init__({"i": In(axi4(**shape)), "o": Out(axi4(**shape))})

    def elaborate(self, platform: Any) -> Module:
        """Return the hardware."""
        m = Module()
        for channel in ("ar", "aw", "w"):
            self._build_channel(m, channel, self.i, self.o)
        for channel in ("r", "b"):
            self._build_channel(m, channel, self.o, self.i)
        return m

    def _build_channel(self, m: Module, channel: str, source: Any, sink: Any) -> None:
        names = {
            "ar": ("id", "addr", "len", "size", "burst", "cache", "prot"),
            "aw": ("id", "addr", "len", "size", "burst", "cache", "prot"),
            "w": ("data", "strb", "last"),
            "r": ("id", "data", "resp", "last"),
            "b": ("id", "resp"),
        }[channel]
        shape = data.StructLayout({n: getattr(source, f"{channel}{n}").shape() for n in names})
        m.submodules[channel] = buffer = SkidBuffer(shape)
        for name in names:
            m.d.comb += [
                buffer.i.payload[name].eq(getattr(source, f"{channel}{name}")),
                getattr(sink, f"{channel}{name}").eq(buffer.o.payload[name]),
            ]
        m.d.comb += [
            buffer.i.valid.eq(getattr(source, f"{channel}valid")),
            getattr(source, f"{channel}ready").eq(buffer.i.ready),
            getattr(sink, f"{channel}valid").eq(buffer.o.valid),
            buffer.o.ready.eq(getattr(sink, f"{channel}ready")),
        ]
