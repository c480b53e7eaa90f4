"""From MM and SYNC instructions to commands: fields, loop strides, counts."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from ..config import PAGE, DeviceConfig
from ..interfaces import issue
from ..isa import Op, OutOp
from ..overlap.decode import opcode, view
from .control import command

__all__ = ["Decoder"]


class Decoder(wiring.Component):
    """Resolves indices and counts of an instruction for the sequencer.

    *Latency* 2 cycles, *throughput* one instruction per cycle; holds up to two instructions, so
    that the next one is ready when one ends. Reset empties it.

    Parameters
    ----------
    config : DeviceConfig

    Members
    -------
    i : In(stream of `issue`)
        MM instructions and SYNC.
    o : Out(stream of `command`)
    busy : Out(1)
        An instruction is inside.
    """

    def __init__(self, config: DeviceConfig) -> None:
        self._config = config
        super().__init__(
            {
                "i": In(stream.Signature(issue())),
                "o": Out(stream.Signature(command(config))),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Return the hardware."""
        m = Module()
        held = Signal(issue(), reset_less=True)
        held_valid = Signal()
        move = Signal()
        code = view(Op.MM, self.i.payload.code)
        strides = {
            name: Signal(width, name=f"{name}_offset", reset_less=True)
            for name, width in (("act1", 14), ("scale1", 13), ("vm1", 20))
        }
        m.d.comb += [
            move.eq(held_valid & (~self.o.valid | self.o.ready)),
            self.i.ready.eq(~held_valid | move),
            self.busy.eq(held_valid | self.o.valid),
        ]
        with m.If(self.i.ready):
            m.d.sync += held_valid.eq(self.i.valid)
            with m.If(self.i.valid):
                m.d.sync += held.eq(self.i.payload)
                m.d.sync += [
                    offset.eq(code[name] * self.i.payload.i1) for name, offset in strides.items()
                ]
        with m.If(~self.o.valid | self.o.ready):
            m.d.sync += self.o.valid.eq(held_valid)
        with m.If(move):
            self._build_command(m, held, strides)
        return m

    def _build_command(self, m: Module, held: Any, strides: dict[str, Signal]) -> None:
        """Fill the output record; inside the condition that it moves."""
        config, o = self._config, self.o.payload
        code = view(Op.MM, held.code)
        word_bits = config.group_words.bit_length() - 1
        score, pv = code.out == OutOp.SCORE, code.out == OutOp.PV
        # One channel, token or dim takes this many words: a PV item is one page of tokens.
        words = Mux(pv, config.group_words, code.groups << word_bits)
        items = Mux(pv, code.groups * PAGE, Mux(score, PAGE, config.bus_bytes // 2))
        act_head = Mux(pv, config.seq_pages, code.groups)
        m.d.sync += [
            o.wait.eq(code.wait),
            o.signal.eq(code.signal),
            o.nothing.eq(opcode(held.code) != Op.MM),
            o.paged.eq(score | pv),
            o.out.eq(code.out),
            o.words.eq(words - 1),
            o.items.eq(items - 1),
            o.blocks.eq(code.blocks - 1),
            o.heads.eq(Mux(score | pv, code.gqa - 1, 0)),
            o.act.eq((code.act + strides["act1"]) << word_bits),
            o.act_head.eq(act_head << word_bits),
            o.scale.eq(code.scale + strides["scale1"]),
            o.pre.eq(code.pre),
            o.sbase.eq(code.sbase),
            o.vm.eq(code.vm + strides["vm1"]),
            o.layer.eq(held.i0),
            o.head.eq(held.i1),
        ]
