"""What a row does with its requantised results: the output operations of MM."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Mux, Signal, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from ..common.arith import sat32
from ..config import DeviceConfig
from ..interfaces import logit, rope_write, score, vm_read, vm_write
from ..isa import OutOp
from ..numerics.formats import ACT_FRAC
from .control import OUTPUT_LATENCY, valid_only
from .requant import lane_result
from .rope import RopeUnit
from .swiglu import SigmoidGate

__all__ = ["OutputLane"]

_LAST = OUTPUT_LATENCY - 1
_ROPE_STAGE = 2
_GATE_STAGE = 4


class OutputLane(wiring.Component):
    """Writes results to vector memory, to the score store or to the head.

    STORE and PV write y; ADD adds y to what the element holds; ROPE rotates channel pairs, SWIGLU
    multiplies the second channel of a pair by silu of the first (`numerics.ops`); SCORE and TOPK
    pass y on.

    *Latency* `OUTPUT_LATENCY` from ``valid`` to ``vm_w.en`` for every operation (one less for the
    first half of a ROPE pair), so that instructions of different kinds can follow each other;
    2 cycles less for ``scores`` and ``logits``. *Throughput* one result per cycle; never stalls.
    ADD must not follow a write of the same element within 3 cycles: tokens order such
    instructions. Reset forgets what is under way.

    Parameters
    ----------
    config : DeviceConfig

    Members
    -------
    valid : In(1)
    y : In(signed 32)
    i : In(`lane_result`)
    rope_w : In(`rope_write`)
    vm_w, vm_r : Out(`vm_write`, `vm_read`)
    scores, logits : Out(valid only, `score`, `logit`)
    """

    def __init__(self, config: DeviceConfig) -> None:
        self._config = config
        super().__init__(
            {
                "valid": In(1),
                "y": In(signed(32)),
                "i": In(lane_result(config)),
                "rope_w": In(rope_write()),
                "vm_w": Out(vm_write()),
                "vm_r": Out(vm_read()),
                "scores": Out(valid_only(score())),
                "logits": Out(valid_only(logit())),
            }
        )
        # The result that came `stage` cycles ago; stage 0 is combinational.
        stages, item = range(OUTPUT_LATENCY), lane_result(config)
        self._valid = [Signal(name=f"valid_{s}") for s in stages]
        self._y = [Signal(signed(32), name=f"y_{s}", reset_less=True) for s in stages]
        self._i = [Signal(item, name=f"item_{s}", reset_less=True) for s in stages]

    def elaborate(self, platform: Any) -> Module:
        """Return the hardware."""
        m = Module()
        self._build_outputs(m)
        self._build_stages(m)
        wide = self._build_pairs(m)
        self._build_write(m, wide)
        return m

    def _build_outputs(self, m: Module) -> None:
        """Register scores and logits."""
        for name, out, port in (
            ("score", OutOp.SCORE, self.scores),
            ("logit", OutOp.TOPK, self.logits),
        ):
            hit = Signal(name=f"is_{name}")
            payload = Signal(port.payload.shape(), name=name, reset_less=True)
            m.d.comb += [hit.eq(self.valid & (self.i.out == out)), port.payload.eq(payload)]
            m.d.sync += port.valid.eq(hit)
            tag = self.i.tag[name]
            with m.If(hit):
                m.d.sync += payload.y.eq(self.y)
                m.d.sync += [payload[field].eq(tag[field]) for field, _ in tag.shape()]

    def _build_stages(self, m: Module) -> None:
        """Delay results on their way to vector memory."""
        writes = (self.i.out != OutOp.SCORE) & (self.i.out != OutOp.TOPK)
        m.d.comb += [
            self._valid[0].eq(self.valid & writes),
            self._y[0].eq(self.y),
            self._i[0].eq(self.i),
        ]
        for stage in range(1, OUTPUT_LATENCY):
            before = stage - 1
            m.d.sync += self._valid[stage].eq(self._valid[before])
            with m.If(self._valid[before]):
                m.d.sync += [
                    self._y[stage].eq(self._y[before]),
                    self._i[stage].eq(self._i[before]),
                ]

    def _is(self, stage: int, out: OutOp, odd: int | None = None) -> Any:
        """Whether the result at `stage` is of an operation and the given half of a pair."""
        item = self._i[stage]
        hit = self._valid[stage] & (item.out == out)
        return hit if odd is None else hit & (item.tag.write.odd == odd)

    def _build_pairs(self, m: Module) -> Signal:
        """Operations on channel pairs; return their result, still to be rounded, in the last stage.

        The second half of a pair leaves in the last stage and the first half of a ROPE pair one
        cycle earlier, when the last stage holds its even channel, which writes nothing.
        """
        m.submodules.rope = rope = RopeUnit()
        m.submodules.gate = gate = SigmoidGate()
        wiring.connect(m, wiring.flipped(self.rope_w), rope.rope_w)
        stage = _ROPE_STAGE
        m.d.comb += [
            rope.fetch.eq(self._is(stage - 1, OutOp.ROPE, 1)),
            rope.pair.eq(self._i[stage - 1].tag.write.pair),
            rope.even.eq(self._is(stage, OutOp.ROPE, 0)),
            rope.odd.eq(self._is(stage, OutOp.ROPE, 1)),
            rope.y.eq(self._y[stage]),
            gate.g_valid.eq(self._is(0, OutOp.SWIGLU, 0)),
            gate.g.eq(self._y[0]),
            gate.u_valid.eq(self._is(_GATE_STAGE, OutOp.SWIGLU, 1)),
            gate.u.eq(self._y[_GATE_STAGE]),
        ]
        wide = Signal(signed(64), reset_less=True)
        gated = self._is(_GATE_STAGE + 1, OutOp.SWIGLU, 1)
        halves = self._is(_LAST - 2, OutOp.ROPE, 1) | self._is(_LAST - 1, OutOp.ROPE, 1)
        with m.If(gated):
            m.d.sync += wide.eq(gate.product)
        with m.Elif(halves):
            m.d.sync += wide.eq(rope.sum)
        return wide

    def _build_write(self, m: Module, wide: Signal) -> None:
        """Read for ADD, round, saturate and write."""
        last, item = self._i[_LAST], self._i[_LAST].tag.write
        early, late = Signal(), Signal()
        plain, paired = Signal(), Signal()
        rounded = Signal(signed(64 - ACT_FRAC + 1))
        total = Signal(signed(33))
        base = Signal(signed(32))
        is_add = Signal()
        m.d.comb += [
            self.vm_r.en.eq(self._is(_LAST - 1, OutOp.ADD)),
            self.vm_r.addr.eq(self._i[_LAST - 1].tag.write.vm),
            is_add.eq(last.out == OutOp.ADD),
            paired.eq((last.out == OutOp.ROPE) | (last.out == OutOp.SWIGLU)),
            plain.eq(self._valid[_LAST] & ~paired),
            late.eq(self._valid[_LAST] & paired & item.odd),
            early.eq(self._is(_LAST - 1, OutOp.ROPE, 1)),
            base.eq(Mux(is_add, self.vm_r.data, 0)),
            total.eq(base + self._y[_LAST]),
            rounded.eq((wide >> ACT_FRAC) + wide[ACT_FRAC - 1]),
        ]
        value = Signal(signed(32), name="value", reset_less=True)
        addr = Signal.like(self.vm_w.addr, name="addr", reset_less=True)
        plain_value = sat32(m, total, "plain_value")
        paired_value = sat32(m, rounded, "paired_value")
        m.d.sync += self.vm_w.en.eq(plain | late | early)
        m.d.comb += [self.vm_w.data.eq(value), self.vm_w.addr.eq(addr)]
        with m.If(plain):
            m.d.sync += [value.eq(plain_value), addr.eq(item.vm)]
        with m.Elif(late):
            m.d.sync += [value.eq(paired_value), addr.eq(item.vm)]
        with m.Elif(early):
            m.d.sync += [value.eq(paired_value), addr.eq(self._i[_LAST - 1].tag.write.vm - 1)]
