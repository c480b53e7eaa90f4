"""Fetches the program and deals its instructions to the engines."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from dfvg_hw.common.arith import bits_for_range
from dfvg_hw.common.memory import Ram
from dfvg_hw.common.stream import Queue
from dfvg_hw.config import DeviceConfig
from dfvg_hw.interfaces import LOOP0_BITS, LOOP1_BITS, issue
from dfvg_hw.isa import INSTRUCTION_BYTES, Dest, Op

from .decode import opcode, view

__all__ = ["QUEUE_DEPTH", "Fetch"]

QUEUE_DEPTH = 16
"""Instructions that wait before each engine: more than a layer of a small model issues to one."""

CODE_BITS = 8 * INSTRUCTION_BYTES


class Fetch(wiring.Component):
    """Program memory, hardware loops, and one queue per engine.

    Every instruction goes to its engine's queue in program order; a full queue stops the fetch.
    *Throughput*: an instruction every 2 cycles. Reset stops it and empties the queues; the program
    stays.

    Parameters
    ----------
    config : DeviceConfig

    Members
    -------
    write_en, write_addr, write_data : In
        Write an instruction. Not while a pass runs.
    start : In(1)
        Pulse: run the program from its first instruction. Ignored unless `ended`.
    children : In(1)
        Some row of the pass wants children; else SKIP_NO_HEAD skips.
    load, mm, vec : Out(stream of `issue`)
    load_level, mm_level, vec_level : Out
        Instructions queued.
    ended : Out(1)
        PASS_END was reached (or nothing ever started); the queues may still hold instructions.
    pc, i0, i1 : Out
        For diagnosis.
    bad : Out(1)
        Pulse: an unknown opcode, or the end of program memory. The program is ended there.
    """

    def __init__(self, config: DeviceConfig) -> None:
        self._config = config
        pc_bits = bits_for_range(config.prog_depth)
        super().__init__(
            {
                "write_en": In(1),
                "write_addr": In(pc_bits),
                "write_data": In(CODE_BITS),
                "start": In(1),
                "children": In(1),
                "load": Out(stream.Signature(issue())),
                "mm": Out(stream.Signature(issue())),
                "vec": Out(stream.Signature(issue())),
                "load_level": Out(range(QUEUE_DEPTH + 1)),
                "mm_level": Out(range(QUEUE_DEPTH + 1)),
                "vec_level": Out(range(QUEUE_DEPTH + 1)),
                "ended": Out(1, init=1),
                "pc": Out(pc_bits),
                "i0": Out(LOOP0_BITS),
                "i1": Out(LOOP1_BITS),
                "bad": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Return the hardware."""
        m = Module()
        m.submodules.memory = memory = Ram(CODE_BITS, self._config.prog_depth, disjoint=True)
        queues = {}
        for name in ("load", "mm", "vec"):
            m.submodules[name] = queue = Queue(issue(), QUEUE_DEPTH)
            wiring.connect(m, queue.o, wiring.flipped(getattr(self, name)))
            m.d.comb += [
                getattr(self, f"{name}_level").eq(queue.level),
                queue.i.payload.code.eq(memory.r_data),
                queue.i.payload.i0.eq(self.i0),
                queue.i.payload.i1.eq(self.i1),
            ]
            queues[name] = queue
        fetched = Signal()  # the memory's output is the instruction at pc
        done = Signal()
        step = Signal.like(self.pc)  # next pc, without the overflow
        m.d.comb += [
            memory.w_en.eq(self.write_en),
            memory.w_addr.eq(self.write_addr),
            memory.w_data.eq(self.write_data),
            memory.r_en.eq(~self.ended & ~fetched),
            memory.r_addr.eq(self.pc),
            step.eq(self.pc + 1),
        ]
        m.d.sync += fetched.eq(~self.ended & (~fetched | ~done))
        with m.If(self.ended):
            with m.If(self.start):
                m.d.sync += [self.ended.eq(0), self.pc.eq(0), self.i0.eq(0), self.i1.eq(0)]
        with m.Elif(fetched):
            self._build_execute(m, memory.r_data, queues, done, step)
        return m

    def _build_execute(
        self, m: Module, code: Signal, queues: dict[str, Queue], done: Signal, step: Signal
    ) -> None:
        """One instruction: to its queue, or a jump."""
        skip = view(Op.SKIP_NO_HEAD, code)
        overflow = Signal()
        m.d.comb += overflow.eq(self.pc == self._config.prog_depth - 1)
        with m.If(done):
            m.d.sync += self.pc.eq(step)
            with m.If(overflow):
                m.d.sync += self.ended.eq(1)
                m.d.comb += self.bad.eq(1)
        with m.Switch(opcode(code)):
            for name, ops in (
                ("load", (Op.LOAD,)),
                ("mm", (Op.MM,)),
                ("vec", (Op.EMBED, Op.ROPE_TABLE, Op.QUANT, Op.SOFTMAX)),
            ):
                with m.Case(*ops):
                    m.d.comb += [queues[name].i.valid.eq(1), done.eq(queues[name].i.ready)]
            with m.Case(Op.SYNC):
                to_vec = view(Op.SYNC, code).dest == Dest.VEC
                m.d.comb += [
                    queues["vec"].i.valid.eq(to_vec),
                    queues["mm"].i.valid.eq(~to_vec),
                    done.eq(Mux(to_vec, queues["vec"].i.ready, queues["mm"].i.ready)),
                ]
            with m.Case(Op.LOOP, Op.LOOP_END):
                self._build_loops(m, code, done)
            with m.Case(Op.SKIP_NO_HEAD):
                m.d.comb += done.eq(1)
                with m.If(~self.children):
                    m.d.sync += self.pc.eq(self.pc + 1 + skip.count)
            with m.Case(Op.PASS_END):
                m.d.sync += self.ended.eq(1)
            with m.Default():
                m.d.sync += self.ended.eq(1)
                m.d.comb += self.bad.eq(1)

    def _build_loops(self, m: Module, code: Signal, done: Signal) -> None:
        loop, end = view(Op.LOOP, code), view(Op.LOOP_END, code)
        m.d.comb += done.eq(1)
        for level, index in ((0, self.i0), (1, self.i1)):
            first = Signal.like(self.pc, name=f"loop_{level}_first", reset_less=True)
            left = Signal(LOOP0_BITS, name=f"loop_{level}_left", reset_less=True)
            with m.If(opcode(code) == Op.LOOP):
                with m.If(loop.level == level):
                    m.d.sync += [
                        first.eq(self.pc + 1),
                        left.eq(loop.count - 1),
                        index.eq(0),
                    ]
            with m.Elif(end.level == level):
                m.d.sync += [
                    left.eq(left - 1),
                    index.eq(Mux(left == 0, 0, index + 1)),
                ]
                with m.If(left != 0):
                    m.d.sync += self.pc.eq(first)
