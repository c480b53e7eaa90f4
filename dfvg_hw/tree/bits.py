"""Small combinational helpers of the tree unit."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value

from ..common.arith import bits_for_range
from ..messages.line import HASH_PRIME

__all__ = ["Subroutine", "bit_of", "count_ones", "hash_step", "lowest", "smaller"]


def lowest(m: Module, mask: Value, name: str) -> Signal:
    """Return the index of the lowest set bit of `mask`; 0 if there's none.

    The bit is isolated by a subtraction (a carry chain) and encoded by OR trees, which is shorter
    than a chain of multiplexers.
    """
    width = len(mask)
    single = Signal(width, name=f"{name}_single")
    index = Signal(bits_for_range(width), name=name)
    m.d.comb += single.eq(mask & (~mask + 1))
    for bit in range(len(index)):
        chosen = [single[i] for i in range(width) if i >> bit & 1]
        if chosen:
            m.d.comb += index[bit].eq(Cat(chosen).any())
    return index


def bit_of(index: Value, width: int) -> Value:
    """Return a map of `width` bits with only bit `index` set."""
    # Exactly `width` bits, so that its complement has ones everywhere else.
    return (Const(1, width) << index)[:width]


def count_ones(m: Module, mask: Value, name: str) -> Signal:
    """Return the number of set bits, added up as a balanced tree of named signals."""
    level: list[Value] = [mask[i] for i in range(len(mask))]
    depth = 0
    while len(level) > 1:
        depth += 1
        following: list[Value] = []
        for pair in range(0, len(level) - 1, 2):
            total = Signal(depth + 1, name=f"{name}_{depth}_{pair}")
            m.d.comb += total.eq(level[pair] + level[pair + 1])
            following.append(total)
        level = following + level[len(level) - len(level) % 2 :]
    result = Signal(bits_for_range(len(mask) + 1), name=name)
    m.d.comb += result.eq(level[0])
    return result


def hash_step(m: Module, value: Value, token: Value, name: str) -> Signal:
    """Return the context hash after one more token, ``(value ^ token) * 16777619 mod 2^32``.

    The multiplier has six set bits, so the product is six shifted terms.
    """
    mixed = Signal(32, name=f"{name}_mixed")
    m.d.comb += mixed.eq(value ^ token)
    shifts = [bit for bit in range(32) if HASH_PRIME >> bit & 1]
    halves = []
    for number, part in enumerate((shifts[:3], shifts[3:])):
        half = Signal(32, name=f"{name}_half{number}")
        m.d.comb += half.eq(sum((mixed << shift)[:32] for shift in part))
        halves.append(half)
    result = Signal(32, name=name)
    m.d.comb += result.eq(halves[0] + halves[1])
    return result


class Subroutine:
    """States that several states of one FSM go to and come back from.

    ``call(m, back)`` goes to the entry state and remembers `back`; `leave` goes there. All calls
    must have been written before `leave` is, so subroutines' own states come last.

    Parameters
    ----------
    name : str
        The entry state.
    """

    def __init__(self, name: str) -> None:
        self.entry = name
        self._backs: list[str] = []
        self._back = Signal(5, name=f"{name.lower()}_back")

    def call(self, m: Module, back: str) -> None:
        """Go to the entry state, to return to state `back`."""
        if back not in self._backs:
            self._backs.append(back)
        m.d.sync += self._back.eq(self._backs.index(back))
        m.next = self.entry

    def leave(self, m: Module) -> None:
        """Return."""
        with m.Switch(self._back):
            for number, back in enumerate(self._backs):
                with m.Case(number):
                    m.next = back


def smaller(a: Any, b: Any) -> Value:
    """Return the smaller of two unsigned values."""
    return Mux(a < b, a, b)
