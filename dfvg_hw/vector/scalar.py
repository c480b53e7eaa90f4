"""The scalar unit: scales, reciprocals and inverse square roots, one row after the other."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value, signed
from amaranth.lib import data, enum, wiring
from amaranth.lib.wiring import In, Out

from ..common.arith import bits_for_range
from ..common.memory import Rom
from ..config import DeviceConfig
from ..numerics import formats as fm
from ..numerics.tables import RECIP, RSQRT, T2, LinTable
from .bits import normalise

__all__ = [
    "SCALAR_LATENCY",
    "VALUE_BITS",
    "LinearRom",
    "ScalarOp",
    "ScalarUnit",
    "scalar_operand",
    "scalar_result",
]

VALUE_BITS = 45
"""The widest operand: a sum of 2**14 squares of 16-bit values, plus epsilon."""

SCALAR_LATENCY = 8
"""Cycles from a row's operand to its result."""


class ScalarOp(enum.Enum, shape=2):
    """What the unit computes for every row."""

    SCALE = 0
    """Mantissa, exponent and reciprocal of a maximum (`ops.normalize16`, `ops.sf8_round_up`)."""
    RMS = 1
    """Row scale times 1 / sqrt(sum of squares + epsilon) (`ops.rms_scale`)."""
    PROB = 2
    """Row scale of probabilities (`attention.softmax`)."""


def scalar_operand() -> data.StructLayout:
    """What a row offers to the unit; each operation looks at its own fields.

    SCALE: ``m_scope``. RMS: ``squares``, ``sh`` (the squares' operands were shifted right so
    far), and the scope's ``mh``, ``e``. PROB: ``total`` of the exponentials, ``gap`` = smax' -
    smax.
    """
    return data.StructLayout(
        {
            "m_scope": 32,
            "squares": VALUE_BITS,
            "mh": 16,
            "e": signed(8),
            "sh": 5,
            "total": 34,
            "gap": 16,
        }
    )


def scalar_result(config: DeviceConfig) -> data.StructLayout:
    """A row's result: scale ``mant * 2**exp``; SCALE also ``rec``, ``n`` and ``sf8``.

    ``rec`` is 127 * 2**24 / mant, ``n`` the maximum's bit length, ``sf8`` the code of a K/V scale.
    """
    return data.StructLayout(
        {
            "valid": 1,
            "row": bits_for_range(config.rows),
            "op": ScalarOp,
            "mant": 16,
            "exp": signed(8),
            "rec": 16,
            "n": 6,
            "sf8": 8,
        }
    )


class LinearRom(wiring.Component):
    """A `LinTable` in hardware: ``base[segment] + (slope[segment] * frac >> frac_bits)``.

    *Latency* 2 cycles, *throughput* one per cycle.

    Parameters
    ----------
    table : LinTable

    Members
    -------
    en : In(1), segment : In, frac : In(table.frac_bits)
    y : Out(16)
    """

    def __init__(self, table: LinTable) -> None:
        self._table = table
        super().__init__(
            {
                "en": In(1),
                "segment": In(bits_for_range(len(table.base))),
                "frac": In(table.frac_bits),
                "y": Out(16),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Return the hardware."""
        m = Module()
        table = self._table
        bits, slope_bits = table.base_bits, table.slope_bits
        mask = (1 << slope_bits) - 1
        words = [
            int(base) | (int(slope) & mask) << bits
            for base, slope in zip(table.base, table.slope, strict=True)
        ]
        m.submodules.rom = rom = Rom(bits + slope_bits, words)
        frac = Signal.like(self.frac, reset_less=True)
        valid = Signal()
        base, slope = Signal(bits), Signal(signed(slope_bits))
        product = Signal(signed(slope_bits + table.frac_bits + 1))
        total = Signal(16)  # the table's own promise
        m.d.comb += [
            rom.r_en.eq(self.en),
            rom.r_addr.eq(self.segment),
            Cat(base, slope).eq(rom.r_data),
            product.eq(slope * frac),
            total.eq(base + (product >> table.frac_bits)),
        ]
        m.d.sync += valid.eq(self.en)
        with m.If(self.en):
            m.d.sync += frac.eq(self.frac)
        with m.If(valid):
            m.d.sync += self.y.eq(total)
        return m


class ScalarUnit(wiring.Component):
    """Serves the rows in turn, one per cycle: normalise, look up, multiply, normalise.

    *Latency* ``rows + SCALAR_LATENCY`` cycles from ``start`` to ``done``; *throughput* one row
    per cycle. Rows without work get a result too, which nobody takes.

    Parameters
    ----------
    config : DeviceConfig

    Members
    -------
    start : In(1), op : In(ScalarOp)
        Begin; ``op``, ``kv``, ``eps`` and the operands must stay until ``done``.
    kv : In(1)
        SCALE rounds the maximum up to the sf8 grid.
    eps : In(40)
        RMS: round(K * eps * 2**28).
    operands : In(array of rows scalar_operand)
    result : Out(scalar_result)
        One row's result, while ``result.valid``.
    done : Out(1)
        Pulse, with the last row's result.
    """

    def __init__(self, config: DeviceConfig) -> None:
        self._config = config
        super().__init__(
            {
                "start": In(1),
                "op": In(ScalarOp),
                "kv": In(1),
                "eps": In(40),
                "operands": In(scalar_operand()).array(config.rows),
                "result": Out(scalar_result(config)),
                "done": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Return the hardware."""
        m = Module()
        row_bits = bits_for_range(self._config.rows)
        # Row number and validity travel along; stage 0 is the selected operand.
        self._valid = [Signal(name=f"valid_{i}") for i in range(SCALAR_LATENCY)]
        self._row = [Signal(row_bits, name=f"row_{i}") for i in range(SCALAR_LATENCY)]
        operand = self._build_select(m)
        norm, n = self._build_normalise(m, operand)
        self._build_round(m, operand, norm, n)
        looked_up = self._build_tables(m)
        self._build_product(m, looked_up)
        return m

    def _delay(self, m: Module, value: Value, start: int, stop: int, name: str) -> Signal:
        """Carry a value from stage `start` to stage `stop`."""
        for stage in range(start, stop):
            later = Signal.like(value, name=f"{name}_{stage + 1}", reset_less=True)
            with m.If(self._valid[stage]):
                m.d.sync += later.eq(value)
            value = later
        return value

    def _build_select(self, m: Module) -> Any:
        """Stage 0: one row's operand."""
        rows = self._config.rows
        active = Signal()
        row = Signal(bits_for_range(rows))
        operand = Signal(scalar_operand(), reset_less=True)
        for stage in range(1, SCALAR_LATENCY):
            m.d.sync += self._valid[stage].eq(self._valid[stage - 1])
            with m.If(self._valid[stage - 1]):
                m.d.sync += self._row[stage].eq(self._row[stage - 1])
        m.d.sync += self._valid[0].eq(active)
        with m.If(self.start):
            m.d.sync += [active.eq(1), row.eq(0)]
        with m.If(active):
            m.d.sync += [self._row[0].eq(row), row.eq(row + 1)]
            with m.Switch(row):
                for index, candidate in enumerate(self.operands):
                    with m.Case(index):
                        m.d.sync += operand.eq(candidate)
            with m.If(row == rows - 1):
                m.d.sync += active.eq(0)
        return operand

    def _build_normalise(self, m: Module, operand: Any) -> tuple[Signal, Signal]:
        """Stages 0 to 2: the value whose scale is wanted, its leading one moved to the top."""
        value = Signal(VALUE_BITS, reset_less=True)
        wanted = Signal(VALUE_BITS)
        eps = Signal(40)
        m.d.comb += eps.eq(self.eps >> (operand.sh << 1))
        with m.Switch(self.op):
            with m.Case(ScalarOp.SCALE):
                m.d.comb += wanted.eq(operand.m_scope)
            with m.Case(ScalarOp.RMS):
                m.d.comb += wanted.eq(operand.squares + eps)
            with m.Default():
                m.d.comb += wanted.eq(operand.total)
        floor = Signal(4)
        m.d.comb += floor.eq(Mux((self.op == ScalarOp.SCALE) & self.kv, 8, 1))
        with m.If(self._valid[0]):
            m.d.sync += value.eq(Mux(wanted < floor, floor, wanted))
        shifted, count = normalise(m, value, "leading")
        norm = Signal(VALUE_BITS, reset_less=True)
        n = Signal(6, reset_less=True)
        with m.If(self._valid[1]):
            m.d.sync += [norm.eq(shifted), n.eq(VALUE_BITS - count)]
        return norm, n

    def _build_round(self, m: Module, operand: Any, norm: Signal, n: Signal) -> None:
        """Stages 2 to 3: 16-bit mantissa (rounded up for scales), base of the exponent."""
        # The operand moves on to the next row meanwhile.
        late = self._delay(m, operand, 0, 2, "operand")
        top, rest = norm[-16:], norm[:-16].any()
        top4, rest4 = norm[-4:], norm[:-4].any()
        up16, up4 = Signal(17), Signal(5)
        carry = Signal()
        m.d.comb += [
            up16.eq(top + rest),
            up4.eq(top4 + rest4),
            carry.eq(Mux(self.kv, up4[4], up16[16])),
        ]
        mant = Signal(16, reset_less=True)
        base = Signal(signed(10), reset_less=True)
        n3 = Signal(6, reset_less=True)
        sf8 = Signal(8, reset_less=True)
        with m.If(self._valid[2]):
            m.d.sync += n3.eq(n)
            with m.Switch(self.op):
                with m.Case(ScalarOp.SCALE):
                    m.d.sync += base.eq(n - 16 + carry)
                    m.d.sync += sf8.eq(Cat(up4[:3], (n - 4 + carry)[:5]))
                    with m.If(carry):
                        m.d.sync += mant.eq(fm.MANTISSA_ONE)
                    with m.Elif(self.kv):
                        m.d.sync += mant.eq(up4 << 12)
                    with m.Else():
                        m.d.sync += mant.eq(up16)
                with m.Case(ScalarOp.RMS):
                    m.d.sync += mant.eq(top)
                    m.d.sync += base.eq(late.e - 16 - ((n - 1) >> 1) - late.sh)
                with m.Default():
                    constant = fm.RECIP_LOG2 + fm.PROB_DENOMINATOR_LOG2 - 16
                    m.d.sync += mant.eq(top)
                    m.d.sync += base.eq((late.gap >> fm.EXP_FRAC) - n - constant)
        self._mant, self._base, self._n, self._sf8 = mant, base, n3, sf8
        self._late = late

    def _build_tables(self, m: Module) -> tuple[Signal, Signal]:
        """Stages 3 to 5: reciprocal or inverse square root, and the factor it is multiplied by."""
        m.submodules.recip = recip = LinearRom(RECIP)
        m.submodules.rsqrt = rsqrt = LinearRom(RSQRT)
        m.submodules.exp2 = exp2 = Rom(16, [int(value) for value in T2])
        late = self._delay(m, self._late, 2, 3, "operand_late")
        rms = Signal()
        odd = Signal()
        mant = self._mant
        m.d.comb += [
            rms.eq(self.op == ScalarOp.RMS),
            odd.eq(~self._n[0]),
            recip.en.eq(self._valid[3] & ~rms),
            recip.segment.eq(mant[8:15]),
            recip.frac.eq(mant[:8]),
            rsqrt.en.eq(self._valid[3] & rms),
            rsqrt.segment.eq(Cat(mant[8:15], odd)),
            rsqrt.frac.eq(mant[:8]),
            exp2.r_en.eq(self._valid[3] & (self.op == ScalarOp.PROB)),
            exp2.r_addr.eq(late.gap[: fm.EXP_FRAC]),
        ]
        mh = self._delay(m, late.mh, 3, 4, "mh")
        other = Signal(16, reset_less=True)
        with m.If(self._valid[4]):
            m.d.sync += other.eq(Mux(rms, mh, exp2.r_data))
        table = Signal(16)
        m.d.comb += table.eq(Mux(rms, rsqrt.y, recip.y))
        return table, other

    def _build_product(self, m: Module, looked_up: tuple[Signal, Signal]) -> None:
        """Stages 5 to 8: product, normalised to 16 bits (floored)."""
        table, other = looked_up
        product = Signal(32, reset_less=True)
        with m.If(self._valid[5]):
            m.d.sync += product.eq(table * other)
        rec = self._delay(m, table, 5, 7, "rec")
        mant = self._delay(m, self._mant, 3, 7, "mant")
        base = self._delay(m, self._base, 3, 7, "base")
        n = self._delay(m, self._n, 3, 7, "n")
        sf8 = self._delay(m, self._sf8, 3, 7, "sf8")
        # Stage 7: both factors are at least 2**14.98, so at most two zeros lead.
        top = Signal(16, reset_less=True)
        extra = Signal(5, reset_less=True)
        with m.If(self._valid[6]):
            with m.If(product[31]):
                m.d.sync += [top.eq(product[16:]), extra.eq(16)]
            with m.Elif(product[30]):
                m.d.sync += [top.eq(product[15:]), extra.eq(15)]
            with m.Else():
                m.d.sync += [top.eq(product[14:]), extra.eq(14)]
        result = self.result
        scale = self.op == ScalarOp.SCALE
        m.d.sync += [result.valid.eq(self._valid[7]), self.done.eq(0)]
        with m.If(self._valid[7]):
            m.d.sync += [
                result.row.eq(self._row[7]),
                result.op.eq(self.op),
                result.mant.eq(Mux(scale, mant, top)),
                result.exp.eq(Mux(scale, base, base + extra)),
                result.rec.eq(rec),
                result.n.eq(n),
                result.sf8.eq(sf8),
                self.done.eq(self._row[7] == self._config.rows - 1),
            ]
