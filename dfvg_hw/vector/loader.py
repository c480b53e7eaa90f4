"""Unpacks memory words for the vector unit: gains, embedding rows, rotary tables."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value, signed
from amaranth.lib import enum, stream, wiring
from amaranth.lib.wiring import In, Out

from ..common.arith import bits_for_range
from ..config import GROUP, DeviceConfig
from ..interfaces import rope_write, word
from ..numerics import formats as fm

__all__ = ["LoadJob", "WordLoader", "gain_lanes"]


class LoadJob(enum.Enum, shape=2):
    """What the words of a job are."""

    GAIN = 0
    EMBED = 1
    ROPE = 2


def gain_lanes(config: DeviceConfig) -> int:
    """Gains unpacked per cycle: ``lanes``, or as many as a narrow memory word holds."""
    return min(config.lanes, config.bus_bytes // 2)


class WordLoader(wiring.Component):
    """Takes a job's words and writes their contents where they belong.

    GAIN: ``groups * 64`` int16 into the gain memory, shared by all rows.
    EMBED: for each valid row ``groups * 64`` int8, sign-extended into the row's vector memory,
    then one word whose low 16 bits are the row's sf16 scale, decoded to multiplier and shift.
    ROPE: for each valid row ``pairs`` (cos, sin) pairs of int16, cosine in the low half.

    *Throughput* one piece (``lanes`` gains or bytes, or one pair) per cycle while words come,
    plus a cycle per row and per embedding scale. Words are taken one at a time and only as many
    as the job needs; a starved job just waits.

    Parameters
    ----------
    config : DeviceConfig

    Members
    -------
    start : In(1), job : In(LoadJob)
        Begin a job; only while none runs. The inputs below must stay until ``done``.
    groups : In(10), pairs : In(7), vm_word : In, sbase : In(signed(8)), valid : In(rows)
        Sizes; destination in vector memory; shift base of the embedding; rows that take part.
    words : In(stream(word))
    row : Out
        Row that ``vm_en``, ``embed_set`` and ``rope.en`` mean.
    gain_en, gain_addr, gain_data
        Write into the gain memory: one enable per `gain_lanes` gains of a word of ``lanes``.
    gain_words : Out
        Words of the gain memory written since ``start``.
    vm_en, vm_addr, vm_data
        Write into a row's vector memory.
    embed_set, embed_mult, embed_shift
        A row's embedding scale.
    rope : Out(rope_write)
    done : Out(1)
        Pulse, after the last write.
    """

    def __init__(self, config: DeviceConfig) -> None:
        self._config = config
        words = bits_for_range(config.vm_depth // config.lanes)
        super().__init__(
            {
                "start": In(1),
                "job": In(LoadJob),
                "groups": In(10),
                "pairs": In(7),
                "vm_word": In(words),
                "sbase": In(signed(8)),
                "valid": In(config.rows),
                "words": In(stream.Signature(word(config))),
                "row": Out(bits_for_range(config.rows)),
                "gain_en": Out(config.lanes // gain_lanes(config)),
                "gain_addr": Out(words),
                "gain_data": Out(16 * config.lanes),
                "gain_words": Out(words + 1),
                "vm_en": Out(1),
                "vm_addr": Out(words),
                "vm_data": Out(32 * config.lanes),
                "embed_set": Out(1),
                "embed_mult": Out(12),
                "embed_shift": Out(6),
                "rope": Out(rope_write()),
                "done": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Return the hardware."""
        m = Module()
        config = self._config
        self._buffer = Signal(8 * config.bus_bytes, reset_less=True)
        self._in_word = Signal(range(config.bus_bytes + 1))  # pieces left in the buffer
        self._pieces = Signal(17)  # pieces left in the row
        self._index = Signal(16)  # of the piece in the row
        self._active_row = Signal(bits_for_range(config.rows))
        self._piece = Signal()
        self._take_scale = Signal()
        self._fetch = Signal()
        self._build_control(m)
        self._build_writes(m)
        return m

    def _bits(self) -> dict[LoadJob, int]:
        """Bits of a piece."""
        return {
            LoadJob.GAIN: 16 * gain_lanes(self._config),
            LoadJob.EMBED: 8 * self._config.lanes,
            LoadJob.ROPE: 32,
        }

    def _build_sizes(self, m: Module) -> tuple[Signal, Signal]:
        """Pieces of a row and of a word, by the kind of job."""
        config = self._config
        per_row, per_word = Signal(17), Signal.like(self._in_word)
        pieces = {
            LoadJob.GAIN: self.groups * (GROUP // gain_lanes(config)),
            LoadJob.EMBED: self.groups * (GROUP // config.lanes),
            LoadJob.ROPE: self.pairs,
        }
        with m.Switch(self.job):
            for job, bits in self._bits().items():
                with m.Case(job):
                    m.d.comb += per_row.eq(pieces[job])
                    m.d.comb += per_word.eq(8 * config.bus_bytes // bits)
        return per_row, per_word

    def _build_control(self, m: Module) -> None:
        per_row, self._per_word = self._build_sizes(m)
        gain = self.job == LoadJob.GAIN
        row, fetch = self._active_row, self._fetch
        with m.If(fetch):
            m.d.comb += self.words.ready.eq(1)
        with m.FSM(name="load"):
            with m.State("IDLE"):
                m.d.sync += row.eq(0)
                with m.If(self.start):
                    m.next = "ROW"
            with m.State("ROW"):
                m.d.sync += [self._pieces.eq(per_row), self._index.eq(0)]
                # Gains are the same for all rows: there is one turn.
                with m.If(gain | self.valid.bit_select(row, 1)):
                    m.next = "WORD"
                with m.Else():
                    self._next_row(m, gain)
            with m.State("WORD"):
                m.d.comb += fetch.eq(1)
                with m.If(self.words.valid):
                    m.next = "UNPACK"
            with m.State("UNPACK"):
                m.d.comb += self._piece.eq(1)
                m.d.sync += [
                    self._in_word.eq(self._in_word - 1),
                    self._pieces.eq(self._pieces - 1),
                    self._index.eq(self._index + 1),
                ]
                with m.If(self._pieces == 1):
                    with m.If(self.job == LoadJob.EMBED):
                        m.next = "SCALE"
                    with m.Else():
                        self._next_row(m, gain)
                with m.Elif(self._in_word == 1):
                    m.d.comb += fetch.eq(1)
                    with m.If(~self.words.valid):
                        m.next = "WORD"
            with m.State("SCALE"):
                m.d.comb += self.words.ready.eq(1)
                with m.If(self.words.valid):
                    m.d.comb += self._take_scale.eq(1)
                    self._next_row(m, gain)
            with m.State("END"):
                # The last piece's write happens in this cycle.
                m.d.comb += self.done.eq(1)
                m.next = "IDLE"

    def _next_row(self, m: Module, gain: Value) -> None:
        with m.If(gain | (self._active_row == self._config.rows - 1)):
            m.next = "END"
        with m.Else():
            m.d.sync += self._active_row.eq(self._active_row + 1)
            m.next = "ROW"

    def _build_writes(self, m: Module) -> None:
        """Registered writes, one cycle behind the piece."""
        lanes, buffer, bits = self._config.lanes, self._buffer, self._bits()
        is_job = {job: self._piece & (self.job == job) for job in LoadJob}
        m.d.sync += [self.vm_en.eq(0), self.gain_en.eq(0), self.rope.en.eq(0)]
        m.d.sync += self.embed_set.eq(self._take_scale)
        with m.If(self.start):
            m.d.sync += self.gain_words.eq(0)
        with m.Elif(self.gain_en[-1]):
            m.d.sync += self.gain_words.eq(self.gain_words + 1)
        with m.If(self._piece | self._take_scale):
            m.d.sync += self.row.eq(self._active_row)
        with m.If(is_job[LoadJob.GAIN]):
            self._build_gain(m)
        with m.If(is_job[LoadJob.EMBED]):
            values = [Value.cast(buffer[8 * i : 8 * i + 8]).as_signed() for i in range(lanes)]
            m.d.sync += [
                self.vm_en.eq(1),
                self.vm_addr.eq(self.vm_word + self._index),
                buffer.eq(buffer >> bits[LoadJob.EMBED]),
            ]
            for i, value in enumerate(values):
                m.d.sync += self.vm_data.word_select(i, 32).eq(value)
        with m.If(is_job[LoadJob.ROPE]):
            m.d.sync += [
                self.rope.en.eq(1),
                self.rope.pair.eq(self._index),
                self.rope.cos.eq(buffer[:16].as_signed()),
                self.rope.sin.eq(buffer[16:32].as_signed()),
                buffer.eq(buffer >> bits[LoadJob.ROPE]),
            ]
        self._build_reload(m)
        shift = Signal(signed(10))
        scale = self.words.payload
        m.d.comb += shift.eq(self.sbase - scale[fm.SF16_M_BITS : 16])
        with m.If(self._take_scale):
            m.d.sync += [
                self.embed_mult.eq((1 << fm.SF16_M_BITS) + scale[: fm.SF16_M_BITS]),
                self.embed_shift.eq(
                    Mux(shift < 0, 0, Mux(shift > fm.SHIFT_MAX, fm.SHIFT_MAX, shift))
                ),
            ]

    def _build_gain(self, m: Module) -> None:
        """Gains of one piece: a whole word of the gain memory, or a part of one."""
        lanes, narrow, buffer = self._config.lanes, gain_lanes(self._config), self._buffer
        m.d.sync += [
            self.gain_data.eq(Cat([buffer[: 16 * narrow]] * (lanes // narrow))),
            buffer.eq(buffer >> 16 * narrow),
        ]
        if narrow == lanes:
            m.d.sync += [self.gain_en.eq(1), self.gain_addr.eq(self._index)]
        else:
            part = (lanes // narrow).bit_length() - 1
            m.d.sync += [
                self.gain_en.eq(1 << self._index[:part]),
                self.gain_addr.eq(self._index >> part),
            ]

    def _build_reload(self, m: Module) -> None:
        """A word that is taken overrides the shift and the count of the one it replaces."""
        with m.If(self._fetch & self.words.valid):
            m.d.sync += [self._buffer.eq(self.words.payload), self._in_word.eq(self._per_word)]
