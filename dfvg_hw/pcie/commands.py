"""Carries out commands: block copies here, everything else in the tree unit."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from dfvg_hw.config import DeviceConfig
from dfvg_hw.memory.axi import axi4_write
from dfvg_hw.memory.reader import ADDRESS_BITS
from dfvg_hw.messages.kinds import EventCode, LoadLine, MessageType, OpenLine
from dfvg_hw.messages.layout import PAYLOAD_BYTES, struct_layout
from dfvg_hw.messages.line import LINE_BYTES

from .bulk import BulkCopy
from .host_read import host_request, host_word
from .lines import received

__all__ = ["CommandEngine", "notice"]

MAX_LOAD = 2 << 20
NO_TOKEN = 0xFFFFFFFF


def notice() -> data.StructLayout:
    """What an EVENT is made of."""
    return data.StructLayout({"code": 8, "info0": 32, "info1": 32})


class CommandEngine(wiring.Component):
    """One command at a time.

    LOAD takes device memory for itself: it asks with `hold`, and starts when no pass runs
    (`quiet`). OPEN and RESYNC fetch their tokens while the tree unit takes them. If host memory
    doesn't answer, tokens are replaced by `NO_TOKEN`, which the tree unit refuses, and a block is
    reported as bad.

    Parameters
    ----------
    config : DeviceConfig

    Members
    -------
    i : In(stream of `received`)
    done : Out(1)
        No command is under way.
    abandon : In(1)
        The tree unit is being reset: drop the tokens of an OPEN.
    commands : Out(stream of 448 bits), tokens : Out(stream of 32 bits)
        To the tree unit.
    request : Out(stream of `host_request`), words : In(stream of `host_word`), failed : In(1)
        Of the host reader.
    hold : Out(1), quiet : In(1)
    axi : Out(`axi4_write`)
        Device memory, in use from `hold` and `quiet` on until `hold` falls.
    notices : Out(stream of `notice`)
    write_error : Out(1)
    """

    def __init__(self, config: DeviceConfig) -> None:
        self._config = config
        size = config.bus_bytes
        super().__init__(
            {
                "i": In(stream.Signature(received())),
                "done": Out(1),
                "abandon": In(1),
                "commands": Out(stream.Signature(8 * PAYLOAD_BYTES)),
                "tokens": Out(stream.Signature(32)),
                "request": Out(stream.Signature(host_request())),
                "words": In(stream.Signature(host_word(size))),
                "failed": In(1),
                "hold": Out(1),
                "quiet": In(1),
                "axi": Out(axi4_write(addr_bits=config.addr_bits, data_bits=8 * size)),
                "notices": Out(stream.Signature(notice())),
                "write_error": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Return the hardware."""
        m = Module()
        m.submodules.bulk = self._bulk = BulkCopy(self._config)
        wiring.connect(m, self._bulk.axi, wiring.flipped(self.axi))
        self._line = line = Signal(8 * PAYLOAD_BYTES, reset_less=True)
        self._open = data.View(struct_layout(OpenLine), line)
        self._load = data.View(struct_layout(LoadLine), line)
        m.d.comb += [
            self.commands.payload.eq(line),
            self._bulk.words.payload.eq(self.words.payload),
            self.write_error.eq(self._bulk.write_error),
        ]
        with m.FSM() as fsm:
            self._add_dispatch(m)
            self._add_open(m)
            self._add_load(m)
            m.d.comb += self.done.eq(fsm.ongoing("IDLE"))
        return m

    def _add_dispatch(self, m: Module) -> None:
        message = self.i.payload.message
        kind = message[:8]
        with m.State("IDLE"):
            m.d.comb += self.i.ready.eq(~self.abandon)
            m.d.sync += self._line.eq(message)
            with m.If(self.i.valid & self.i.ready):
                with m.If((kind == MessageType.LOAD) & self.i.payload.ring):
                    m.next = "LOAD"
                with m.Else():
                    m.next = "SEND"
        opens = (self._line[:8] == MessageType.OPEN) | (self._line[:8] == MessageType.RESYNC)
        with m.State("SEND"):
            m.d.comb += self.commands.valid.eq(~self.abandon)
            with m.If(self.abandon):
                m.next = "IDLE"
            with m.Elif(self.commands.ready):
                m.next = "IDLE"
                with m.If(opens & (self._open.count != 0)):
                    m.next = "OPEN"

    def _add_open(self, m: Module) -> None:
        """Fetch the tokens and pass them on one by one."""
        size = self._config.bus_bytes
        per_word = size // 4
        left = Signal(32)
        words = Signal(24)
        place = Signal(range(per_word))
        lost = Signal()
        tokens, count = self.tokens, self._open.count
        lines = (count + (LINE_BYTES // 4 - 1))[4:]
        m.d.comb += words.eq(lines << ((LINE_BYTES // size).bit_length() - 1))
        with m.State("OPEN"):
            m.d.comb += [
                self.request.valid.eq(~self.failed),
                self.request.payload.address.eq(self._open.address),
                self.request.payload.words.eq(words),
            ]
            m.d.sync += [left.eq(count), place.eq(0), lost.eq(self.failed)]
            with m.If(self.request.ready | self.failed):
                m.next = "TOKENS"
        with m.State("TOKENS"):
            payload = self.words.payload
            gone = lost | payload.bad
            m.d.comb += [
                tokens.valid.eq((left != 0) & (self.words.valid | lost) & ~self.abandon),
                tokens.payload.eq(Mux(gone, NO_TOKEN, payload.data.word_select(place, 32))),
            ]
            step = tokens.valid & tokens.ready | self.abandon & (self.words.valid | lost)
            final = left <= 1
            with m.If(self.failed):
                m.d.sync += lost.eq(1)
            with m.If(step & (left != 0)):
                m.d.sync += [left.eq(left - 1), place.eq(place + 1)]
                m.d.comb += self.words.ready.eq((place == per_word - 1) | final)
            with m.Elif(left == 0):
                m.next = "PADDING"
        # What is left of the last 64 bytes.
        with m.State("PADDING"):
            m.d.comb += self.words.ready.eq(1)
            with m.If(self.request.ready | lost):
                m.next = "IDLE"

    def _add_load(self, m: Module) -> None:
        """Copy a block."""
        bulk, load = self._bulk, self._load
        size = self._config.bus_bytes
        word_bits = size.bit_length() - 1
        fits, end, lost = Signal(), Signal(41), Signal()
        words = load.size[word_bits:22]
        m.d.comb += [
            end.eq(load.dest[:40] + load.size),
            fits.eq(
                (load.size != 0)
                & (load.size <= MAX_LOAD)
                & (load.size[:6] == 0)
                & (load.address[:6] == 0)
                & (load.dest[:6] == 0)
                & (load.dest[40:] == 0)
                & (end <= min(1 << self._config.addr_bits, 64 << ADDRESS_BITS))
            ),
            bulk.command.address.eq(load.dest[6:]),
            bulk.command.words.eq(words),
        ]
        with m.State("LOAD"):
            m.d.comb += self.hold.eq(1)
            with m.If(~fits):
                m.next = "REFUSE"
            with m.Elif(self.quiet & ~self.failed):
                m.d.comb += [
                    self.request.valid.eq(1),
                    self.request.payload.address.eq(load.address),
                    self.request.payload.words.eq(words),
                    bulk.start.eq(self.request.ready),
                ]
                m.d.sync += lost.eq(0)
                with m.If(self.request.ready):
                    m.next = "COPY"
        with m.State("COPY"):
            # Words may come late after all, but the reader drops them.
            with m.If(self.failed):
                m.d.sync += lost.eq(1)
            m.d.comb += [
                self.hold.eq(1),
                bulk.words.valid.eq(self.words.valid),
                self.words.ready.eq(bulk.words.ready),
                bulk.stop.eq(lost),
            ]
            with m.If(~bulk.busy):
                m.next = "REPORT"
        wrong = bulk.bad | (bulk.crc != load.crc)
        notes = self.notices
        with m.State("REPORT"):
            m.d.comb += [
                notes.valid.eq(1),
                notes.payload.code.eq(Mux(wrong, EventCode.LOAD_ERROR, EventCode.LOAD_DONE)),
                notes.payload.info0.eq(load.command),
                notes.payload.info1.eq(Mux(wrong, bulk.crc, 0)),
            ]
            with m.If(notes.ready):
                m.next = "IDLE"
        with m.State("REFUSE"):
            m.d.comb += [
                notes.valid.eq(1),
                notes.payload.code.eq(EventCode.BAD_MESSAGE),
                notes.payload.info0.eq(MessageType.LOAD),
                notes.payload.info1.eq(load.command),
            ]
            with m.If(notes.ready):
                m.next = "IDLE"
