"""The whole device: compute core, tree unit, link to the host."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from amaranth.hdl import (
    ClockDomain,
    ClockSignal,
    DomainRenamer,
    Module,
    ResetInserter,
    ResetSignal,
    Signal,
)
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from .config import DeviceConfig
from .core import ComputeCore
from .head.id_map import IdMap
from .memory.axi import axi4, axi4_lite, axi4_write
from .memory.share import MemoryShare
from .memory.slice import AxiSlice
from .pcie.control import Control
from .pcie.engine import HOST_TIMEOUT, RingEngine
from .pcie.host_read import HOST_ADDR_BITS
from .pcie.mailbox import MAILBOX_ADDR_BITS
from .registers import BAR0_BYTES
from .tree.unit import TreeUnit

__all__ = ["DfvgTop", "design_digest"]


def design_digest() -> str:
    """Return the SHA-256 of the hardware's source code, 64 hexadecimal digits."""
    root = Path(__file__).parent
    digest = hashlib.sha256()
    for file in sorted(root.rglob("*.py")):
        digest.update(f"{file.relative_to(root).as_posix()}\0".encode())
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


class DfvgTop(wiring.Component):
    """A draft device on four AXI ports, vendor-free; one clock.

    Parameters
    ----------
    config : DeviceConfig
    build_id : int
        Shown in the register of that name; 0 in simulation, so that builds don't depend on it.
    timeout : int
        Cycles after which silent host memory is an error; a power of two.

    Members
    -------
    memory : Out(`axi4`)
        Device memory; data as wide as `bus_bytes`.
    host : Out(`axi4`)
        Host memory, 64-bit bus addresses, same width.
    registers : In(`axi4_lite`)
        BAR0, see `dfvg_hw.registers`.
    mailbox : In(`axi4_write`)
        BAR2, see `dfvg_hw.registers.mailbox_offset`.
    idle : Out(1)
        There is nothing to draft and no pass runs: clock or power may be saved until a command
        arrives. For a board's pin or power manager; the host reads `status.idle`.
    """

    def __init__(
        self, config: DeviceConfig, build_id: int = 0, timeout: int = HOST_TIMEOUT
    ) -> None:
        self._config, self._build_id, self._timeout = config, build_id, timeout
        bits = 8 * config.bus_bytes
        super().__init__(
            {
                "memory": Out(axi4(addr_bits=config.addr_bits, data_bits=bits)),
                "host": Out(axi4(addr_bits=HOST_ADDR_BITS, data_bits=bits)),
                "registers": In(axi4_lite(addr_bits=BAR0_BYTES.bit_length() - 1)),
                "mailbox": In(axi4_write(addr_bits=MAILBOX_ADDR_BITS, data_bits=bits)),
                "idle": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Return the hardware."""
        m = Module()
        # All logic runs in a domain of its own, whose reset comes from a register. Next-state logic
        # that saw the pin itself would be evaluated by a simulator as often as any input changes.
        local = ClockDomain("local")
        reset = Signal(init=1, reset_less=True)
        m.domains += local
        m.d.sync += reset.eq(ResetSignal("sync"))
        m.d.comb += [local.clk.eq(ClockSignal("sync")), local.rst.eq(reset)]
        m.submodules.device = DomainRenamer("local")(self._build())
        return m

    def _build(self) -> Module:
        m = Module()
        config = self._config
        self._control = m.submodules.control = Control(config, self._build_id)
        self._ring = m.submodules.ring = RingEngine(config, self._timeout)
        self._core = m.submodules.core = ComputeCore(config)
        self._ids = m.submodules.ids = IdMap(config)
        self._share = m.submodules.share = MemoryShare(config)
        self._tree = TreeUnit(config)
        m.submodules.tree = ResetInserter(self._control.resetting)(self._tree)
        self._build_memory(m)
        self._build_link(m)
        self._build_tree(m)
        self._build_core(m)
        self._build_control(m)
        return m

    def _build_memory(self, m: Module) -> None:
        share, ring = self._share, self._ring
        wiring.connect(m, self._core.axi, share.core)
        wiring.connect(m, self._ids.axi, share.table)
        wiring.connect(m, ring.memory, share.load)
        self._slice(m, "memory", share.axi)
        m.d.comb += share.load_owns.eq(ring.hold)

    def _slice(self, m: Module, name: str, inner: Any) -> None:
        """Bring a manager's port to the outside, through registers."""
        outer = getattr(self, name)
        cut = AxiSlice(addr_bits=len(outer.araddr), data_bits=len(outer.rdata))
        m.submodules[f"{name}_slice"] = cut
        wiring.connect(m, inner, cut.i)
        wiring.connect(m, cut.o, wiring.flipped(outer))

    def _build_link(self, m: Module) -> None:
        ring, control, tree = self._ring, self._control, self._tree
        self._slice(m, "host", ring.host)
        wiring.connect(m, wiring.flipped(self.mailbox), ring.mailbox)
        wiring.connect(m, wiring.flipped(self.registers), control.bus)
        wiring.connect(m, control.notices, ring.notices)
        wiring.connect(m, control.stats, ring.extra)
        wiring.connect(m, ring.commands, tree.commands)
        wiring.connect(m, ring.tokens, tree.tokens)
        wiring.connect(m, tree.messages, ring.messages)
        for name in ("ring", "command", "ring_restart", "command_restart"):
            m.d.comb += getattr(ring, name).eq(getattr(control, name))
        names = ("produced", "consumed", "mail_consumed", "bad_lines", "stall", "event", "hold")
        for name in names:
            m.d.comb += getattr(control, name).eq(getattr(ring, name))
        m.d.comb += ring.abandon.eq(control.resetting)

    def _build_tree(self, m: Module) -> None:
        """Passes to the core, children and the result back."""
        tree, core, ids, control = self._tree, self._core, self._ids, self._control
        wiring.connect(m, tree.passes, core.i)
        wiring.connect(m, tree.visibility, core.visibility)
        wiring.connect(m, tree.pages, core.page_w)
        wiring.connect(m, core.children, ids.i)
        wiring.connect(m, ids.o, tree.children)
        ended = Signal()
        m.d.comb += [
            ids.base.eq(control.ids_base),
            tree.vocabulary.eq(control.model.vocab),
            tree.enable.eq(control.enable),
            tree.room.eq(self._ring.room),
            tree.result.eq(core.result),
            core.kill.eq(tree.kill),
            # The last children may still wait for their token ids.
            tree.done.eq(ended & ids.idle),
        ]
        with m.If(tree.done | control.resetting):
            m.d.sync += ended.eq(0)
        with m.Elif(core.done):
            m.d.sync += ended.eq(1)

    def _build_core(self, m: Module) -> None:
        core, control = self._core, self._control
        for name in ("model", "program_start", "program_base", "program_length", "watchdog_limit"):
            m.d.comb += getattr(core, name).eq(getattr(control, name))
        m.d.comb += [
            core.error_clear.eq(control.core_clear),
            core.soft_reset.eq(control.abort),
            control.core_errors.eq(core.errors),
            control.state.eq(core.state),
            control.dump.eq(core.dump),
            control.counters.eq(core.counters),
            control.loaded.eq(core.program_loaded),
            control.running.eq(core.running),
        ]

    def _build_control(self, m: Module) -> None:
        core, control, ring, tree = self._core, self._control, self._ring, self._tree
        quiet, still = Signal(), Signal()
        m.d.comb += [
            still.eq(
                ~core.running
                & ~core.program_busy
                & ~core.state.reading
                & ~core.state.writing
                & self._ids.idle
            ),
            quiet.eq(still & ~control.in_pass & (tree.commands.ready | control.resetting)),
            ring.quiet.eq(quiet),
            control.resting.eq(still & ring.done),
            self.idle.eq(tree.idle & quiet),
            control.table_error.eq(self._ids.error),
            control.tree_idle.eq(tree.idle),
            control.pass_start.eq(tree.passes.valid & tree.passes.ready),
            control.message.eq(tree.messages.payload),
            control.message_sent.eq(tree.messages.valid & tree.messages.ready),
        ]
