"""The ring engine: everything between AXI to the host and message streams to the tree unit."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Const, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from dfvg_hw.common.stream import Queue
from dfvg_hw.config import DeviceConfig
from dfvg_hw.memory.axi import axi4, axi4_write, join
from dfvg_hw.messages.kinds import CHILDREN_PER_LINE, Event, EventCode
from dfvg_hw.messages.layout import PAYLOAD_BYTES

from .commands import CommandEngine, notice
from .compose import compose
from .host_read import HOST_ADDR_BITS, HostReader
from .lines import LineFetch
from .mailbox import MAILBOX_ADDR_BITS
from .ring_writer import RING_LINES_BITS, RingWriter

__all__ = ["HOST_TIMEOUT", "RingEngine", "pass_lines", "ring_control", "ring_events"]

HOST_TIMEOUT = 1 << 24
"""Cycles without an answer from host memory; 84 ms at 200 MHz."""
QUEUE_LINES = 32
NO_SEQUENCE = Const(255, 8)
ANSWERS = 2
"""Most lines that a command about a sequence is answered with."""
SPARE = 8
"""Lines kept for events."""


def ring_control() -> data.StructLayout:
    """A ring: bus address, lines (a power of two; 0 if not set up), the host's index in it."""
    return data.StructLayout({"base": HOST_ADDR_BITS, "lines": RING_LINES_BITS, "index": 32})


def ring_events() -> data.StructLayout:
    """Pulses: host memory failed a read, a write; a line was dropped; a bulk write failed."""
    return data.StructLayout({"host_read": 1, "host_write": 1, "line": 1, "write": 1})


def pass_lines(config: DeviceConfig) -> int:
    """Most lines that a pass, and a command for each sequence during it, are answered with."""
    records = config.rows * -(-config.topk // CHILDREN_PER_LINE)
    return records + 1 + config.max_seqs * (1 + ANSWERS) + SPARE


class RingEngine(wiring.Component):
    """Command ring, mailboxes and device-to-host ring on AXI.

    A pass may start only if `room` says that the ring holds everything it can lead to; so a full
    ring holds back the next pass and nothing else. *Reset*: only together with the link; a soft
    reset leaves the engine alone, `abandon` tells it that the tree unit is being reset.

    Parameters
    ----------
    config : DeviceConfig
    timeout : int
        Cycles after which host memory is taken for dead; a power of two.

    Members
    -------
    host : Out(`axi4`, 64-bit addresses)
    mailbox : In(`axi4_write`)
    memory : Out(`axi4_write`)
        Device memory; used while `hold` and `quiet`.
    hold : Out(1)
        A LOAD wants device memory for itself: start no pass.
    quiet : In(1)
        No pass runs and the core writes nothing.
    ring, command : In(`ring_control`)
    ring_restart, command_restart : In(1)
    produced, consumed, mail_consumed : Out(32)
        Lines written to the host; commands of the ring, lines of the mailboxes carried out.
    commands, tokens : Out(stream)
        To the tree unit.
    messages : In(stream of 448 bits)
        From the tree unit.
    notices : In(stream of `notice`)
        More events.
    extra : In(stream of 448 bits)
        More messages.
    abandon : In(1)
    room : Out(1)
    stall : Out(1)
        The device-to-host ring is full.
    event : Out(`ring_events`)
    bad_lines : Out(32)
    done : Out(1)
        No command is under way.
    idle : Out(1)
        Moreover nothing is on its way to the host.
    """

    def __init__(self, config: DeviceConfig, timeout: int = HOST_TIMEOUT) -> None:
        self._config, self._timeout = config, timeout
        bits = 8 * config.bus_bytes
        line = stream.Signature(8 * PAYLOAD_BYTES)
        super().__init__(
            {
                "host": Out(axi4(addr_bits=HOST_ADDR_BITS, data_bits=bits)),
                "mailbox": In(axi4_write(addr_bits=MAILBOX_ADDR_BITS, data_bits=bits)),
                "memory": Out(axi4_write(addr_bits=config.addr_bits, data_bits=bits)),
                "hold": Out(1),
                "quiet": In(1),
                "ring": In(ring_control()),
                "command": In(ring_control()),
                "ring_restart": In(1),
                "command_restart": In(1),
                "produced": Out(32),
                "consumed": Out(32),
                "mail_consumed": Out(32),
                "commands": Out(line),
                "tokens": Out(stream.Signature(32)),
                "messages": In(line),
                "notices": In(stream.Signature(notice())),
                "extra": In(line),
                "abandon": In(1),
                "room": Out(1),
                "stall": Out(1),
                "event": Out(ring_events()),
                "bad_lines": Out(32),
                "done": Out(1),
                "idle": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Return the hardware."""
        m = Module()
        size = self._config.bus_bytes
        self._reader = m.submodules.reader = HostReader(size, self._timeout)
        self._writer = m.submodules.writer = RingWriter(size)
        self._lines = m.submodules.lines = LineFetch(self._config)
        self._engine = m.submodules.engine = CommandEngine(self._config)
        self._queue = m.submodules.queue = Queue(8 * PAYLOAD_BYTES, QUEUE_LINES)
        join(m, self.host, self._reader.axi, self._writer.axi)
        self._build_rings(m)
        self._build_reads(m)
        self._build_commands(m)
        self._build_messages(m)
        self._build_room(m)
        return m

    def _build_rings(self, m: Module) -> None:
        writer, lines = self._writer, self._lines
        wiring.connect(m, wiring.flipped(self.mailbox), lines.axi)
        m.d.comb += [
            writer.base.eq(self.ring.base),
            writer.lines.eq(self.ring.lines),
            writer.consumed.eq(self.ring.index),
            writer.restart.eq(self.ring_restart),
            self.produced.eq(writer.produced),
            self.stall.eq(writer.stall),
            lines.base.eq(self.command.base),
            lines.lines.eq(self.command.lines),
            lines.produced.eq(self.command.index),
            lines.restart.eq(self.command_restart),
            self.consumed.eq(lines.consumed),
            self.mail_consumed.eq(lines.mail_consumed),
            self.event.host_read.eq(self._reader.error | self._reader.failed),
            self.event.host_write.eq(writer.error),
            self.event.line.eq(lines.bad),
            self.event.write.eq(self._engine.write_error),
        ]
        with m.If(lines.bad):
            m.d.sync += self.bad_lines.eq(self.bad_lines + 1)

    def _build_reads(self, m: Module) -> None:
        """The reader belongs to the line being fetched, or else to the command under way."""
        reader, lines, engine = self._reader, self._lines, self._engine
        m.d.comb += [
            reader.request.valid.eq(lines.request.valid | engine.request.valid),
            reader.request.payload.eq(
                Mux(lines.reading, lines.request.payload, engine.request.payload)
            ),
            lines.request.ready.eq(reader.request.ready),
            engine.request.ready.eq(reader.request.ready & ~lines.reading),
            lines.words.payload.eq(reader.o.payload),
            engine.words.payload.eq(reader.o.payload),
            lines.words.valid.eq(reader.o.valid & lines.reading),
            engine.words.valid.eq(reader.o.valid & ~lines.reading),
            reader.o.ready.eq(Mux(lines.reading, lines.words.ready, engine.words.ready)),
            lines.failed.eq(reader.failed),
            engine.failed.eq(reader.failed),
        ]

    def _build_commands(self, m: Module) -> None:
        engine = self._engine
        wiring.connect(m, self._lines.o, engine.i)
        for name in ("commands", "tokens", "axi"):
            mine = self.memory if name == "axi" else getattr(self, name)
            wiring.connect(m, getattr(engine, name), wiring.flipped(mine))
        m.d.comb += [
            self._lines.done.eq(engine.done),
            engine.abandon.eq(self.abandon),
            engine.quiet.eq(self.quiet),
            self.hold.eq(engine.hold),
            self.done.eq(engine.done),
        ]

    def _build_messages(self, m: Module) -> None:
        """One message a cycle into the queue: the tree unit's first."""
        engine, queue = self._engine, self._queue
        bad, bad_tag = Signal(), Signal(32)
        with m.If(self._lines.bad):
            m.d.sync += [bad.eq(1), bad_tag.eq(self._lines.bad_tag)]
        wiring.connect(m, queue.o, self._writer.i)
        with m.If(self.messages.valid):
            self._enqueue(m, self.messages, self.messages.payload)
        with m.Elif(self.extra.valid):
            self._enqueue(m, self.extra, self.extra.payload)
        with m.Elif(bad):
            event = compose(Event, code=EventCode.BAD_LINE, seq=NO_SEQUENCE, info0=bad_tag)
            m.d.comb += [queue.i.valid.eq(1), queue.i.payload.eq(event)]
            with m.If(queue.i.ready & ~self._lines.bad):
                m.d.sync += bad.eq(0)
        for port in (engine.notices, self.notices):
            note = port.payload
            with m.Elif(port.valid):
                event = compose(
                    Event, code=note.code, seq=NO_SEQUENCE, info0=note.info0, info1=note.info1
                )
                self._enqueue(m, port, event)

    def _enqueue(self, m: Module, port: Any, payload: Any) -> None:
        queue = self._queue
        m.d.comb += [
            queue.i.valid.eq(1),
            queue.i.payload.eq(payload),
            port.ready.eq(queue.i.ready),
        ]

    def _build_room(self, m: Module) -> None:
        """Room for a pass, whatever is queued already."""
        writer, queue = self._writer, self._queue
        ahead = Signal(range(QUEUE_LINES + 3))
        m.d.comb += [
            # 1 in the writer that it has not counted yet.
            ahead.eq(queue.level + 1),
            self.idle.eq(self._engine.done & (queue.level == 0) & writer.idle),
        ]
        m.d.sync += self.room.eq(writer.free >= ahead + pass_lines(self._config))
