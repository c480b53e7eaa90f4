"""Sequence of the QUANT instruction."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from ..common.arith import bits_for_range
from ..config import DeviceConfig
from ..isa import QuantMode
from .command import command
from .passes import PassKind, group_beats
from .scalar import ScalarOp

__all__ = ["QuantControl"]


class QuantControl(wiring.Component):
    """Per scope (the vector, or a head): MAX pass, scales, QUANT pass, and RMS if asked for.

    *Latency* per scope of g groups: ``2 * (64 * g / lanes + STAGES + 3)`` for the passes,
    ``rows + SCALAR_LATENCY + 2`` for the scales, as much again for RMS; plus 2 per instruction.

    Parameters
    ----------
    config : DeviceConfig

    Members
    -------
    start : In(1), cmd : In(command)
        Begin; ``cmd`` must stay until ``done``.
    pass_start : Out(1), kind : Out(PassKind), groups : Out(10), offset : Out, pass_done : In(1)
        To `PassIssuer`.
    scalar_start : Out(1), scalar_op : Out(ScalarOp), scalar_done : In(1)
        To `ScalarUnit`.
    kv : Out(1)
        The scales are sf8 and there are no group exponents.
    head : Out(8)
        Number of the scope.
    done : Out(1)
        Pulse.
    """

    def __init__(self, config: DeviceConfig) -> None:
        self._config = config
        super().__init__(
            {
                "start": In(1),
                "cmd": In(command(config)),
                "pass_start": Out(1),
                "kind": Out(PassKind),
                "groups": Out(10),
                "offset": Out(bits_for_range(config.vm_depth // config.lanes)),
                "pass_done": In(1),
                "scalar_start": Out(1),
                "scalar_op": Out(ScalarOp),
                "scalar_done": In(1),
                "kv": Out(1),
                "head": Out(8),
                "done": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Return the hardware."""
        m = Module()
        beats = group_beats(self._config)
        left = Signal(10)  # groups from this scope on
        mode = self.cmd.mode
        m.d.comb += [
            self.kv.eq((mode == QuantMode.HEAD_K) | (mode == QuantMode.HEAD_V)),
            self.groups.eq(Mux(mode == QuantMode.ROW, self.cmd.groups, self.cmd.head_groups)),
        ]
        with m.FSM(name="quant"):
            with m.State("IDLE"):
                m.d.sync += [self.offset.eq(0), self.head.eq(0), left.eq(self.cmd.groups)]
                m.d.sync += [self.kind.eq(PassKind.MAX), self.scalar_op.eq(ScalarOp.SCALE)]
                with m.If(self.start):
                    m.next = "PASS"
            with m.State("PASS"):
                m.d.comb += self.pass_start.eq(1)
                m.next = "WALK"
            with m.State("WALK"):
                with m.If(self.pass_done):
                    with m.If((self.kind == PassKind.MAX) | self.cmd.rms):
                        m.next = "SCALAR"
                    with m.Else():
                        m.next = "NEXT"
            with m.State("SCALAR"):
                m.d.comb += self.scalar_start.eq(1)
                m.next = "COMPUTE"
            with m.State("COMPUTE"):
                with m.If(self.scalar_done):
                    with m.If(self.kind == PassKind.MAX):
                        m.d.sync += [
                            self.kind.eq(PassKind.QUANT),
                            self.scalar_op.eq(ScalarOp.RMS),
                        ]
                        m.next = "PASS"
                    with m.Else():
                        m.next = "NEXT"
            with m.State("NEXT"):
                m.d.sync += [
                    self.kind.eq(PassKind.MAX),
                    self.scalar_op.eq(ScalarOp.SCALE),
                    self.head.eq(self.head + 1),
                    self.offset.eq(self.offset + self.groups * beats),
                    left.eq(left - self.groups),
                ]
                with m.If(left <= self.groups):
                    m.d.comb += self.done.eq(1)
                    m.next = "IDLE"
                with m.Else():
                    m.next = "PASS"
        return m
