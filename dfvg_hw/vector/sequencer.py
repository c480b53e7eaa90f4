"""Takes the vector unit's instructions one by one and starts the part that executes each."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from ..attention.score_store import STORE_LATENCY
from ..config import DeviceConfig
from ..interfaces import issue
from ..isa import Op
from .command import command, decode

__all__ = ["SETTLE", "Sequencer"]

SETTLE = STORE_LATENCY + 1
"""Cycles after a token of MM until its last results are in this unit's memories."""


class Sequencer(wiring.Component):
    """Decode, wait for a token, start, wait for the end, give a token.

    A QUANT with gain starts loading its gains at once, before its token comes: they are next in
    the stream of memory words, in front of the words of the MM that follows.

    *Latency* 3 cycles per instruction besides execution, and ``SETTLE`` more if it waits.

    Parameters
    ----------
    config : DeviceConfig

    Members
    -------
    issue : In(stream(issue))
    mm_token : In(1), mm_take : Out(1), token : Out(1)
    cmd : Out(command)
        The instruction that runs.
    gain_start : Out(1)
        Pulse: load the gains of ``cmd``.
    start_embed, start_rope, start_quant, start_softmax : Out(1)
        Pulses.
    done : In(1)
        Pulse: the part that was started has finished.
    busy : Out(1)
        An instruction is offered or runs.
    """

    def __init__(self, config: DeviceConfig) -> None:
        self._config = config
        super().__init__(
            {
                "issue": In(stream.Signature(issue())),
                "mm_token": In(1),
                "mm_take": Out(1),
                "token": Out(1),
                "cmd": Out(command(config)),
                "gain_start": Out(1),
                "start_embed": Out(1),
                "start_rope": Out(1),
                "start_quant": Out(1),
                "start_softmax": Out(1),
                "done": In(1),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Return the hardware."""
        m = Module()
        settle = Signal(range(SETTLE + 1))
        decoded = decode(m, self._config, self.issue.payload)
        starts = {
            Op.EMBED: self.start_embed,
            Op.ROPE_TABLE: self.start_rope,
            Op.QUANT: self.start_quant,
            Op.SOFTMAX: self.start_softmax,
        }
        m.d.sync += self.token.eq(0)
        with m.FSM(name="sequence") as fsm:
            m.d.comb += self.busy.eq(~fsm.ongoing("IDLE") | self.issue.valid | self.token)
            with m.State("IDLE"):
                m.d.comb += self.issue.ready.eq(1)
                with m.If(self.issue.valid):
                    m.d.sync += self.cmd.eq(decoded)
                    m.next = "BEGIN"
            with m.State("BEGIN"):
                m.d.comb += self.gain_start.eq((self.cmd.op == int(Op.QUANT)) & self.cmd.gain)
                m.d.sync += settle.eq(SETTLE)
                with m.If(self.cmd.wait):
                    m.next = "WAIT"
                with m.Else():
                    m.next = "START"
            with m.State("WAIT"):
                with m.If(self.mm_token):
                    m.d.comb += self.mm_take.eq(1)
                    m.next = "SETTLE"
            with m.State("SETTLE"):
                m.d.sync += settle.eq(settle - 1)
                with m.If(settle == 1):
                    m.next = "START"
            with m.State("START"):
                with m.Switch(self.cmd.op):
                    for op, start in starts.items():
                        with m.Case(int(op)):
                            m.d.comb += start.eq(1)
                            m.next = "RUN"
                    with m.Case(int(Op.SYNC)):
                        m.next = "FINISH"
                    with m.Default():
                        # Not one of ours: the fetcher never sends it; drop it, don't hang.
                        m.next = "IDLE"
            with m.State("RUN"):
                with m.If(self.done):
                    m.next = "FINISH"
            with m.State("FINISH"):
                # The last registered writes leave in this cycle.
                m.d.sync += self.token.eq(self.cmd.signal)
                m.next = "IDLE"
        return m
