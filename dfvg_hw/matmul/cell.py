"""One cell of the systolic array: eight int8 multipliers and the activations they hold."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Signal, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from ..common.arith import bits_for_range, tree_sum
from ..common.memory import Ram
from ..config import LANES_PER_CELL

__all__ = ["PARTIAL", "Cell"]

PARTIAL = signed(22)
"""A row's partial sum: 64 products of at most 2**14 (even of -128, which valid data never has)."""


class Cell(wiring.Component):
    """Multiplies 8 weights by 8 stationary activations and adds the sum to the passing partial.

        partial_o = partial_i + sum(weight[j] * act[addr][j] for j in range(8))

    Nothing stalls or is gated: garbage between valid words is ignored by the accumulator, and
    registers without enables pack into multiplier blocks (and simulate fastest).

    *Latency* 3 cycles from ``weight_i`` and ``addr_i`` to ``partial_o`` (`CELL_LATENCY`);
    ``partial_i`` is added in the last of them, so a neighbour's inputs come one cycle later.
    ``weight_o`` and ``addr_o`` follow their inputs by 1 cycle. *Throughput* one word slice per
    cycle.

    Parameters
    ----------
    depth : int
        Words of activations (8 int8 each).
    lanes : int
        Elements written at once: 1, 2, 4 or 8.

    Members
    -------
    weight_i, weight_o : In, Out(64)
        Eight int8 weights; out to the next row's cell.
    addr_i, addr_o : In, Out
        Activation word; out to the next cell of the row.
    partial_i, partial_o : In, Out(signed 22)
    w_en : In(8 / lanes)
        Write these parts of ``w_data`` into activation word ``w_addr``.
    """

    def __init__(self, depth: int, lanes: int) -> None:
        self._depth, self._lanes = depth, lanes
        addr = bits_for_range(depth)
        super().__init__(
            {
                "weight_i": In(8 * LANES_PER_CELL),
                "weight_o": Out(8 * LANES_PER_CELL),
                "addr_i": In(addr),
                "addr_o": Out(addr),
                "partial_i": In(PARTIAL),
                "partial_o": Out(PARTIAL),
                "w_en": In(LANES_PER_CELL // lanes),
                "w_addr": In(addr),
                "w_data": In(8 * LANES_PER_CELL),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Return the hardware."""
        m = Module()
        # Operands are never written while the array reads them: token counters see to it.
        m.submodules.act = act = Ram(
            8 * LANES_PER_CELL, self._depth, granularity=8 * self._lanes, disjoint=True
        )
        weight = Signal(8 * LANES_PER_CELL, reset_less=True)
        addr = Signal.like(self.addr_i, reset_less=True)
        partial = Signal(PARTIAL, reset_less=True)
        bytes_of = data.ArrayLayout(signed(8), LANES_PER_CELL)
        weights, acts = data.View(bytes_of, weight), data.View(bytes_of, act.r_data)
        products = []
        for lane in range(LANES_PER_CELL):
            product = Signal(signed(16), name=f"product_{lane}", reset_less=True)
            m.d.sync += product.eq(weights[lane] * acts[lane])
            products.append(product)
        total = tree_sum(m, products, "total")
        m.d.sync += [
            weight.eq(self.weight_i),
            addr.eq(self.addr_i),
            partial.eq(total + self.partial_i),
        ]
        m.d.comb += [
            act.r_en.eq(1),
            act.r_addr.eq(self.addr_i),
            act.w_en.eq(self.w_en),
            act.w_addr.eq(self.w_addr),
            act.w_data.eq(self.w_data),
            self.weight_o.eq(weight),
            self.addr_o.eq(addr),
            self.partial_o.eq(partial),
        ]
        return m
