"""Requantisation: accumulators back to the ACT format, one result per cycle."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Const, Module, Signal, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from ..common.arith import clamp, sat32
from ..common.memory import Ram
from ..common.pipeline import delayed
from ..config import DeviceConfig
from ..interfaces import SCALE_BITS, scale_write
from ..numerics.formats import SHIFT_MAX
from .control import ACC, REQUANT_LATENCY, result_control, result_tag

__all__ = ["RequantLane", "lane_result"]

_SCALE = data.StructLayout({"mant": 16, "exp": signed(8)})


def lane_result(config: DeviceConfig) -> data.StructLayout:
    """A requantised value with its output operation and destination."""
    return data.StructLayout({"out": 3, "tag": result_tag(config)})


class RequantLane(wiring.Component):
    """Scales a row's sums by the row scale and by the column scale (`numerics.ops.requant`).

        t = sat32(rshr(sum, pre));  u = rshr(t * mant, 16)
        y = sat32(rshr(u * (2048 + column), clamp(shift - exp, 0, 63)))

    *Latency* `REQUANT_LATENCY` cycles, *throughput* one result per cycle, never stalls. Reset
    forgets what is under way; row scales stay.

    Parameters
    ----------
    config : DeviceConfig

    Members
    -------
    scale_w : In(`scale_write`)
    valid : In(1)
    sum : In(signed 48)
    control : In(`result_control`)
    tag : In(`result_tag`)
    o_valid : Out(1)
    y : Out(signed 32)
        ACT format.
    o : Out(`lane_result`)
    """

    def __init__(self, config: DeviceConfig) -> None:
        self._config = config
        super().__init__(
            {
                "scale_w": In(scale_write()),
                "valid": In(1),
                "sum": In(ACC),
                "control": In(result_control(config)),
                "tag": In(result_tag(config)),
                "o_valid": Out(1),
                "y": Out(signed(32)),
                "o": Out(lane_result(config)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Return the hardware."""
        m = Module()
        m.submodules.scales = scales = Ram(_SCALE.size, 1 << SCALE_BITS, disjoint=True)
        passing = Signal(lane_result(self._config))
        m.d.comb += [passing.out.eq(self.control.out), passing.tag.eq(self.tag)]
        valid = delayed(m, self.valid, REQUANT_LATENCY, "valid", reset=True)
        result = delayed(m, passing, REQUANT_LATENCY, "result")
        scale_index = delayed(m, self.control.scale, 1, "scale")
        shift = delayed(m, self.control.shift, 2, "shift")
        column = delayed(m, self.control.column, 4, "column")
        write = Signal(_SCALE)
        m.d.comb += [
            write.mant.eq(self.scale_w.mant),
            write.exp.eq(self.scale_w.exp),
            scales.w_en.eq(self.scale_w.en),
            scales.w_addr.eq(self.scale_w.index),
            scales.w_data.eq(write),
            scales.r_en.eq(valid[1]),
            scales.r_addr.eq(scale_index[1]),
            self.o_valid.eq(valid[-1]),
            self.o.eq(result[-1]),
        ]
        u, amount = self._build_row_scale(m, valid, data.View(_SCALE, scales.r_data), shift[2])
        self._build_column_scale(m, valid, u, amount, column[4])
        return m

    def _build_row_scale(
        self, m: Module, valid: list, scale: data.View, shift: Signal
    ) -> tuple[Signal, Signal]:
        """Stages 0 to 3: pre-shift, product with the row's mantissa; also the final shift."""
        # Shifters keep one bit below the result: it decides the rounding in the next stage.
        guarded = Signal(signed(ACC.width + 1), reset_less=True)
        rounded = Signal(signed(ACC.width + 1))
        t = Signal(signed(32), reset_less=True)
        product = Signal(signed(48), reset_less=True)
        u = Signal(signed(32), reset_less=True)
        amount = clamp(m, shift - scale.exp, 0, SHIFT_MAX, "amount")
        m.d.comb += rounded.eq((guarded >> 1) + guarded[0])
        with m.If(valid[0]):
            m.d.sync += guarded.eq((self.sum << 1) >> self.control.pre)
        # Inside the condition, so that simulators skip it in most cycles.
        with m.If(valid[1]):
            m.d.sync += t.eq(sat32(m, rounded, "t_limited"))
        with m.If(valid[2]):
            m.d.sync += product.eq(t * scale.mant)
        with m.If(valid[3]):
            # |t * mant| < 2**47, so u needs no saturation.
            m.d.sync += u.eq((product >> 16) + product[15])
        return u, delayed(m, amount, 3, "amount")[-1]

    def _build_column_scale(
        self, m: Module, valid: list, u: Signal, amount: Signal, column: Signal
    ) -> None:
        """Stages 4 to 6: product with the column's mantissa, final shift, saturation."""
        product = Signal(signed(44), name="column_product", reset_less=True)
        guarded = Signal(signed(45), name="column_guarded", reset_less=True)
        rounded = Signal(signed(45), name="column_rounded")
        y = Signal(signed(32), name="y_limited", reset_less=True)
        m.d.comb += [rounded.eq((guarded >> 1) + guarded[0]), self.y.eq(y)]
        with m.If(valid[4]):
            m.d.sync += product.eq(u * Cat(column, Const(1, 1)))
        with m.If(valid[5]):
            m.d.sync += guarded.eq((product << 1) >> amount)
        with m.If(valid[6]):
            m.d.sync += y.eq(sat32(m, rounded, "y_sat"))
