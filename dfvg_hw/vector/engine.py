"""The vector unit: everything between two matrix products."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Array, Cat, Module, Mux, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from ..attention.softmax import SoftmaxControl
from ..common.memory import Ram
from ..config import DeviceConfig
from ..head.emit import ChildEmitter
from ..interfaces import (
    PAGE_BITS,
    act_write,
    child_result,
    issue,
    kv_tail_write,
    rope_write,
    row_context,
    scale_write,
    sequence_context,
    shift_write,
    visibility_write,
    vm_read,
    vm_write,
    word,
)
from ..isa import Op
from .loader import LoadJob, WordLoader, gain_lanes
from .passes import PassIssuer, PassKind, group_beats
from .ports import logit_port, score_port
from .quant import QuantControl
from .row import VectorRow, row_control
from .scalar import ScalarOp, ScalarUnit
from .sequencer import Sequencer

__all__ = ["VectorEngine"]


class VectorEngine(wiring.Component):
    """Executes EMBED, ROPE_TABLE, QUANT and SOFTMAX for all rows at once; collects the head.

    One instruction at a time, all rows in lockstep, ``lanes`` elements per cycle and row. Rows
    that aren't valid take no part: nothing of theirs is written.

    Scores and logits are absorbed at one per cycle and row whatever else is going on, and rows
    need not be in step. After the head's last logit the children of each row that wants some are
    sent; ``idle`` stays low until they are.

    *Latency* per instruction: see `dfvg_hw.vector.timing`.

    Parameters
    ----------
    config : DeviceConfig

    Members
    -------
    issue : In(stream(issue)), words : In(stream(word))
        Instructions, and the memory words they consume.
    mm_token : In(1), mm_take : Out(1), token : Out(1)
        A token of MM is available; consume it; give one to MM (pulses).
    rows, sequences : In(arrays)
        Contexts, constant during a pass.
    head_groups : In(2)
        Groups of a padded attention head; for symmetry with the array, not used.
    vm_w, vm_r : In(arrays of rows)
        The array's access to vector memory.
    act_w, shift_w, scale_w, rope_w : Out(arrays of rows)
        Writes into the array's operand, scale and rotary memories.
    k_tail, v_tail : Out(arrays of rows)
        Keys and values of the rows' own tokens.
    scores, logits : In(arrays of rows)
    visibility : In(visibility_write)
    children : Out(child_result)
    idle : Out(1)
        No instruction is waiting or running, and the head has delivered.
    collision : Out(1)
        A program error was seen: see `VectorMemory`. Stays until reset.
    """

    def __init__(self, config: DeviceConfig) -> None:
        self._config = config
        rows = config.rows
        super().__init__(
            {
                "issue": In(stream.Signature(issue())),
                "words": In(stream.Signature(word(config))),
                "mm_token": In(1),
                "mm_take": Out(1),
                "token": Out(1),
                "rows": In(row_context()).array(rows),
                "sequences": In(sequence_context(config)).array(config.max_seqs),
                "head_groups": In(2),
                "vm_w": In(vm_write()).array(rows),
                "vm_r": In(vm_read()).array(rows),
                "act_w": Out(act_write(config)).array(rows),
                "shift_w": Out(shift_write(config)).array(rows),
                "scale_w": Out(scale_write()).array(rows),
                "rope_w": Out(rope_write()).array(rows),
                "k_tail": Out(kv_tail_write(config)).array(rows),
                "v_tail": Out(kv_tail_write(config)).array(rows),
                "scores": In(score_port()).array(rows),
                "logits": In(logit_port()).array(rows),
                "visibility": In(visibility_write(config)),
                "children": Out(child_result(config)),
                "idle": Out(1),
                "collision": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Return the hardware."""
        m = Module()
        config = self._config
        m.submodules.sequencer = self._sequencer = Sequencer(config)
        m.submodules.loader = self._loader = WordLoader(config)
        m.submodules.passes = self._passes = PassIssuer(config)
        m.submodules.quant = self._quant = QuantControl(config)
        m.submodules.softmax = self._softmax = SoftmaxControl(config)
        m.submodules.scalar = self._scalar = ScalarUnit(config)
        m.submodules.emitter = self._emitter = ChildEmitter(config)
        self._valid = Signal(config.rows)
        m.d.comb += self._valid.eq(Cat(row.valid for row in self.rows))
        gain = self._build_gain(m)
        self._build_sequence(m)
        self._build_passes(m)
        pages = self._build_softmax(m)
        self._build_rows(m, gain, pages)
        self._build_head(m)
        return m

    def _build_sequence(self, m: Module) -> None:
        """Instructions, and the end of each part's work."""
        sequencer, loader = self._sequencer, self._loader
        connect(m, flipped(self.issue), sequencer.issue)
        embed_loaded, embed_passed = Signal(), Signal()
        embed = sequencer.cmd.op == int(Op.EMBED)
        m.d.comb += [
            sequencer.mm_token.eq(self.mm_token),
            self.mm_take.eq(sequencer.mm_take),
            self.token.eq(sequencer.token),
            self.idle.eq(~sequencer.busy & ~self._emitter.busy),
            embed_loaded.eq(loader.done & (loader.job == LoadJob.EMBED)),
            embed_passed.eq(self._passes.done & embed),
            self._embed_start.eq(embed_loaded),
            sequencer.done.eq(
                self._quant.done
                | self._softmax.done
                | embed_passed
                | (loader.done & (loader.job == LoadJob.ROPE))
            ),
        ]

    def _build_gain(self, m: Module) -> Ram:
        """The word loader, and the gain memory that all rows read."""
        config, loader, cmd = self._config, self._loader, self._sequencer.cmd
        sequencer = self._sequencer
        connect(m, flipped(self.words), loader.words)
        m.submodules.gains = gains = Ram(
            16 * config.lanes,
            config.vm_depth // config.lanes,
            granularity=16 * gain_lanes(config),
            disjoint=True,  # a pass reads only words that have been written
        )
        self._embed_start = Signal()
        m.d.comb += [
            loader.start.eq(sequencer.gain_start | sequencer.start_embed | sequencer.start_rope),
            loader.groups.eq(cmd.groups),
            loader.pairs.eq(cmd.pairs),
            loader.vm_word.eq(cmd.vm_word),
            loader.sbase.eq(cmd.sbase),
            loader.valid.eq(self._valid),
            gains.w_en.eq(loader.gain_en),
            gains.w_addr.eq(loader.gain_addr),
            gains.w_data.eq(loader.gain_data),
            gains.r_en.eq(self._passes.issue.valid & cmd.gain),
            gains.r_addr.eq(self._passes.gain_addr),
        ]
        with m.Switch(cmd.op):
            with m.Case(int(Op.EMBED)):
                m.d.comb += loader.job.eq(LoadJob.EMBED)
            with m.Case(int(Op.ROPE_TABLE)):
                m.d.comb += loader.job.eq(LoadJob.ROPE)
            with m.Default():
                m.d.comb += loader.job.eq(LoadJob.GAIN)
        return gains

    def _build_passes(self, m: Module) -> None:
        """QUANT's passes and scales; EMBED's one pass."""
        cmd, passes, quant = self._sequencer.cmd, self._passes, self._quant
        group_bits = group_beats(self._config).bit_length() - 1
        embed = Signal()
        m.d.comb += [
            embed.eq(cmd.op == int(Op.EMBED)),
            quant.start.eq(self._sequencer.start_quant),
            quant.cmd.eq(cmd),
            quant.pass_done.eq(passes.done & ~embed),
            passes.start.eq(quant.pass_start | self._embed_start),
            passes.kind.eq(Mux(embed, PassKind.EMBED, quant.kind)),
            passes.groups.eq(Mux(embed, cmd.groups, quant.groups)),
            passes.offset.eq(Mux(embed, 0, quant.offset)),
            passes.vm_word.eq(cmd.vm_word),
            passes.gain.eq(cmd.gain),
            passes.gain_words.eq(self._loader.gain_words),
        ]
        with m.If(~quant.kv):
            m.d.comb += [passes.dest.eq(cmd.act << group_bits), passes.dest_group.eq(cmd.act)]

    def _build_softmax(self, m: Module) -> list[Signal]:
        """SOFTMAX and the scalar unit; returns the rows' numbers of pages."""
        cmd = self._sequencer.cmd
        softmax, scalar, quant = self._softmax, self._scalar, self._quant
        pages = []
        sequence_pages = Array(sequence.pages for sequence in self.sequences)
        longest = Signal(PAGE_BITS)
        with m.If(self._sequencer.start_softmax):
            m.d.sync += longest.eq(self._most_pages(m))
        for index, row in enumerate(self.rows):
            number = Signal(PAGE_BITS, name=f"pages_{index}", reset_less=True)
            with m.If(self._sequencer.start_softmax):
                m.d.sync += number.eq(sequence_pages[row.seq])
            pages.append(number)
        m.d.comb += [
            softmax.start.eq(self._sequencer.start_softmax),
            softmax.gqa.eq(cmd.gqa),
            softmax.act.eq(cmd.act),
            softmax.pages.eq(longest),
            scalar.start.eq(quant.scalar_start | softmax.scalar_start),
            scalar.op.eq(Mux(cmd.op == int(Op.SOFTMAX), ScalarOp.PROB, quant.scalar_op)),
            scalar.kv.eq(quant.kv & (cmd.op == int(Op.QUANT))),
            scalar.eps.eq(cmd.eps),
            quant.scalar_done.eq(scalar.done),
            softmax.scalar_done.eq(scalar.done),
        ]
        return pages

    def _most_pages(self, m: Module) -> Value:
        """Pages of the sequence with most."""
        most: Value = self.sequences[0].pages
        for index in range(1, self._config.max_seqs):
            pages = self.sequences[index].pages
            longer = Signal(PAGE_BITS, name=f"longer_{index}")
            m.d.comb += longer.eq(Mux(pages > most, pages, most))
            most = longer
        return most

    def _build_rows(self, m: Module, gains: Ram, pages: list[Signal]) -> None:
        """The rows, all told the same."""
        control = row_control(self._config).create()
        cmd, loader, softmax = self._sequencer.cmd, self._loader, self._softmax
        is_softmax = cmd.op == int(Op.SOFTMAX)
        told = {
            "cmd": cmd,
            "kv": self._quant.kv & (cmd.op == int(Op.QUANT)),
            "head": Mux(is_softmax, softmax.head, self._quant.head),
            "issue": self._passes.issue,
            "gain": gains.r_data,
            "soft_issue": softmax.issue,
            "soft_head": softmax.head,
            "soft_head_en": softmax.head_en,
            "soft_capture": softmax.capture,
            "result": self._scalar.result,
            "load_row": loader.row,
            "see_en": self.visibility.en,
            "see_row": self.visibility.row,
            "see_page": self.visibility.page,
            "see_bits": self.visibility.bits,
            "rank": self._emitter.rank,
        }
        for name in ("vm_en", "vm_addr", "vm_data", "embed_set", "embed_mult", "embed_shift"):
            told[name] = getattr(loader, name)
        m.d.comb += [getattr(control, name).eq(value) for name, value in told.items()]
        for ours, theirs in ((control.stages, self._passes), (control.soft_stages, softmax)):
            m.d.comb += [a.eq(b) for a, b in zip(ours, theirs.stages, strict=True)]
        for name in ("en", "pair", "cos", "sin"):
            m.d.comb += getattr(control.rope, name).eq(getattr(loader.rope, name))
        collisions = []
        for index in range(self._config.rows):
            row = self._build_row(m, index, control, pages[index])
            collisions.append(row.collision)
        m.d.comb += self.collision.eq(Cat(collisions).any())

    def _build_row(self, m: Module, index: int, control: Any, pages: Signal) -> VectorRow:
        row = VectorRow(self._config, index)
        m.submodules[f"row_{index}"] = row
        connect(m, control, row.control)
        for port in ("vm_w", "vm_r", "act_w", "shift_w", "scale_w", "rope_w", "k_tail", "v_tail"):
            connect(m, flipped(getattr(self, port)[index]), getattr(row, port))
        connect(m, flipped(self.scores[index]), row.score)
        connect(m, flipped(self.logits[index]), row.logit)
        m.d.comb += [
            row.valid.eq(self.rows[index].valid),
            row.pages.eq(pages),
            self._scalar.operands[index].eq(row.operand),
            self._emitter.levels[index].eq(row.level),
            self._emitter.totals[index].eq(row.total),
            self._emitter.entries[index].eq(row.entry),
        ]
        return row

    def _build_head(self, m: Module) -> None:
        """The emitter watches the logits go by."""
        emitter = self._emitter
        for index, port in enumerate(self.logits):
            m.d.comb += [
                emitter.first[index].eq(port.valid & port.payload.first),
                emitter.last[index].eq(port.valid & port.payload.last),
                emitter.want[index].eq(self.rows[index].valid & self.rows[index].children),
            ]
        connect(m, emitter.o, flipped(self.children))
