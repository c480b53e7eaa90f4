"""The tree unit: candidates, tree slots, KV pages, choice of rows, verdicts, messages.

``docs/tree.md`` has the rules, `model.py` the golden model; this is the same machine in hardware.
One state machine owns all tables; its states are in `commands`, `verdict`, `begin` and `finish`.
"""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Array, Cat, Module, Mux, Signal, signed
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from ..config import DeviceConfig
from ..interfaces import TOKEN_BITS, child_result, visibility_write
from ..messages.layout import PAYLOAD_BYTES
from ..overlap.control import pass_context, pass_result
from ..overlap.page_table import page_write
from .begin import add_begin_states
from .commands import add_close_states, add_command_states
from .context import Context
from .finish import add_finish_states
from .kv import add_page_states
from .storage import child_entry
from .verdict import add_verdict_states

__all__ = ["TreeUnit"]


class TreeUnit(wiring.Component):
    """Trees of all sequences: takes commands, hands out passes, sends records.

    Commands are taken whenever the unit isn't busy, also during a pass. A pass is handed out when
    there are rows, `enable` and `room`, and no verdict is half received. Children are stored as
    they come; a pass is finished when `done` has come.

    *Latency* (measured, ``tests/hw/tree``): see "Cycles" in docs/tree.md. *Reset* forgets all
    sequences.

    Parameters
    ----------
    config : DeviceConfig

    Members
    -------
    commands : In(stream of 448 bits)
        Messages to the device about sequences, in order. The lines of a verdict come back to back.
    tokens : In(stream of 32 bits)
        Tokens of each OPEN and RESYNC, exactly as many as it announces.
    vocabulary : In
        Rows of the embedding table.
    enable : In(1)
        Passes may be handed out.
    room : In(1)
        The way to the host has room for all messages of a pass and of every sequence's verdict, so
        that nothing the unit sends later can wait for the host.
    passes : Out(stream of `pass_context`)
    visibility : Out(`visibility_write`)
        Written before the pass is handed out, for its rows.
    pages : Out(`page_write`)
    children : In(`child_result`)
        Tokens in place of channels; always ready.
    kill : Out(rows)
        Rows of the running pass that are of no use any more. All of them: abort.
    done : In(1)
        Pulse: the pass handed out has ended, as `result` says from then on.
    result : In(`pass_result`)
        Aborted without all rows killed means failed: the sequences concerned are given up.
    messages : Out(stream of 448 bits)
    idle : Out(1)
        Nothing to do until the next command.
    """

    def __init__(self, config: DeviceConfig) -> None:
        self._config = config
        line = stream.Signature(8 * PAYLOAD_BYTES)
        super().__init__(
            {
                "commands": In(line),
                "tokens": In(stream.Signature(32)),
                "vocabulary": In(TOKEN_BITS),
                "enable": In(1),
                "room": In(1),
                "passes": Out(stream.Signature(pass_context(config))),
                "visibility": Out(visibility_write(config)),
                "pages": Out(page_write()),
                "children": In(child_result(config)),
                "kill": Out(config.rows),
                "done": In(1),
                "result": In(pass_result(config)),
                "messages": Out(line),
                "idle": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Return the hardware."""
        m = Module()
        t = Context(m, self._config, self)
        self._build_pass(m, t)
        self._build_children(m, t)
        with m.FSM():
            self._add_init(m, t)
            self._add_main(m, t)
            add_command_states(t)
            add_verdict_states(t)
            add_begin_states(t)
            add_finish_states(t)
            # Subroutines last: by now everyone who calls them is known.
            add_close_states(t)
            add_page_states(t)
            with m.State("SEND"):
                m.d.comb += self.messages.valid.eq(1)
                with m.If(self.messages.ready):
                    t.send_state.leave(m)
        return m

    def _build_pass(self, m: Module, t: Context) -> None:
        """What the rest of the core sees of the pass, and what comes back of it."""
        payload = self.passes.payload
        m.d.comb += [payload.rows[i].eq(context) for i, context in enumerate(t.contexts)]
        m.d.comb += [payload.sequences[i].eq(share) for i, share in enumerate(t.shares)]
        dead = Cat(t.contexts[i].valid & ~t.alive(i) for i in range(self._config.rows))
        m.d.comb += [
            self.kill.eq(Mux(t.running, dead, 0)),
            self.messages.payload.eq(t.message),
            self.idle.eq(~t.running & ~t.stale),
        ]
        with m.If(self.done):
            m.d.sync += t.ended.eq(1)
        with m.If(self.idle):
            m.d.sync += t.idle_cycles.eq(t.idle_cycles + 1)

    def _build_children(self, m: Module, t: Context) -> None:
        """Store children as they come: in row `slot` of the child table, of use or not."""
        child = self.children.payload
        rows = self._config.rows
        slot = Array([row.slot for row in t.rows])[child.row]
        seq = Array([context.seq for context in t.contexts])[child.row]
        stops = Array([sequence.stops for sequence in t.sequences])[seq[: len(t.cur)]]
        # One stage: the table is large and the choice of the row's stop tokens wide.
        entry = Signal(child_entry(), reset_less=True)
        address = Signal(len(t.mem.child.w_addr), reset_less=True)
        valid = Signal()
        score = Signal(signed(16))
        m.d.comb += [self.children.ready.eq(1), score.eq(Mux(child.logprob > 0, 0, child.logprob))]
        m.d.sync += [
            valid.eq(self.children.valid),
            address.eq(t.mem.child_at(slot, child.rank)),
            entry.token.eq(child.channel),
            entry.logprob.eq(child.logprob),
            entry.score.eq(score),
            entry.stop.eq(
                Cat(stops[i].valid & (stops[i].token == child.channel) for i in range(4)).any()
            ),
        ]
        m.d.comb += [
            t.mem.child.w_en.eq(valid),
            t.mem.child.w_addr.eq(address),
            t.mem.child.w_data.eq(entry),
            t.mem.link.w_en.eq(valid),
            t.mem.link.w_addr.eq(address),
            t.mem.link.w_data.eq(0),
        ]
        for index in range(rows):
            with m.If(self.children.valid & (child.row == index)):
                m.d.sync += t.rows[index].count.eq(child.rank + 1)

    def _add_init(self, m: Module, t: Context) -> None:
        """After reset: all pages are free."""
        words, pages = t.mem.pool_words, self._config.pool_pages
        last = (1 << (pages - 64 * (words - 1))) - 1
        extra = Signal(range(max(words, self._config.seq_pages) + 1))
        with m.State("INIT"):
            with m.If(extra < words):
                m.d.comb += [
                    t.mem.pool.w_en.eq(1),
                    t.mem.pool.w_addr.eq(extra),
                    t.mem.pool.w_data.eq(Mux(extra == words - 1, last, (1 << 64) - 1)),
                ]
            with m.If(extra < self._config.seq_pages):
                t.write_extra(extra, 0)
            m.d.sync += extra.eq(extra + 1)
            with m.If(extra == max(words, self._config.seq_pages) - 1):
                m.next = "MAIN"

    def _add_main(self, m: Module, t: Context) -> None:
        """Commands first, then the end of a pass, then the next pass."""
        with m.State("MAIN"):
            m.d.comb += self.commands.ready.eq(1)
            m.d.sync += t.line.eq(self.commands.payload)
            with m.If(self.commands.valid):
                m.d.sync += t.cur.eq(self.commands.payload[8:16])
                m.next = "DISPATCH"
            with m.Elif(t.verdict_open):
                m.next = "MAIN"
            with m.Elif(t.running & t.ended):
                m.next = "FINISH"
            with m.Elif(~t.running & t.stale & self.enable & self.room):
                m.next = "BEGIN"
