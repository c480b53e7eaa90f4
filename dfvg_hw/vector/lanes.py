"""The arithmetic of one row of the vector unit: scale, find maxima, quantise."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from ..common.arith import clamp, rshr, sat32, tree_sum
from ..common.memory import Ram
from ..config import GROUP, DeviceConfig
from ..numerics import formats as fm
from .bits import bit_length
from .passes import STAGES, PassKind, beat
from .scalar import ScalarOp, scalar_result

__all__ = ["SQUARES_BITS", "RowLanes"]

SQUARES_BITS = 45
"""Sum of up to 2**14 squares of 16-bit values, and the epsilon."""


def _maximum(m: Module, values: list[Value], name: str) -> Value:
    """Largest of unsigned `values`, as a balanced tree."""
    depth = 0
    while len(values) > 1:
        level = []
        for index in range(0, len(values) - 1, 2):
            a, b = values[index], values[index + 1]
            top = Signal(max(len(a), len(b)), name=f"{name}_{depth}_{index // 2}")
            m.d.comb += top.eq(Mux(a > b, a, b))
            level.append(top)
        values = level + values[len(level) * 2 :]
        depth += 1
    return values[0]


class RowLanes(wiring.Component):
    """``lanes`` elements per cycle of one row, in the three kinds of pass (`PassKind`).

    Scale (every kind): ``z = sat32(rshr(v * multiplier, shift))``; the multiplier is the gain of
    the element, 1 without gain, or the mantissa of the embedding row.
    MAX: ``m_group = max |z|`` per group, to a small memory; ``m_scope`` and ``m_raw = max |v|``.
    QUANT: ``k`` = largest in 0..15 with ``m_group << k <= m_scope`` (0 for K and V), then
    ``q = clamp(rshr(z * rec, max(0, 24 + e - k)), -127, 127)``, and the sum of ``(v >> sh)**2``.
    EMBED: ``z`` goes back to vector memory.

    *Latency* from the word in stage 0 to ``q`` 5 cycles, to ``z`` 3; *throughput* one word per
    cycle, no back-pressure. All registers are gated by the row's ``valid`` and the stage's.
    Data registers are not reset: a pass starts with ``start``.

    Parameters
    ----------
    config : DeviceConfig

    Members
    -------
    stages, issue : In
        From `PassIssuer`.
    valid : In(1)
        The row takes part.
    v : In(32 * lanes), gain : In(16 * lanes)
        Operands of stage 0.
    gain_en : In(1), gain_frac : In(4)
        Static during a pass.
    kv : In(1), rms : In(1)
        No group exponents; sum squares. Static during a pass.
    embed_set : In(1), embed_mult : In(12), embed_shift : In(6)
        The embedding row's scale.
    result : In(scalar_result)
        Scale of the scope (`ScalarOp.SCALE`), for this row if ``result_en``.
    z : Out(32 * lanes)
        Valid with stage 3.
    q : Out(8 * lanes), group_shift : Out(4)
        Valid with stage 5; ``group_shift`` = 15 - k of the word's group.
    m_scope : Out(32), squares : Out(SQUARES_BITS), mh : Out(16), e : Out(signed(8)), sh : Out(5)
        For the scalar unit, valid when the pass is done.
    """

    def __init__(self, config: DeviceConfig) -> None:
        self._config = config
        lanes = config.lanes
        super().__init__(
            {
                "stages": In(beat(config)).array(STAGES),
                "issue": In(beat(config)),
                "valid": In(1),
                "v": In(32 * lanes),
                "gain": In(16 * lanes),
                "gain_en": In(1),
                "gain_frac": In(4),
                "kv": In(1),
                "rms": In(1),
                "embed_set": In(1),
                "embed_mult": In(12),
                "embed_shift": In(6),
                "result_en": In(1),
                "result": In(scalar_result(config)),
                "z": Out(32 * lanes),
                "q": Out(8 * lanes),
                "group_shift": Out(4),
                "m_scope": Out(32),
                "squares": Out(SQUARES_BITS),
                "mh": Out(16),
                "e": Out(signed(8)),
                "sh": Out(5),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Return the hardware."""
        m = Module()
        lanes = self._config.lanes
        self._on = []  # per stage: this row has a word there
        for index in range(STAGES):
            on = Signal(name=f"on_{index}")
            m.d.comb += on.eq(self.stages[index].valid & self.valid)
            self._on.append(on)
        self._z = [Signal(signed(32), name=f"z_{i}", reset_less=True) for i in range(lanes)]
        self._v1 = [Signal(signed(32), name=f"v1_{i}", reset_less=True) for i in range(lanes)]
        self._build_scale(m)
        lane_max = self._build_lane_max(m)
        self._build_maxima(m, lane_max)
        self._build_squares(m)
        shift = self._build_group_exponent(m)
        self._build_quantise(m, shift)
        return m

    def _build_scale(self, m: Module) -> None:
        """Stages 0 to 3: multiply, shift with rounding, saturate."""
        mult = Signal(12, reset_less=True)
        embed_shift = Signal(6, reset_less=True)
        shift = Signal(6)
        embed = self.stages[0].kind == PassKind.EMBED
        with m.If(self.embed_set):
            m.d.sync += [mult.eq(self.embed_mult), embed_shift.eq(self.embed_shift)]
        m.d.comb += shift.eq(
            Mux(
                self.stages[2].kind == PassKind.EMBED,
                embed_shift,
                Mux(self.gain_en, self.gain_frac, 0),
            )
        )
        for i, z in enumerate(self._z):
            gain = Signal(signed(16), name=f"gain_{i}")
            factor = Signal(signed(16), name=f"factor_{i}", reset_less=True)
            product = Signal(signed(48), name=f"product_{i}", reset_less=True)
            m.d.comb += gain.eq(Mux(self.gain_en, self.gain.word_select(i, 16), 1).as_signed())
            with m.If(self._on[0]):
                m.d.sync += [
                    self._v1[i].eq(self.v.word_select(i, 32)),
                    factor.eq(Mux(embed, mult, gain)),
                ]
            with m.If(self._on[1]):
                m.d.sync += product.eq(self._v1[i] * factor)
            rounded = rshr(m, product, shift, f"rounded_{i}")
            with m.If(self._on[2]):
                m.d.sync += z.eq(sat32(m, rounded, f"scaled_{i}"))
        m.d.comb += self.z.eq(Cat(self._z))

    def _magnitude(self, m: Module, value: Value, name: str) -> Signal:
        result = Signal(32, name=name)
        m.d.comb += result.eq(Mux(value[31], -value, value))
        return result

    def _build_lane_max(self, m: Module) -> Signal:
        """Stages 3 to 5: largest magnitude of a word."""
        sizes = []
        for i, z in enumerate(self._z):
            size = Signal(32, name=f"size_{i}", reset_less=True)
            with m.If(self._on[3] & (self.stages[3].kind == PassKind.MAX)):
                m.d.sync += size.eq(self._magnitude(m, z, f"magnitude_{i}"))
            sizes.append(size)
        lane_max = Signal(32, reset_less=True)
        with m.If(self._on[4] & (self.stages[4].kind == PassKind.MAX)):
            m.d.sync += lane_max.eq(_maximum(m, sizes, "widest"))
        return lane_max

    def _build_maxima(self, m: Module, lane_max: Signal) -> None:
        """Stage 5: maxima of group and scope; stage 2: maximum before the gain."""
        config, end = self._config, self.stages[5]
        group_max = Signal(32, reset_less=True)
        now = Signal(32)
        is_max = Signal()
        m.submodules.group_max = ram = Ram(32, config.vm_depth // GROUP, disjoint=True)
        m.d.comb += [
            is_max.eq(self._on[5] & (end.kind == PassKind.MAX)),
            now.eq(Mux(end.first | (lane_max > group_max), lane_max, group_max)),
            ram.w_en.eq(is_max & end.last),
            ram.w_addr.eq(end.group),
            ram.w_data.eq(now),
            # Read with the group's first word, in use one stage later: see _build_group_exponent.
            ram.r_en.eq(
                self.issue.valid
                & self.issue.first
                & self.valid
                & (self.issue.kind == PassKind.QUANT)
            ),
            ram.r_addr.eq(self.issue.group),
        ]
        self._group_max = ram.r_data
        with m.If(is_max):
            m.d.sync += group_max.eq(now)
            with m.If(end.start | (lane_max > self.m_scope)):
                m.d.sync += self.m_scope.eq(lane_max)
        raw_max = Signal(32, reset_less=True)
        m_raw = Signal(32, reset_less=True)
        raw = [self._magnitude(m, v, f"raw_{i}") for i, v in enumerate(self._v1)]
        with m.If(self._on[1] & self.rms & (self.stages[1].kind == PassKind.MAX)):
            m.d.sync += raw_max.eq(_maximum(m, raw, "raw"))
        with m.If(self._on[2] & self.rms & (self.stages[2].kind == PassKind.MAX)):
            with m.If(self.stages[2].start | (raw_max > m_raw)):
                m.d.sync += m_raw.eq(raw_max)
        length = bit_length(m, m_raw, "raw_length")
        with m.If(self.result_en & (self.result.op == ScalarOp.SCALE)):
            m.d.sync += self.sh.eq(Mux(length > 15, length - 15, 0))

    def _build_squares(self, m: Module) -> None:
        """Stages 1 to 5: sum of squares of the operand, shifted down to 16 bits."""
        squares = []
        on = []
        for index in (1, 2, 3):
            flag = Signal(name=f"square_{index}")
            kind = self.stages[index].kind
            m.d.comb += flag.eq(self._on[index] & self.rms & (kind == PassKind.QUANT))
            on.append(flag)
        for i, v in enumerate(self._v1):
            small = Signal(signed(16), name=f"small_{i}", reset_less=True)
            square = Signal(31, name=f"square_of_{i}", reset_less=True)
            with m.If(on[0]):
                m.d.sync += small.eq(v >> self.sh)
            with m.If(on[1]):
                m.d.sync += square.eq(small * small)
            squares.append(square)
        with m.If(on[2]):
            total = tree_sum(m, squares, "squares_sum")
            m.d.sync += self.squares.eq(Mux(self.stages[3].start, 0, self.squares) + total)

    def _build_group_exponent(self, m: Module) -> Signal:
        """Stages 0 to 4: group exponent k and the quantiser's shift, once per group."""
        n, rec_e = Signal(6, reset_less=True), Signal(signed(8), reset_less=True)
        rec = Signal(16, reset_less=True)
        with m.If(self.result_en & (self.result.op == ScalarOp.SCALE)):
            r = self.result
            m.d.sync += [n.eq(r.n), rec_e.eq(r.exp), rec.eq(r.rec), self.mh.eq(r.mant)]
        m.d.comb += self.e.eq(rec_e)
        self._rec = rec
        first = []
        for index in range(4):
            flag = Signal(name=f"first_{index}")
            stage = self.stages[index]
            is_quant = stage.kind == PassKind.QUANT
            m.d.comb += flag.eq(self._on[index] & stage.first & is_quant)
            first.append(flag)
        size1, size2 = Signal(32, reset_less=True), Signal(32, reset_less=True)
        k2, k3 = Signal(5, reset_less=True), Signal(4, reset_less=True)
        shift4 = Signal(6, reset_less=True)
        length = bit_length(m, size1, "group_length")
        over = Signal()
        difference = Signal(signed(7))
        wanted = Signal(signed(10))
        m.d.comb += [
            over.eq((size2 << k2) > self.m_scope),
            difference.eq(k2 - over),
            wanted.eq(fm.RECIP_LOG2 + rec_e - k3),
        ]
        with m.If(first[0]):
            m.d.sync += size1.eq(self._group_max)
        with m.If(first[1]):
            # The scope's maximum is the largest, so the difference is not negative.
            m.d.sync += [size2.eq(size1), k2.eq(n - length)]
        with m.If(first[2]):
            limit = clamp(m, difference, 0, fm.GROUP_SHIFT_MAX, "limit")
            k = Mux(size2 == 0, fm.GROUP_SHIFT_MAX, limit)
            m.d.sync += k3.eq(Mux(self.kv, 0, k))
        with m.If(first[3]):
            m.d.sync += [
                shift4.eq(Mux(wanted < 0, 0, wanted)),
                self.group_shift.eq(fm.GROUP_SHIFT_MAX - k3),
            ]
        return shift4

    def _build_quantise(self, m: Module, shift: Signal) -> None:
        """Stages 3 to 5: multiply by the reciprocal, shift with rounding, clamp."""
        q = []
        for i, z in enumerate(self._z):
            product = Signal(signed(49), name=f"scaled_product_{i}", reset_less=True)
            result = Signal(signed(8), name=f"q_{i}", reset_less=True)
            with m.If(self._on[3] & (self.stages[3].kind == PassKind.QUANT)):
                m.d.sync += product.eq(z * self._rec)
            rounded = rshr(m, product, shift, f"quotient_{i}")
            with m.If(self._on[4] & (self.stages[4].kind == PassKind.QUANT)):
                m.d.sync += result.eq(clamp(m, rounded, -fm.Q_MAX, fm.Q_MAX, f"clamped_{i}"))
            q.append(result)
        m.d.comb += self.q.eq(Cat(q))
