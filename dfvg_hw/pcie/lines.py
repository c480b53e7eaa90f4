"""Fetches lines from the command ring and the mailboxes, one after another, and checks them."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Array, Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from dfvg_hw.common.arith import bits_for_range
from dfvg_hw.config import DeviceConfig
from dfvg_hw.memory.axi import axi4_write
from dfvg_hw.messages.kinds import MessageType, VerdictFlag, VerdictLine
from dfvg_hw.messages.layout import PAYLOAD_BYTES, struct_layout
from dfvg_hw.messages.line import CRC_OFFSET, LINE_BYTES, TAG_OFFSET
from dfvg_hw.registers import MAILBOX_LINES

from .host_read import HOST_ADDR_BITS, host_request, host_word
from .line import LineShift
from .mailbox import MAILBOX_ADDR_BITS, Mailbox
from .ring_writer import RING_LINES_BITS

__all__ = ["LineFetch", "received"]

LOCK_CYCLES = 1 << 20
"""Cycles that the rest of a verdict may take before other lines go first again."""


def received() -> data.StructLayout:
    """A message and whether it came through the command ring."""
    return data.StructLayout({"message": 8 * PAYLOAD_BYTES, "ring": 1})


class LineFetch(wiring.Component):
    """Mailboxes first, then the command ring; the lines of one verdict are kept together.

    A mailbox line counts once it has the tag that is next in its mailbox; one with another tag is
    left alone, like blank memory. A line of the command ring that the doorbell announces must have
    the right tag. A line with a wrong CRC is dropped: `bad` reports it, and what follows is taken
    as if it had never been.

    *Latency* of a mailbox line: 22 + 64 / `bus_bytes` cycles from its last dword to `o`.

    Parameters
    ----------
    config : DeviceConfig

    Members
    -------
    axi : In(`axi4_write`)
        The mailbox window.
    base, lines, produced : In
        The command ring: bus address, lines as a power of two, doorbell.
    consumed : Out(32)
        Counts a command when it has been carried out, so that the host may then reuse its buffer.
    mail_consumed : Out(32)
        Likewise for the lines of all mailboxes together.
    restart : In(1)
        Pulse: the ring and all mailboxes start again at tag 1.
    request : Out(stream of `host_request`), words : In(stream of `host_word`), failed : In(1)
        Of the host reader, owned while `reading`.
    reading : Out(1)
    o : Out(stream of `received`)
    done : In(1)
        The message last accepted has been carried out; pulse or level.
    bad : Out(1)
        Pulse; `bad_tag` : Out(32) is the tag that was expected.
    """

    def __init__(self, config: DeviceConfig) -> None:
        self._config = config
        self._seqs, self._size = config.max_seqs, config.bus_bytes
        super().__init__(
            {
                "axi": In(axi4_write(addr_bits=MAILBOX_ADDR_BITS, data_bits=8 * self._size)),
                "base": In(HOST_ADDR_BITS),
                "lines": In(RING_LINES_BITS),
                "produced": In(32),
                "consumed": Out(32),
                "mail_consumed": Out(32),
                "restart": In(1),
                "request": Out(stream.Signature(host_request())),
                "words": In(stream.Signature(host_word(self._size))),
                "failed": In(1),
                "reading": Out(1),
                "o": Out(stream.Signature(received())),
                "done": In(1),
                "bad": Out(1),
                "bad_tag": Out(32),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Return the hardware."""
        m = Module()
        m.submodules.mailbox = self._mailbox = Mailbox(self._config)
        m.submodules.shift = self._shift = LineShift(self._size)
        wiring.connect(m, wiring.flipped(self.axi), self._mailbox.axi)
        seqs = self._seqs
        self._seq = Signal(range(seqs))
        self._from_ring, self._spoilt = Signal(), Signal()
        self._beat = Signal(range(LINE_BYTES // self._size + 1))
        self._tag = Signal(32)
        self._ring_tag = Signal(32, init=1)
        self._tags = [Signal(32, init=1, name=f"tag{i}") for i in range(seqs)]
        self._locked, self._lock_ring = Signal(), Signal()
        self._lock_seq = Signal(range(seqs))
        choice, any_mail = self._build_choice(m)
        self._build_lock(m)
        with m.FSM():
            self._add_idle(m, choice, any_mail)
            self._add_fetch(m)
            self._add_check(m)
        with m.If(self.restart):
            m.d.sync += [self.consumed.eq(0), self._ring_tag.eq(1), self._locked.eq(0)]
            m.d.sync += self.mail_consumed.eq(0)
            m.d.sync += [tag.eq(1) for tag in self._tags]
        return m

    def _build_choice(self, m: Module) -> tuple[Signal, Signal]:
        """The first sequence whose next mailbox line has been written."""
        waiting = Signal(self._seqs)
        for seq, tag in enumerate(self._tags):
            own = self._mailbox.arrived[seq * MAILBOX_LINES : (seq + 1) * MAILBOX_LINES]
            place = (tag - 1)[: MAILBOX_LINES.bit_length() - 1]
            allowed = ~self._locked | (~self._lock_ring & (self._lock_seq == seq))
            m.d.comb += waiting[seq].eq(own.bit_select(place, 1) & allowed)
        choice = Signal(range(self._seqs))
        for seq in reversed(range(self._seqs)):
            with m.If(waiting[seq]):
                m.d.comb += choice.eq(seq)
        return choice, waiting.any()

    def _build_lock(self, m: Module) -> None:
        """Give up on a verdict whose rest doesn't come."""
        held = Signal(range(LOCK_CYCLES + 1))
        with m.If(~self._locked):
            m.d.sync += held.eq(0)
        with m.Else():
            m.d.sync += held.eq(held + 1)
            with m.If(held == LOCK_CYCLES):
                m.d.sync += self._locked.eq(0)

    def _add_idle(self, m: Module, choice: Signal, any_mail: Any) -> None:
        ring = Signal()
        m.d.comb += ring.eq(
            (self.produced != self.consumed)
            & (self.lines != 0)
            & (~self._locked | self._lock_ring)
            & ~self.failed
        )
        with m.State("IDLE"):
            m.d.sync += [self._beat.eq(0), self._spoilt.eq(0), self._from_ring.eq(~any_mail)]
            with m.If(self.restart):
                m.next = "IDLE"
            with m.Elif(any_mail):
                m.d.sync += [self._seq.eq(choice), self._tag.eq(Array(self._tags)[choice])]
                m.next = "MAIL"
            with m.Elif(ring):
                m.d.sync += self._tag.eq(self._ring_tag)
                m.next = "REQUEST"

    def _add_fetch(self, m: Module) -> None:
        """Get the 64 bytes."""
        mailbox, shift, beat = self._mailbox, self._shift, self._beat
        beats = LINE_BYTES // self._size
        place = Cat((self._tag - 1)[: MAILBOX_LINES.bit_length() - 1], self._seq)
        line = Signal(bits_for_range(self._seqs * MAILBOX_LINES))
        m.d.comb += [
            line.eq(place),
            mailbox.r_addr.eq(line * beats + beat),
            self.request.payload.address.eq(self.base + ((self.consumed & (self.lines - 1)) << 6)),
            self.request.payload.words.eq(beats),
            shift.word.eq(Mux(self._from_ring, self.words.payload.data, mailbox.r_data)),
        ]
        with m.State("MAIL"):
            # The flag goes before the line is read: a write meanwhile sets it again.
            with m.If(beat == 0):
                m.d.comb += mailbox.clear.eq(1 << line)
            m.d.comb += [mailbox.r_en.eq(1), shift.shift.eq(beat != 0)]
            m.d.sync += beat.eq(beat + 1)
            with m.If(beat == beats):
                m.next = "SEAL"
        with m.State("REQUEST"):
            m.d.comb += [self.request.valid.eq(1), self.reading.eq(1)]
            with m.If(self.request.ready):
                m.next = "RING"
        with m.State("RING"):
            m.d.comb += [
                self.reading.eq(1),
                self.words.ready.eq(1),
                shift.shift.eq(self.words.valid),
            ]
            with m.If(self.words.valid):
                m.d.sync += beat.eq(beat + 1)
                m.d.sync += self._spoilt.eq(self._spoilt | self.words.payload.bad)
                with m.If(beat == beats - 1):
                    m.next = "SEAL"
            with m.Elif(self.failed):
                m.d.sync += self._spoilt.eq(1)
                m.next = "SEAL"
        with m.State("SEAL"):
            m.d.comb += shift.check.eq(1)
            m.next = "CRC"

    def _add_check(self, m: Module) -> None:
        """Judge the line and hand it on."""
        shift = self._shift
        crc = shift.line[8 * CRC_OFFSET : 8 * TAG_OFFSET]
        right_tag, right = Signal(), Signal()
        verdict = data.View(struct_layout(VerdictLine), shift.line[: 8 * PAYLOAD_BYTES])
        is_verdict = shift.line[:8] == MessageType.VERDICT
        last = (verdict.flags & VerdictFlag.LAST) != 0
        m.d.comb += [
            right_tag.eq(shift.line[8 * TAG_OFFSET :] == self._tag),
            right.eq(right_tag & (crc == shift.crc) & ~self._spoilt),
            self.bad_tag.eq(self._tag),
            self.o.payload.message.eq(shift.line[: 8 * PAYLOAD_BYTES]),
            self.o.payload.ring.eq(self._from_ring),
        ]
        with m.State("CRC"):
            with m.If(shift.done):
                with m.If(right):
                    m.next = "HAND_ON"
                with m.Elif(~self._from_ring & ~right_tag):
                    m.next = "IDLE"
                with m.Else():
                    m.d.comb += self.bad.eq(1)
                    m.d.sync += self._locked.eq(0)
                    self._advance(m)
                    m.next = "IDLE"
        with m.State("HAND_ON"):
            m.d.comb += self.o.valid.eq(1)
            with m.If(self.o.ready):
                m.d.sync += [
                    self._locked.eq(is_verdict & ~last),
                    self._lock_ring.eq(self._from_ring),
                    self._lock_seq.eq(self._seq),
                ]
                m.next = "CARRY_OUT"
        with m.State("CARRY_OUT"):
            with m.If(self.done):
                self._advance(m)
                m.next = "IDLE"

    def _advance(self, m: Module) -> None:
        """Expect the next tag where this line came from."""
        following = Mux(self._tag == 0xFFFFFFFF, 1, self._tag + 1)
        with m.If(self._from_ring):
            m.d.sync += [self.consumed.eq(self.consumed + 1), self._ring_tag.eq(following)]
        with m.Else():
            m.d.sync += self.mail_consumed.eq(self.mail_consumed + 1)
            for seq, tag in enumerate(self._tags):
                with m.If(self._seq == seq):
                    m.d.sync += tag.eq(following)
