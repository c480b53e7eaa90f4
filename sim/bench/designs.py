"""Tops for speed measurements: the matrix engine kept busy, and a bare array to compare with."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Signal, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from dfvg_hw.common.arith import tree_sum
from dfvg_hw.config import GROUP, DeviceConfig
from dfvg_hw.isa import Instruction, Op, OutOp
from dfvg_hw.matmul import MatmulEngine

__all__ = ["BareArray", "BusyEngine"]

_LOAD_BITS = 16


class BareArray(wiring.Component):
    """A systolic array without anything around it: the yardstick for simulation speed.

    Weight words hop from row to row; every row multiplies them by its registered activations and
    accumulates. No control, no memories, no output path.

    Parameters
    ----------
    rows, lanes : int
        rows * lanes multipliers.

    Members
    -------
    word : In(8 * lanes)
    load : In(1)
        Shift ``word`` into the activations of row 0, and each row's into the next.
    check : Out(32)
        Exclusive or of the rows' accumulators.
    """

    def __init__(self, rows: int, lanes: int) -> None:
        self._rows, self._lanes = rows, lanes
        super().__init__({"word": In(8 * lanes), "load": In(1), "check": Out(32)})

    def elaborate(self, platform: Any) -> Module:
        """Return the hardware."""
        m = Module()
        shape = data.ArrayLayout(signed(8), self._lanes)
        word, act_in = self.word, self.word
        check: Any = 0
        for row in range(self._rows):
            weight = Signal(shape, name=f"weight_{row}", reset_less=True)
            act = Signal(shape, name=f"act_{row}", reset_less=True)
            acc = Signal(signed(32), name=f"acc_{row}", reset_less=True)
            products = []
            for lane in range(self._lanes):
                product = Signal(signed(16), name=f"product_{row}_{lane}", reset_less=True)
                m.d.sync += product.eq(weight[lane] * act[lane])
                products.append(product)
            m.d.sync += [weight.eq(word), acc.eq(acc + tree_sum(m, products, f"sum_{row}"))]
            with m.If(self.load):
                m.d.sync += act.eq(act_in)
            word, act_in = weight, act
            check = check ^ acc
        m.d.comb += self.check.eq(check)
        return m


class BusyEngine(wiring.Component):
    """`MatmulEngine` that runs one linear layer after the other on the words at its port.

    Members
    -------
    word : In(8 * bus_bytes)
        Consumed in every cycle in which ``taken`` is high.
    load : In(1)
        Write the low bytes of ``word`` to unit ``addr`` of every row's activations, and a shift and
        a row scale made of them.
    addr : In(16)
    taken : Out(1)
    check : Out(32)
        Exclusive or of what the rows write to vector memory.
    """

    def __init__(self, config: DeviceConfig, groups: int, out: OutOp) -> None:
        self._config, self._groups, self._out = config, groups, out
        super().__init__(
            {
                "word": In(8 * config.bus_bytes),
                "load": In(1),
                "addr": In(_LOAD_BITS),
                "taken": Out(1),
                "check": Out(32),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Return the hardware."""
        config = self._config
        m = Module()
        m.submodules.engine = engine = MatmulEngine(config)
        instruction = Instruction(
            Op.MM, out=self._out, blocks=18, groups=self._groups, pre=9, sbase=12
        )
        m.d.comb += [
            engine.issue.valid.eq(~self.load),
            engine.issue.p.code.eq(int.from_bytes(instruction.encode(), "little")),
            engine.words.valid.eq(~self.load),
            engine.words.payload.eq(self.word),
            engine.kv.ready.eq(1),
            engine.head_groups.eq(1),
            self.taken.eq(engine.words.ready),
        ]
        check: Any = 0
        unit = GROUP // config.lanes
        for row in range(config.rows):
            written = Signal(32, name=f"written_{row}", reset_less=True)
            vm = engine.vm_w[row]
            with m.If(vm.en):
                m.d.sync += written.eq(vm.data ^ vm.addr)
            check = check ^ written
            m.d.comb += [
                engine.act_w[row].en.eq(self.load),
                engine.act_w[row].addr.eq(self.addr),
                engine.act_w[row].data.eq(self.word >> row),
                engine.shift_w[row].en.eq(self.load),
                engine.shift_w[row].group.eq(self.addr // unit),
                engine.shift_w[row].shift.eq(self.word),
                engine.scale_w[row].en.eq(self.load),
                engine.scale_w[row].index.eq(self.addr),
                engine.scale_w[row].mant.eq(0xC000),
            ]
        m.d.comb += self.check.eq(check)
        return m
