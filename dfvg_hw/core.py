"""The compute core: runs passes of the draft model on device memory."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module, ResetInserter, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from .attention.merge import MergeUnit
from .config import DeviceConfig
from .interfaces import child_result, model_registers, visibility_write
from .matmul.engine import MatmulEngine
from .memory.axi import axi4
from .memory.port import MemoryPort
from .memory.reader import ADDRESS_BITS
from .overlap.control import PassController, pass_context, pass_result
from .overlap.counters import Counters, counter_values
from .overlap.fetch import Fetch
from .overlap.load import LoadEngine
from .overlap.page_table import PageTable, page_write
from .overlap.program import LENGTH_BITS, ProgramLoader
from .overlap.status import core_errors, core_state
from .overlap.tokens import TokenCounter
from .overlap.watchdog import Watchdog
from .vector.engine import VectorEngine

__all__ = ["ComputeCore"]


class ComputeCore(wiring.Component):
    """Array, vector unit, memory port and overlap processor, ready for a tree unit and a host.

    A pass is accepted when none runs, its program comes from program memory, its rows' children
    leave through `children` in the course of it, `done` ends it. Contexts are latched, so the tree
    unit may prepare the next pass meanwhile; visibility and page tables may be written only between
    passes (page table entries that the pass doesn't read: any time).

    *Latency* from an accepted pass to the first read address: 12 cycles. *Back-pressure*: children
    that aren't taken hold the end of the pass. *Reset*: everything but memories; only together with
    the bus. `soft_reset`, and a pass whose rows have all been killed, stop the engines at once and
    leave the bus, the program and the model registers alone.

    Parameters
    ----------
    config : DeviceConfig

    Members
    -------
    axi : Out(`axi4`)
    model : In(`model_registers`)
        Constant while a pass runs.
    program_start, program_base, program_length : In
        Load the program from device memory; see `ProgramLoader`.
    program_busy, program_loaded : Out(1)
    i : In(stream of `pass_context`)
        Accepted when a program is loaded and no error stands.
    page_w : In(`page_write`), visibility : In(`visibility_write`)
    kill : In(rows)
        Pulses or levels: nobody wants these rows' results any more.
    children : Out(`child_result`)
        ``channel`` is the head's.
    done : Out(1), result : Out(`pass_result`)
    running : Out(1)
    soft_reset : In(1)
    watchdog_limit : In(32)
        See `Watchdog`.
    errors : Out(`core_errors`)
        Sticky. ``error_clear`` : In(`core_errors`) clears.
    state, dump : Out(`core_state`)
        Now, and when the watchdog bit.
    counters : Out(`counter_values`)
    """

    def __init__(self, config: DeviceConfig) -> None:
        self._config = config
        super().__init__(
            {
                "axi": Out(axi4(addr_bits=config.addr_bits, data_bits=8 * config.bus_bytes)),
                "model": In(model_registers()),
                "program_start": In(1),
                "program_base": In(ADDRESS_BITS),
                "program_length": In(LENGTH_BITS),
                "program_busy": Out(1),
                "program_loaded": Out(1),
                "i": In(stream.Signature(pass_context(config))),
                "page_w": In(page_write()),
                "visibility": In(visibility_write(config)),
                "kill": In(config.rows),
                "children": Out(child_result(config)),
                "done": Out(1),
                "result": Out(pass_result(config)),
                "running": Out(1),
                "soft_reset": In(1),
                "watchdog_limit": In(32),
                "errors": Out(core_errors()),
                "error_clear": In(core_errors()),
                "state": Out(core_state(config)),
                "dump": Out(core_state(config)),
                "counters": Out(counter_values()),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Return the hardware."""
        m = Module()
        config = self._config
        self._clear = Signal(name="clear")
        resettable = ResetInserter(self._clear)
        self._memory = m.submodules.memory = MemoryPort(config)
        self._control = m.submodules.control = PassController(config)
        self._table = m.submodules.page_table = PageTable(config)
        self._fetch = Fetch(config)
        self._load = LoadEngine(config)
        self._loader = ProgramLoader(config)
        self._merge = MergeUnit(config)
        self._mm = MatmulEngine(config)
        self._vec = VectorEngine(config)
        self._to_mm, self._to_vec = TokenCounter(), TokenCounter()
        for name in ("fetch", "load", "loader", "merge", "mm", "vec"):
            m.submodules[name] = resettable(getattr(self, f"_{name}"))
        # A pass that skips the head leaves the token that the head would have taken.
        fresh = ResetInserter(self._clear | self._control.start)
        m.submodules.to_mm, m.submodules.to_vec = fresh(self._to_mm), fresh(self._to_vec)
        self._build_control(m)
        self._build_contexts(m)
        self._build_loads(m)
        self._build_words(m)
        self._build_issue(m)
        self._build_rows(m)
        self._build_state(m)
        self._build_watchdog(m)
        self._build_counters(m)
        return m

    def _build_control(self, m: Module) -> None:
        """The pass, from its start to its end."""
        control, memory, fetch = self._control, self._memory, self._fetch
        wiring.connect(m, wiring.flipped(self.i), control.i)
        wiring.connect(m, wiring.flipped(self.page_w), self._table.write)
        m.d.comb += [
            control.hold.eq(
                ~self._loader.loaded | self.program_start | self.errors.as_value().any()
            ),
            control.kill.eq(self.kill),
            control.soft_reset.eq(self.soft_reset),
            control.ended.eq(fetch.ended),
            control.drained.eq(memory.read_idle & memory.write_idle),
            control.writes_idle.eq(memory.write_idle),
            self._clear.eq(control.clear),
            memory.clear.eq(control.clear),
            fetch.start.eq(control.start),
            fetch.children.eq(control.children),
            self.running.eq(control.running),
            self.done.eq(control.done),
            self.result.eq(control.result),
        ]

    def _build_contexts(self, m: Module) -> None:
        """What is constant during a pass, to everyone who looks at it."""
        for index, row in enumerate(self._control.rows):
            for block in (self._load, self._merge, self._vec):
                m.d.comb += block.rows[index].eq(row)
        for index, sequence in enumerate(self._control.sequences):
            for block in (self._load, self._merge, self._mm, self._vec):
                m.d.comb += block.sequences[index].eq(sequence)
        for block in (self._load, self._merge):
            m.d.comb += block.model.eq(self.model)
        for block in (self._mm, self._vec):
            m.d.comb += block.head_groups.eq(self.model.head_groups)

    def _build_loads(self, m: Module) -> None:
        """Requests of the LOAD engine, or of the program loader between passes."""
        load, loader, table = self._load, self._loader, self._table
        request = self._memory.request
        m.d.comb += [
            loader.start.eq(self.program_start & ~self._control.running),
            loader.base.eq(self.program_base),
            loader.length.eq(self.program_length),
            self.program_busy.eq(loader.busy),
            self.program_loaded.eq(loader.loaded),
            self._fetch.write_en.eq(loader.write_en),
            self._fetch.write_addr.eq(loader.write_addr),
            self._fetch.write_data.eq(loader.write_data),
            load.fenced.eq(self._control.fenced),
            table.en.eq(load.page_en),
            table.seq.eq(load.page_seq),
            table.page.eq(load.page_index),
            load.page_phys.eq(table.phys),
        ]
        with m.If(loader.busy):
            self._forward(m, loader.request, request)
        with m.Else():
            self._forward(m, load.request, request)

    def _forward(self, m: Module, source: Any, sink: Any) -> None:
        m.d.comb += [
            sink.valid.eq(source.valid),
            sink.payload.eq(source.payload),
            source.ready.eq(sink.ready),
        ]

    def _build_words(self, m: Module) -> None:
        """Words from memory to their consumers, KV back to memory."""
        memory, merge = self._memory, self._merge
        wiring.connect(m, memory.axi, wiring.flipped(self.axi))
        wiring.connect(m, memory.mm, merge.i)
        wiring.connect(m, memory.program, self._loader.words)
        wiring.connect(m, merge.write, memory.write)
        wiring.connect(m, merge.o, self._mm.words)
        wiring.connect(m, memory.vec, self._vec.words)
        wiring.connect(m, self._mm.kv, merge.command)

    def _build_issue(self, m: Module) -> None:
        """Instructions and tokens."""
        wiring.connect(m, self._fetch.load, self._load.issue)
        wiring.connect(m, self._fetch.mm, self._mm.issue)
        wiring.connect(m, self._fetch.vec, self._vec.issue)
        m.d.comb += [
            self._to_mm.give.eq(self._vec.token),
            self._to_mm.take.eq(self._mm.vec_take),
            self._mm.vec_token.eq(self._to_mm.available),
            self._to_vec.give.eq(self._mm.token),
            self._to_vec.take.eq(self._vec.mm_take),
            self._vec.mm_token.eq(self._to_vec.available),
        ]

    def _build_rows(self, m: Module) -> None:
        """Everything that array and vector unit exchange row by row, and the way out."""
        mm, vec, merge = self._mm, self._vec, self._merge
        for index in range(self._config.rows):
            for name in ("vm_w", "vm_r", "scores", "logits"):
                wiring.connect(m, getattr(mm, name)[index], getattr(vec, name)[index])
            for name in ("act_w", "shift_w", "scale_w", "rope_w"):
                wiring.connect(m, getattr(vec, name)[index], getattr(mm, name)[index])
            for name in ("k_tail", "v_tail"):
                wiring.connect(m, getattr(vec, name)[index], getattr(merge, name)[index])
        wiring.connect(m, wiring.flipped(self.visibility), vec.visibility)
        wiring.connect(m, vec.children, wiring.flipped(self.children))

    def _build_state(self, m: Module) -> None:
        """What is busy; sticky errors."""
        fetch, memory, state = self._fetch, self._memory, self.state
        m.d.comb += [
            state.pc.eq(fetch.pc),
            state.i0.eq(fetch.i0),
            state.i1.eq(fetch.i1),
            state.load_level.eq(fetch.load_level),
            state.mm_level.eq(fetch.mm_level),
            state.vec_level.eq(fetch.vec_level),
            state.to_mm.eq(self._to_mm.count),
            state.to_vec.eq(self._to_vec.count),
            state.credits.eq(memory.credits),
            state.level.eq(memory.level),
            state.writes.eq(memory.pending),
            state.mm_wants.eq(self._mm.words.ready),
            state.vec_wants.eq(self._vec.words.ready),
            state.fetching.eq(~fetch.ended),
            state.load.eq(~self._load.idle | (fetch.load_level != 0)),
            state.mm.eq(~self._mm.idle | (fetch.mm_level != 0)),
            state.vec.eq(~self._vec.idle | (fetch.vec_level != 0)),
            state.merge.eq(~self._merge.idle),
            state.reading.eq(~memory.read_idle),
            state.writing.eq(~memory.write_idle),
            self._control.busy.eq(
                Cat(state.load, state.mm, state.vec, state.merge, state.reading).any()
            ),
        ]
        bad = fetch.bad | self._to_mm.bad | self._to_vec.bad | self._vec.collision
        events = {"read": memory.read_error, "write": memory.write_error, "program": bad}
        for name, event in events.items():
            with m.If(event):
                m.d.sync += self.errors[name].eq(1)
            with m.Elif(self.error_clear[name]):
                m.d.sync += self.errors[name].eq(0)

    def _build_watchdog(self, m: Module) -> None:
        m.submodules.watchdog = watchdog = Watchdog(core_state(self._config))
        fetch, words = self._fetch, self._merge.o
        moves = [self._memory.arrived, self._memory.wrote, words.valid & words.ready]
        for port in (fetch.load, fetch.mm, fetch.vec, self._vec.children, self._memory.vec):
            moves.append(port.valid & port.ready)
        m.d.comb += [
            watchdog.limit.eq(self.watchdog_limit),
            watchdog.running.eq(self._control.running),
            watchdog.progress.eq(Cat(moves).any()),
            watchdog.state.eq(self.state),
            watchdog.clear.eq(self.error_clear.watchdog),
            self.errors.watchdog.eq(watchdog.hung),
            self.dump.eq(watchdog.dump),
        ]

    def _build_counters(self, m: Module) -> None:
        m.submodules.counting = counters = Counters()
        control, memory, words = self._control, self._memory, self._merge.o
        m.d.comb += [
            counters.event.cycles.eq(1),
            counters.event.busy.eq(control.running),
            counters.event.starved.eq(control.running & words.ready & ~words.valid),
            counters.event.blocked.eq(control.running & memory.full),
            counters.event.words_read.eq(memory.arrived),
            counters.event.words_written.eq(memory.wrote),
            counters.event.passes.eq(control.done),
            counters.event.aborted.eq(control.done & control.result.aborted),
            self.counters.eq(counters.value),
        ]
