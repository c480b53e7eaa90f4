"""The matrix engine: instructions and words in, writes to the rows' vector memories out."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from ..common.arith import bits_for_range
from ..common.pipeline import delayed
from ..config import LANES_PER_CELL, DeviceConfig
from ..interfaces import (
    act_write,
    issue,
    kv_command,
    logit,
    rope_write,
    scale_write,
    score,
    sequence_context,
    shift_write,
    vm_read,
    vm_write,
    word,
)
from .control import LANE_LATENCY, drain_latency, valid_only
from .decoder import Decoder
from .output import OutputLane
from .replay import ReplayBuffer
from .requant import RequantLane
from .row import ArrayRow
from .sequencer import Sequencer

__all__ = ["MatmulEngine"]


class MatmulEngine(wiring.Component):
    """Executes MM instructions: every weight word meets the activations of all rows.

    Words hop from row to row and partial sums from cell to cell, one cycle per hop; the control
    that belongs to them travels alongside, so instructions follow each other without draining
    the array. Row r reports r cycles after row 0. Arithmetic: `numerics.ops` and
    `numerics.attention`, to the last bit. Stream orders: see `Sequencer`.

    *Latency* from an accepted word to the write because of it: ``drain_latency(config)`` for the
    last row, one less per row before it. *Throughput* one word per cycle; between instructions
    that don't wait for a token one cycle is lost (two after one that signals).
    *Back-pressure*: ``words`` and ``issue`` wait, nothing else can. Reset forgets instructions and
    results under way; operands, shifts, scales and tables stay.

    Parameters
    ----------
    config : DeviceConfig

    Members
    -------
    issue : In(stream of `issue`)
        MM instructions, and SYNC for this engine.
    words : In(stream of `word`)
    kv : Out(stream of `kv_command`)
        At the start of every SCORE and PV instruction.
    sequences : In(`sequence_context`), per sequence
        Constant while a SCORE or PV instruction runs.
    head_groups : In(2)
        64-element groups of an attention head, constant during a pass.
    vec_token : In(1)
        A token of the vector unit is there; ``vec_take`` : Out(1) consumes it in that cycle.
    token : Out(1)
        Pulse: all results of a signalling instruction have been written, in all rows.
    idle : Out(1)
        No instruction and no result under way.
    act_w, shift_w, scale_w, rope_w : In, per row
        Writes of the vector unit; they take effect within two cycles.
    vm_w, vm_r : Out(`vm_write`, `vm_read`), per row
    scores, logits : Out(``valid``, ``payload`` `score` or `logit`), per row
        Can't be refused.
    """

    def __init__(self, config: DeviceConfig) -> None:
        self._config = config
        rows = config.rows
        super().__init__(
            {
                "issue": In(stream.Signature(issue())),
                "words": In(stream.Signature(word(config))),
                "kv": Out(stream.Signature(kv_command())),
                "sequences": In(sequence_context(config)).array(config.max_seqs),
                "head_groups": In(2),
                "vec_token": In(1),
                "vec_take": Out(1),
                "token": Out(1),
                "idle": Out(1),
                "act_w": In(act_write(config)).array(rows),
                "shift_w": In(shift_write(config)).array(rows),
                "scale_w": In(scale_write()).array(rows),
                "rope_w": In(rope_write()).array(rows),
                "vm_w": Out(vm_write()).array(rows),
                "vm_r": Out(vm_read()).array(rows),
                "scores": Out(valid_only(score())).array(rows),
                "logits": Out(valid_only(logit())).array(rows),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Return the hardware."""
        m = Module()
        m.submodules.decoder = decoder = Decoder(self._config)
        m.submodules.sequencer = sequencer = Sequencer(self._config)
        m.submodules.replay = replay = ReplayBuffer(self._config)
        self._build_front(m, decoder, sequencer, replay)
        rows = self._build_rows(m, sequencer, replay.word_o)
        self._build_lanes(m, rows)
        self._build_status(m, rows[-1], sequencer, decoder.busy)
        return m

    def _build_front(
        self, m: Module, decoder: Decoder, sequencer: Sequencer, replay: ReplayBuffer
    ) -> None:
        """Connect decoder, sequencer and replay buffer."""
        wiring.connect(m, wiring.flipped(self.issue), decoder.i)
        wiring.connect(m, decoder.o, sequencer.command)
        wiring.connect(m, wiring.flipped(self.words), sequencer.words)
        wiring.connect(m, wiring.flipped(self.kv), sequencer.kv)
        m.d.comb += [
            sequencer.head_groups.eq(self.head_groups),
            sequencer.vec_token.eq(self.vec_token),
            self.vec_take.eq(sequencer.vec_take),
            replay.word_i.eq(self.words.payload),
        ]
        m.d.comb += [
            getattr(replay, name).eq(getattr(sequencer, name))
            for name in ("take", "keep", "replay", "restart")
        ]
        m.d.comb += [
            inner.eq(outer)
            for inner, outer in zip(sequencer.sequences, self.sequences, strict=True)
        ]

    def _skewed(self, m: Module, word: Value) -> Value:
        """Return `word` with the slice of cell c delayed by c cycles."""
        bits = 8 * LANES_PER_CELL
        slices = []
        for cell in range(self._config.cells):
            part = Signal(bits, name=f"slice_{cell}")
            m.d.comb += part.eq(word[cell * bits : (cell + 1) * bits])
            slices.append(delayed(m, part, cell, f"skew_{cell}")[-1])
        return Cat(*slices)

    def _build_rows(self, m: Module, sequencer: Sequencer, word: Value) -> list[ArrayRow]:
        """Chain the array rows."""
        config = self._config
        delay = ArrayRow.beat_delay(config.cells)
        weight, addr = self._skewed(m, word), sequencer.addr
        beat = delayed(m, sequencer.beat, delay, "beat", reset=True)[-1]
        control = delayed(m, sequencer.control, delay, "control")[-1]
        tag = delayed(m, sequencer.tag, delay, "tag")[-1]
        rows = []
        for index in range(config.rows):
            m.submodules[f"row_{index}"] = row = ArrayRow(config)
            m.d.comb += [
                row.weight_i.eq(weight),
                row.addr_i.eq(addr),
                row.beat_i.eq(beat),
                row.control_i.eq(control),
                row.tag_i.eq(tag),
            ]
            wiring.connect(m, wiring.flipped(self.act_w[index]), row.act_w)
            wiring.connect(m, wiring.flipped(self.shift_w[index]), row.shift_w)
            weight, addr = row.weight_o, row.addr_o
            beat, control, tag = row.beat_o, row.control_o, row.tag_o
            rows.append(row)
        return rows

    def _build_lanes(self, m: Module, rows: list[ArrayRow]) -> None:
        """Give every row its requantisation and output lane."""
        for index, row in enumerate(rows):
            m.submodules[f"requant_{index}"] = requant = RequantLane(self._config)
            m.submodules[f"output_{index}"] = output = OutputLane(self._config)
            m.d.comb += [
                requant.valid.eq(row.valid),
                requant.sum.eq(row.sum),
                requant.control.eq(row.control),
                requant.tag.eq(row.tag),
                output.valid.eq(requant.o_valid),
                output.y.eq(requant.y),
                output.i.eq(requant.o),
            ]
            for inner, outer in (
                (requant.scale_w, self.scale_w[index]),
                (output.rope_w, self.rope_w[index]),
                (output.vm_w, self.vm_w[index]),
                (output.vm_r, self.vm_r[index]),
                (output.scores, self.scores[index]),
                (output.logits, self.logits[index]),
            ):
                wiring.connect(m, wiring.flipped(outer), inner)

    def _build_status(
        self, m: Module, last_row: ArrayRow, sequencer: Sequencer, decoding: Value
    ) -> None:
        """Report completion: a token one cycle after the last write, and idleness."""
        drain = drain_latency(self._config) + 1
        flight = Signal(bits_for_range(drain + 1))
        m.d.sync += self.token.eq(
            delayed(m, last_row.marker, LANE_LATENCY, "marker", reset=True)[-1]
        )
        with m.If(sequencer.beat.valid):
            m.d.sync += flight.eq(drain)
        with m.Elif(flight != 0):
            m.d.sync += flight.eq(flight - 1)
        queued = self.issue.valid | decoding | sequencer.busy
        m.d.comb += self.idle.eq(~queued & ~sequencer.beat.valid & (flight == 0))
