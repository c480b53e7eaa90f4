"""Everything in the vector unit that exists once per row."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Mux, Signal, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from ..attention.score_store import ScoreStore
from ..attention.softmax import SOFTMAX_STAGES, SoftmaxLanes, softmax_beat
from ..common.arith import bits_for_range
from ..config import PAGE, DeviceConfig
from ..head.lse import LEVEL_BITS, SUM_BITS, LogSumExp
from ..head.topk import TopK, ranked
from ..interfaces import (
    PAGE_BITS,
    act_write,
    kv_tail_write,
    rope_write,
    scale_write,
    shift_write,
    vm_read,
    vm_write,
)
from ..isa import QuantMode
from .command import command
from .lanes import RowLanes
from .memory import VectorMemory
from .passes import STAGES, PassKind, beat
from .ports import logit_port, score_port
from .scalar import ScalarOp, scalar_operand, scalar_result

__all__ = ["VectorRow", "row_control"]


def row_control(config: DeviceConfig) -> wiring.Signature:
    """What the shared part of the vector unit tells all rows.

    ``issue``, ``stages``, ``gain`` belong to QUANT and EMBED, ``soft_*`` to SOFTMAX, ``load_*`` to
    the word loader (for the row that ``load_row`` names), ``see_*`` to visibility, ``result`` to
    the scalar unit, whose result is for scope ``head``.
    """
    words = bits_for_range(config.vm_depth // config.lanes)
    return wiring.Signature(
        {
            "cmd": Out(command(config)),
            "kv": Out(1),
            "head": Out(8),
            "issue": Out(beat(config)),
            "stages": Out(beat(config)).array(STAGES),
            "gain": Out(16 * config.lanes),
            "soft_issue": Out(softmax_beat(config)),
            "soft_stages": Out(softmax_beat(config)).array(SOFTMAX_STAGES),
            "soft_head": Out(5),
            "soft_head_en": Out(1),
            "soft_capture": Out(1),
            "result": Out(scalar_result(config)),
            "load_row": Out(bits_for_range(config.rows)),
            "vm_en": Out(1),
            "vm_addr": Out(words),
            "vm_data": Out(32 * config.lanes),
            "embed_set": Out(1),
            "embed_mult": Out(12),
            "embed_shift": Out(6),
            "rope": Out(rope_write()),
            "see_en": Out(1),
            "see_row": Out(bits_for_range(config.rows)),
            "see_page": Out(PAGE_BITS),
            "see_bits": Out(PAGE),
            "rank": Out(bits_for_range(config.topk)),
        }
    )


class VectorRow(wiring.Component):
    """One row: vector memory, lanes, scores and softmax, top-k and log-sum-exp.

    All writes to other blocks are registered here: they leave one cycle after the stage that
    makes them.

    Parameters
    ----------
    config : DeviceConfig
    index : int
        The row's number.

    Members
    -------
    control : In(row_control)
    valid : In(1), pages : In(PAGE_BITS)
        The row takes part in the pass, with so many KV pages.
    vm_w, vm_r, act_w, shift_w, scale_w, rope_w, k_tail, v_tail
        As in `VectorEngine`.
    score, logit : In
        The row's scores and logits.
    operand : Out(scalar_operand)
    level, total, entry : Out
        For the head: log-sum-exp, and the entry of rank ``control.rank``.
    collision : Out(1)
    """

    def __init__(self, config: DeviceConfig, index: int) -> None:
        self._config, self._index = config, index
        super().__init__(
            {
                "control": In(row_control(config)),
                "valid": In(1),
                "pages": In(PAGE_BITS),
                "vm_w": In(vm_write()),
                "vm_r": In(vm_read()),
                "act_w": Out(act_write(config)),
                "shift_w": Out(shift_write(config)),
                "scale_w": Out(scale_write()),
                "rope_w": Out(rope_write()),
                "k_tail": Out(kv_tail_write(config)),
                "v_tail": Out(kv_tail_write(config)),
                "score": In(score_port()),
                "logit": In(logit_port()),
                "operand": Out(scalar_operand()),
                "level": Out(signed(LEVEL_BITS)),
                "total": Out(SUM_BITS),
                "entry": Out(ranked()),
                "collision": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Return the hardware."""
        m = Module()
        control = self.control
        mine, loaded = Signal(), Signal()
        m.d.comb += [
            mine.eq(control.result.valid & (control.result.row == self._index) & self.valid),
            loaded.eq(control.load_row == self._index),
        ]
        lanes = self._build_lanes(m, mine, loaded)
        softmax = self._build_softmax(m)
        self._build_head(m)
        self._build_operand(m, lanes, softmax)
        self._build_operand_writes(m, lanes, softmax)
        self._build_scale_writes(m, mine)
        self._build_tails(m, lanes, mine)
        self._build_rope(m, loaded)
        return m

    def _build_lanes(self, m: Module, mine: Signal, loaded: Signal) -> RowLanes:
        """Vector memory and the lanes that work on it."""
        control = self.control
        m.submodules.memory = memory = VectorMemory(self._config)
        m.submodules.lanes = lanes = RowLanes(self._config)
        connect(m, memory.mm_w, flipped(self.vm_w))
        connect(m, memory.mm_r, flipped(self.vm_r))
        back = control.stages[3]
        write_back = Signal()
        m.d.comb += [
            self.collision.eq(memory.collision),
            memory.r_en.eq(control.issue.valid & self.valid),
            memory.r_addr.eq(control.issue.addr),
            write_back.eq(back.valid & self.valid & (back.kind == PassKind.EMBED)),
            memory.w_en.eq(write_back | (control.vm_en & loaded)),
            memory.w_addr.eq(Mux(write_back, back.addr, control.vm_addr)),
            memory.w_data.eq(Mux(write_back, lanes.z, control.vm_data)),
            lanes.issue.eq(control.issue),
            lanes.valid.eq(self.valid),
            lanes.v.eq(memory.r_data),
            lanes.gain.eq(control.gain),
            lanes.gain_en.eq(control.cmd.gain),
            lanes.gain_frac.eq(control.cmd.gain_frac),
            lanes.kv.eq(control.kv),
            lanes.rms.eq(control.cmd.rms),
            lanes.embed_set.eq(control.embed_set & loaded),
            lanes.embed_mult.eq(control.embed_mult),
            lanes.embed_shift.eq(control.embed_shift),
            lanes.result_en.eq(mine),
            lanes.result.eq(control.result),
        ]
        for ours, theirs in zip(lanes.stages, control.stages, strict=True):
            m.d.comb += ours.eq(theirs)
        return lanes

    def _build_softmax(self, m: Module) -> SoftmaxLanes:
        """Score memory and the softmax lanes that read it."""
        control = self.control
        m.submodules.store = store = ScoreStore(self._config)
        m.submodules.softmax = softmax = SoftmaxLanes(self._config)
        read, part = control.soft_issue, Signal()
        m.d.comb += [
            part.eq(read.valid & self.valid & (read.page < self.pages)),
            store.valid.eq(self.score.valid),
            store.score.eq(self.score.payload),
            store.see_en.eq(control.see_en & (control.see_row == self._index)),
            store.see_page.eq(control.see_page),
            store.see_bits.eq(control.see_bits),
            store.r_en.eq(part),
            store.r_addr.eq(read.addr),
            store.page_en.eq(part & read.first),
            store.page_addr.eq(read.block),
            store.head_en.eq(control.soft_head_en & self.valid),
            store.head_addr.eq(control.soft_head),
            softmax.valid.eq(self.valid),
            softmax.pages.eq(self.pages),
            softmax.capture.eq(control.soft_capture),
            softmax.maxima.eq(store.head_data),
            softmax.scores.eq(store.r_data),
            softmax.page_max.eq(store.page_data),
        ]
        for ours, theirs in zip(softmax.stages, control.soft_stages, strict=True):
            m.d.comb += ours.eq(theirs)
        return softmax

    def _build_head(self, m: Module) -> None:
        m.submodules.topk = topk = TopK(self._config)
        m.submodules.lse = lse = LogSumExp()
        m.d.comb += [
            topk.valid.eq(self.logit.valid),
            topk.logit.eq(self.logit.payload),
            topk.rank.eq(self.control.rank),
            self.entry.eq(topk.entry),
            lse.valid.eq(self.logit.valid),
            lse.logit.eq(self.logit.payload),
            self.level.eq(lse.level),
            self.total.eq(lse.total),
        ]

    def _build_operand(self, m: Module, lanes: RowLanes, softmax: SoftmaxLanes) -> None:
        m.d.comb += [
            self.operand.m_scope.eq(lanes.m_scope),
            self.operand.squares.eq(lanes.squares),
            self.operand.mh.eq(lanes.mh),
            self.operand.e.eq(lanes.e),
            self.operand.sh.eq(lanes.sh),
            self.operand.total.eq(softmax.total),
            self.operand.gap.eq(softmax.gap),
        ]

    def _build_operand_writes(self, m: Module, lanes: RowLanes, softmax: SoftmaxLanes) -> None:
        """Activation memory and group shifts, from QUANT or SOFTMAX."""
        control = self.control
        quant, soft = control.stages[5], control.soft_stages[4]
        to_act = Signal()
        m.d.comb += to_act.eq(
            quant.valid & self.valid & (quant.kind == PassKind.QUANT) & ~control.kv
        )
        m.d.sync += [
            self.act_w.en.eq(to_act | softmax.q_en),
            self.shift_w.en.eq((to_act & quant.first) | (softmax.q_en & soft.first)),
        ]
        with m.If(to_act):
            m.d.sync += [
                self.act_w.addr.eq(quant.dest),
                self.act_w.data.eq(lanes.q),
                self.shift_w.group.eq(quant.dest_group),
                self.shift_w.shift.eq(lanes.group_shift),
            ]
        with m.Elif(softmax.q_en):
            m.d.sync += [
                self.act_w.addr.eq(soft.dest),
                self.act_w.data.eq(softmax.q),
                self.shift_w.group.eq(soft.dest_group),
                self.shift_w.shift.eq(softmax.group_shift),
            ]

    def _build_scale_writes(self, m: Module, mine: Signal) -> None:
        """Row scales, from results of the scalar unit that are final."""
        control, result = self.control, self.control.result
        final = Signal()
        with m.If(result.op == ScalarOp.SCALE):
            m.d.comb += final.eq(~control.kv & ~control.cmd.rms)
        with m.Else():
            m.d.comb += final.eq(1)
        m.d.sync += self.scale_w.en.eq(mine & final)
        with m.If(mine & final):
            m.d.sync += [
                self.scale_w.index.eq(control.cmd.scale + control.head),
                self.scale_w.mant.eq(result.mant),
                self.scale_w.exp.eq(result.exp),
            ]

    def _build_tails(self, m: Module, lanes: RowLanes, mine: Signal) -> None:
        """Keys and values of the row's own token."""
        control, quant = self.control, self.control.stages[5]
        for tail, mode in ((self.k_tail, QuantMode.HEAD_K), (self.v_tail, QuantMode.HEAD_V)):
            chosen = control.kv & (control.cmd.mode == mode)
            write, scale = Signal(name=f"write_{mode.name}"), Signal(name=f"scale_{mode.name}")
            m.d.comb += [
                write.eq(quant.valid & self.valid & (quant.kind == PassKind.QUANT) & chosen),
                scale.eq(mine & chosen & (control.result.op == ScalarOp.SCALE)),
            ]
            m.d.sync += [tail.en.eq(write), tail.scale_en.eq(scale)]
            with m.If(write):
                m.d.sync += [tail.addr.eq(quant.dest), tail.data.eq(lanes.q)]
            with m.If(scale):
                m.d.sync += [tail.head.eq(control.head), tail.scale.eq(control.result.sf8)]

    def _build_rope(self, m: Module, loaded: Signal) -> None:
        rope = self.control.rope
        m.d.sync += self.rope_w.en.eq(rope.en & loaded)
        with m.If(rope.en & loaded):
            m.d.sync += [
                self.rope_w.pair.eq(rope.pair),
                self.rope_w.cos.eq(rope.cos),
                self.rope_w.sin.eq(rope.sin),
            ]
