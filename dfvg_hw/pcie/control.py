"""What registers say and do: switches, errors, pass grants, counters, soft reset."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from dfvg_hw.config import DeviceConfig
from dfvg_hw.interfaces import model_registers
from dfvg_hw.memory.axi import axi4_lite
from dfvg_hw.messages.kinds import (
    ABI_VERSION,
    IMAGE_VERSION,
    MESSAGE_VERSION,
    Capability,
    EventCode,
    MessageType,
    PassDone,
    Stats,
)
from dfvg_hw.messages.layout import PAYLOAD_BYTES, struct_layout
from dfvg_hw.overlap.counters import counter_values
from dfvg_hw.overlap.status import core_errors, core_state
from dfvg_hw.registers import BAR0_BYTES, DEVICE_ID, register

from .commands import notice
from .compose import compose
from .engine import ring_control, ring_events
from .registers import RegisterFile

__all__ = ["CAPABILITIES", "Control"]

CAPABILITIES = Capability.RING | Capability.VIRTUAL_TIME | Capability.TRUNCATED_HEAD
RESET_CYCLES = 8


class Control(wiring.Component):
    """The register file and the little logic behind it.

    **Passes** may start while `control.enable` is set, a program is loaded, no error stands and
    either `control.free_run` is set or `pass_grant` isn't 0.

    **Errors** are sticky. An error of the core aborts the running pass: its results can't be
    trusted, and the tree unit gives the sequences concerned up. The first error is reported as an
    EVENT.

    **Soft reset** stops the core, resets the tree unit and drops the command under way; it ends by
    itself when everything has come to rest.

    Parameters
    ----------
    config : DeviceConfig
    build_id : int
        Shown in the register of that name.

    Members
    -------
    bus : In(`axi4_lite`)
    model : Out(`model_registers`), program_base, program_length, ids_base : Out
    program_start : Out(1)
    watchdog_limit : Out(32)
    ring, command : Out(`ring_control`); ring_restart, command_restart : Out(1)
    produced, consumed, mail_consumed, bad_lines : In(32); stall : In(1); event : In(`ring_events`)
    core_errors : In(`core_errors`), core_clear : Out(`core_errors`)
    state, dump : In(`core_state`); counters : In(`counter_values`)
    loaded, running, tree_idle, hold : In(1)
    table_error : In(1)
        Pulse: reading the token table failed.
    resting : In(1)
        Nothing is under way anywhere; ends a soft reset.
    pass_start : In(1)
        Pulse: the tree unit has handed out a pass.
    message, message_sent : In
        What the tree unit sends to the host; counted.
    enable : Out(1)
        Passes may start.
    in_pass : Out(1)
        From a pass handed out to its PASS_DONE.
    abort : Out(1)
        Pulse to the core's soft reset.
    resetting : Out(1)
        The tree unit is held in reset.
    notices : Out(stream of `notice`), stats : Out(stream of 448 bits)
    """

    def __init__(self, config: DeviceConfig, build_id: int = 0) -> None:
        self._config, self._build_id = config, build_id
        wires: dict[str, Any] = {
            "bus": In(axi4_lite(addr_bits=BAR0_BYTES.bit_length() - 1)),
            "model": Out(model_registers()),
            "ring": Out(ring_control()),
            "command": Out(ring_control()),
            "event": In(ring_events()),
            "core_errors": In(core_errors()),
            "core_clear": Out(core_errors()),
            "state": In(core_state(config)),
            "dump": In(core_state(config)),
            "counters": In(counter_values()),
            "message": In(8 * PAYLOAD_BYTES),
            "notices": Out(stream.Signature(notice())),
            "stats": Out(stream.Signature(8 * PAYLOAD_BYTES)),
        }
        for name, width in (
            ("produced", 32), ("consumed", 32), ("mail_consumed", 32), ("bad_lines", 32),
            ("stall", 1), ("loaded", 1), ("running", 1), ("tree_idle", 1), ("hold", 1),
            ("table_error", 1), ("resting", 1), ("pass_start", 1), ("message_sent", 1),
        ):  # fmt: skip
            wires[name] = In(width)
        for name, width in (
            ("program_start", 1), ("program_base", 26), ("program_length", 16), ("ids_base", 26),
            ("watchdog_limit", 32), ("ring_restart", 1), ("command_restart", 1), ("enable", 1),
            ("in_pass", 1), ("abort", 1), ("resetting", 1),
        ):  # fmt: skip
            wires[name] = Out(width)
        super().__init__(wires)

    def elaborate(self, platform: Any) -> Module:
        """Return the hardware."""
        m = Module()
        self._file = m.submodules.file = RegisterFile()
        wiring.connect(m, wiring.flipped(self.bus), self._file.bus)
        self._build_settings(m)
        self._build_status(m)
        errors = self._build_errors(m)
        self._build_passes(m, errors)
        self._build_reset(m)
        self._build_counters(m)
        return m

    def _build_settings(self, m: Module) -> None:
        """Values that only pass through."""
        values, written = self._file.values, self._file.written
        for name, _ in model_registers():
            shape = values.model_shape
            source = getattr(shape if name in ("head_groups", "kv_heads", "layers") else values,
                             name if name in ("head_groups", "kv_heads", "layers")
                             else f"model_{name}")  # fmt: skip
            m.d.comb += getattr(self.model, name).eq(source)
        m.d.comb += [
            self.program_base.eq(values.model_program),
            self.program_length.eq(values.model_program_length),
            self.program_start.eq(written.model_program_length),
            self.ids_base.eq(values.model_ids_base),
            self.watchdog_limit.eq(values.watchdog),
            self.ring.base.eq(Cat(values.ring_lo, values.ring_hi)),
            self.ring.lines.eq(values.ring_lines),
            self.ring.index.eq(values.ring_consumed),
            self.ring_restart.eq(written.ring_lines),
            self.command.base.eq(Cat(values.command_lo, values.command_hi)),
            self.command.lines.eq(values.command_lines),
            self.command.index.eq(values.command_produced),
            self.command_restart.eq(written.command_lines),
        ]

    def _build_status(self, m: Module) -> None:
        status, state = self._file.status, self.state
        m.d.comb += [
            status.id.eq(DEVICE_ID),
            status.versions.abi.eq(ABI_VERSION),
            status.versions.message.eq(MESSAGE_VERSION),
            status.versions.image.eq(IMAGE_VERSION),
            status.capabilities.eq(int(CAPABILITIES)),
            status.config_hash.eq(self._config.config_hash),
            status.build_id.eq(self._build_id),
            status.clock_khz.eq(self._config.clock_hz // 1000),
            status.status.running.eq(self.in_pass | self.running),
            status.status.idle.eq(self.tree_idle),
            status.status.link_stall.eq(self.stall),
            status.ring_produced.eq(self.produced),
            status.command_consumed.eq(self.consumed),
            status.mailbox_consumed.eq(self.mail_consumed),
            status.bad_lines.eq(self.bad_lines),
            status.status.resetting.eq(self.resetting),
            status.state.pc.eq(state.pc),
            status.state.engines.eq(
                Cat(state.load, state.mm, state.vec, state.merge, self.in_pass)
            ),
        ]
        self._build_dump(m)

    def _build_dump(self, m: Module) -> None:
        """What the watchdog kept, as registers."""
        status, dump = self._file.status, self.dump
        m.d.comb += [
            status.dump_place.pc.eq(dump.pc),
            status.dump_place.i0.eq(dump.i0),
            status.dump_queues.i1.eq(dump.i1),
            status.dump_credits.eq(dump.credits),
            status.dump_level.eq(dump.level),
        ]
        for unit in ("load", "mm", "vec"):
            m.d.comb += status.dump_queues[unit].eq(dump[f"{unit}_level"])
        for name in ("to_mm", "to_vec", "writes"):
            m.d.comb += status.dump_tokens[name].eq(dump[name])
        for field in register("dump_busy").fields:
            m.d.comb += status.dump_busy[field.name].eq(dump[field.name])

    def _build_errors(self, m: Module) -> Signal:
        """Sticky bits, the first one's detail, its EVENT, and the end of the pass."""
        file, core, event = self._file, self.core_errors, self.event
        own = Signal(data.StructLayout({"read": 1, "write": 1, "host_read": 1, "host_write": 1,
                                        "line": 1}))  # fmt: skip
        pulses = {
            "read": self.table_error,
            "write": event.write,
            "host_read": event.host_read,
            "host_write": event.host_write,
            "line": event.line,
        }
        error, clear = file.status.error, file.strobe.error
        for name, pulse in pulses.items():
            with m.If(pulse):
                m.d.sync += own[name].eq(1)
            with m.Elif(getattr(clear, name)):
                m.d.sync += own[name].eq(0)
        m.d.comb += [error[name].eq(own[name]) for name in ("host_read", "host_write", "line")]
        m.d.comb += [
            error.read.eq(own.read | core.read),
            error.write.eq(own.write | core.write),
            error.watchdog.eq(core.watchdog),
            error.program.eq(core.program),
        ]
        m.d.comb += [getattr(self.core_clear, n).eq(getattr(clear, n)) for n, _ in core_errors()]
        errors = Signal(len(error.as_value()))
        m.d.comb += errors.eq(error)
        self._build_first_error(m, errors)
        return errors

    def _build_first_error(self, m: Module, errors: Signal) -> None:
        notes, info = self.notices, self._file.status.error_info
        pc = Signal(16)
        stood = Signal()
        first = Signal(32)
        fatal, fatal_before = Signal(), Signal()
        core = self._file.status.error
        m.d.comb += [
            info.eq(first),
            pc.eq(self.state.pc),
            fatal.eq(core.read | core.write | core.watchdog | core.program),
        ]
        m.d.sync += [stood.eq(errors.any()), fatal_before.eq(fatal), self.abort.eq(0)]
        with m.If(errors.any() & ~stood):
            m.d.sync += first.eq(Cat(errors, Const(0, 16 - len(errors)), pc))
        with m.If(~errors.any()):
            m.d.sync += first.eq(0)
        with m.If(notes.ready):
            m.d.sync += notes.valid.eq(0)
        with m.If(fatal & ~fatal_before):
            code = Mux(core.watchdog, EventCode.WATCHDOG, EventCode.MEMORY_ERROR)
            m.d.sync += [
                notes.valid.eq(1),
                notes.payload.code.eq(code),
                notes.payload.info0.eq(Mux(core.watchdog, self.dump.pc, errors)),
                notes.payload.info1.eq(Mux(core.watchdog, self._file.status.dump_busy, pc)),
                self.abort.eq(self.in_pass),
            ]
        with m.If(self._file.strobe.control.soft_reset):
            m.d.sync += self.abort.eq(1)

    def _build_passes(self, m: Module, errors: Signal) -> None:
        """Who may start, and from when to when a pass counts as running."""
        file = self._file
        grant = Signal(32)
        control = file.values.control
        done = Signal()
        m.d.comb += [
            file.status.pass_grant.eq(grant),
            self.enable.eq(
                control.enable
                & (control.free_run | (grant != 0))
                & self.loaded
                & ~errors.any()
                & ~self.hold
                & ~self.resetting
            ),
            done.eq(self.message_sent & (self.message[:8] == MessageType.PASS_DONE)),
        ]
        with m.If(file.written.pass_grant):
            m.d.sync += grant.eq(file.data)
        with m.Elif(self.pass_start & (grant != 0) & ~control.free_run):
            m.d.sync += grant.eq(grant - 1)
        with m.If(self.pass_start):
            m.d.sync += self.in_pass.eq(1)
        with m.Elif(done | self.resetting):
            m.d.sync += self.in_pass.eq(0)

    def _build_reset(self, m: Module) -> None:
        left = Signal(range(RESET_CYCLES + 1))
        with m.If(self._file.strobe.control.soft_reset):
            m.d.sync += [self.resetting.eq(1), left.eq(RESET_CYCLES)]
        with m.Elif(left != 0):
            m.d.sync += left.eq(left - 1)
        with m.Elif(self.resting):
            m.d.sync += self.resetting.eq(0)

    def _build_counters(self, m: Module) -> None:
        """Counters that the core doesn't have, and the STATS message."""
        status, values = self._file.status, self.counters
        verdicts, turn = Signal(32), Signal(48)
        rows, candidates, idle_rest = Signal(32), Signal(32), Signal()
        done = data.View(struct_layout(PassDone), self.message)
        kind = self.message[:8]
        with m.If(self.message_sent & (kind == MessageType.VERDICT_ACK)):
            m.d.sync += verdicts.eq(verdicts + 1)
        with m.If(self.message_sent & (kind == MessageType.PASS_DONE)):
            m.d.sync += [rows.eq(rows + done.rows), candidates.eq(candidates + done.children)]
        m.d.comb += idle_rest.eq(~self.in_pass & ~(self.enable & ~self.tree_idle))
        with m.If(~idle_rest):
            m.d.sync += turn.eq(turn + 1)
        for name, value in (
            ("cycles", values.cycles), ("busy_cycles", values.busy),
            ("words_read", values.words_read), ("turn_cycles", turn),
        ):  # fmt: skip
            m.d.comb += Cat(status[f"{name}_lo"], status[f"{name}_hi"]).eq(value)
        m.d.comb += [status.passes.eq(values.passes), status.verdicts.eq(verdicts)]
        message = compose(
            Stats,
            passes=values.passes,
            aborted=values.aborted,
            verdicts=verdicts,
            rows=rows,
            candidates=candidates,
            cycles=values.cycles,
            busy=values.busy,
            words=values.words_read,
        )
        with m.If(self.stats.ready):
            m.d.sync += self.stats.valid.eq(0)
        with m.If(self._file.strobe.control.stats):
            m.d.sync += [self.stats.valid.eq(1), self.stats.payload.eq(message)]
