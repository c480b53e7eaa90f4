"""SwiGLU on adjacent (gate, up) channels of one row."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Mux, Signal, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from ..common.memory import Rom
from ..numerics.formats import ACT_FRAC, SIGMOID_FRAC
from ..numerics.tables import SIGMOID

__all__ = ["SigmoidGate"]

_LIMIT = 16 << ACT_FRAC
_SEGMENT_BITS = len(SIGMOID.base).bit_length() - 1
_ENTRY = data.StructLayout({"base": SIGMOID.base_bits, "slope": signed(SIGMOID.slope_bits)})


def _rom_words() -> list[int]:
    mask = (1 << SIGMOID.slope_bits) - 1
    pairs = zip(SIGMOID.base.tolist(), SIGMOID.slope.tolist(), strict=True)
    return [base | (slope & mask) << SIGMOID.base_bits for base, slope in pairs]


class SigmoidGate(wiring.Component):
    """Computes ``rshr(g * sigmoid(g), 16)`` and multiplies it by a later ``u``.

    The sigmoid is a table of 512 chords over [-16, 16), saturated outside
    (`numerics.ops.sigmoid`).

    *Latency* of the gate 5 cycles: it may be used from the fifth cycle after ``g_valid`` on, until
    five cycles after the next ``g_valid``. ``product`` follows ``u_valid`` by 1 cycle.
    *Throughput* one gate per cycle.

    Members
    -------
    g_valid : In(1)
    g : In(signed 32)
        ACT format.
    u_valid : In(1)
    u : In(signed 32)
        ACT format.
    product : Out(signed 64)
        silu(g) * u, 2 * ACT_FRAC fraction bits.
    """

    def __init__(self) -> None:
        super().__init__(
            {
                "g_valid": In(1),
                "g": In(signed(32)),
                "u_valid": In(1),
                "u": In(signed(32)),
                "product": Out(signed(64)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Return the hardware."""
        m = Module()
        m.submodules.rom = rom = Rom(_ENTRY.size, _rom_words())
        entry = data.View(_ENTRY, rom.r_data)
        valid = [self.g_valid]
        gate = [self.g]
        for stage in range(1, 5):
            valid.append(Signal(name=f"valid_{stage}"))
            m.d.sync += valid[-1].eq(valid[-2])
            if stage < 4:
                gate.append(Signal(signed(32), name=f"gate_{stage}", reset_less=True))
                with m.If(valid[-2]):
                    m.d.sync += gate[-1].eq(gate[-2])

        frac_bits = SIGMOID.frac_bits
        high, low = Signal(reset_less=True), Signal(reset_less=True)
        frac = Signal(frac_bits, reset_less=True)
        scaled = Signal(signed(SIGMOID.slope_bits + frac_bits + 1), reset_less=True)
        base = Signal(SIGMOID.base_bits, reset_less=True)
        limited = Signal(2, reset_less=True)
        sigmoid = Signal(SIGMOID_FRAC, reset_less=True)
        gated = Signal(signed(49), reset_less=True)
        silu = Signal(signed(32), reset_less=True)
        m.d.comb += [
            rom.r_en.eq(self.g_valid),
            # The segment's index is the argument's bits from the fraction up, shifted by half.
            rom.r_addr.eq((self.g >> frac_bits) + (1 << (_SEGMENT_BITS - 1))),
        ]
        with m.If(valid[0]):
            m.d.sync += [
                frac.eq(self.g),
                high.eq(self.g >= _LIMIT),
                low.eq(self.g < -_LIMIT),
            ]
        with m.If(valid[1]):
            m.d.sync += [
                scaled.eq(entry.slope * frac),
                base.eq(entry.base),
                limited[0].eq(low),
                limited[1].eq(high),
            ]
        with m.If(valid[2]):
            chord = base + (scaled >> frac_bits)
            m.d.sync += sigmoid.eq(
                Mux(limited[0], 0, Mux(limited[1], (1 << SIGMOID_FRAC) - 1, chord))
            )
        with m.If(valid[3]):
            m.d.sync += gated.eq(gate[3] * sigmoid)
        with m.If(valid[4]):
            # |g * sigmoid| < 2**47: no saturation needed.
            m.d.sync += silu.eq((gated >> SIGMOID_FRAC) + gated[SIGMOID_FRAC - 1])
        with m.If(self.u_valid):
            m.d.sync += self.product.eq(silu * self.u)
        return m
