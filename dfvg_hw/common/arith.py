"""Arithmetic helpers whose widths are right by construction.

Each helper adds named signals to the module it is given: an unnamed expression that is used twice
would be emitted twice, and the width of a chain of Python additions grows with every term.
All are combinational; the caller registers results.
"""

from __future__ import annotations

from collections.abc import Sequence

from amaranth.hdl import Const, Module, Mux, Shape, Signal, Value, signed, unsigned

__all__ = ["bits_for_range", "clamp", "rshr", "sat32", "saturate", "tree_sum"]


def bits_for_range(count: int) -> int:
    """Return the width of an unsigned index below `count`, at least 1."""
    return max(1, (count - 1).bit_length())


def tree_sum(m: Module, terms: Sequence[Value], name: str) -> Value:
    """Return the sum of `terms` as a balanced adder tree.

    Parameters
    ----------
    m : Module
        Receives the adders.
    terms : sequence of Value
        At least one, all signed or all unsigned.
    name : str
        Prefix of the signals' names.

    Returns
    -------
    Value
        As wide as the widest term plus ceil(log2(number of terms)): it can't overflow.
    """
    level = [Value.cast(term) for term in terms]
    depth = 0
    while len(level) > 1:
        sums: list[Value] = []
        for index in range(0, len(level) - 1, 2):
            a, b = level[index], level[index + 1]
            total = Signal((a + b).shape(), name=f"{name}_{depth}_{index // 2}")
            m.d.comb += total.eq(a + b)
            sums.append(total)
        if len(level) % 2:
            sums.append(level[-1])
        level, depth = sums, depth + 1
    return level[0]


def rshr(m: Module, value: Value, amount: Value | int, name: str) -> Signal:
    """Return ``(value + 2**(amount-1)) >> amount``, or `value` where `amount` is 0.

    Right shift that rounds half up, as `dfvg_hw.numerics` does everywhere.

    Parameters
    ----------
    m : Module
        Receives the shifter and the increment.
    value : Value
        Signed or unsigned.
    amount : Value or int
        Unsigned; may exceed the width of `value`.
    name : str
        Name of the result.

    Returns
    -------
    Signal
        One bit wider than `value` less a constant `amount`, of the same signedness.
    """
    shape = value.shape()
    if isinstance(amount, int):
        width = max(1, shape.width - amount) + 1
        result = Signal(Shape(width, shape.signed), name=name)
        if amount == 0:
            m.d.comb += result.eq(value)
        else:
            m.d.comb += result.eq((value >> amount) + (value >> (amount - 1))[0])
        return result
    # One guard bit below: shifting 2*value leaves the bit that decides the rounding in bit 0.
    shifted = Signal(Shape(shape.width + 1, shape.signed), name=f"{name}_shifted")
    doubled = Signal(Shape(shape.width + 1, shape.signed), name=f"{name}_doubled")
    result = Signal(Shape(shape.width + 1, shape.signed), name=name)
    m.d.comb += [
        doubled.eq(value << 1),
        shifted.eq(doubled >> amount),
        result.eq((shifted >> 1) + shifted[0]),
    ]
    return result


def clamp(m: Module, value: Value, low: int, high: int, name: str) -> Signal:
    """Return `value` limited to `low`..`high`, in the narrowest shape that holds both."""
    shape = (
        signed(max((high).bit_length(), (~low if low < 0 else low).bit_length()) + 1)
        if low < 0
        else unsigned(max(1, high.bit_length()))
    )
    result = Signal(shape, name=name)
    over = Signal(name=f"{name}_over")
    under = Signal(name=f"{name}_under")
    m.d.comb += [
        over.eq(value > high),
        under.eq(value < low),
        result.eq(Mux(over, Const(high, shape), Mux(under, Const(low, shape), value))),
    ]
    return result


def saturate(m: Module, value: Value, bits: int, name: str) -> Signal:
    """Return `value` limited to +-(2**(bits-1) - 1), as ``signed(bits)``.

    Symmetric: the most negative code never appears, so that negation can't overflow.
    """
    limit = (1 << (bits - 1)) - 1
    width = value.shape().width
    if not value.shape().signed or width < bits:
        return clamp(m, value, -limit, limit, name)
    result = Signal(signed(bits), name=name)
    fits = Signal(name=f"{name}_fits")
    sign = value[width - 1]
    # It fits if all bits from the sign of the result up agree; the most negative code is then
    # the one value left to exclude.
    top = value[bits - 1 :]
    lowest = value[: bits - 1] == 0
    m.d.comb += [
        fits.eq(Mux(sign, top.all() & ~lowest, ~top.any())),
        result.eq(
            Mux(
                fits,
                value[:bits].as_signed(),
                Mux(sign, Const(-limit, signed(bits)), Const(limit, signed(bits))),
            )
        ),
    ]
    return result


def sat32(m: Module, value: Value, name: str) -> Signal:
    """Return `value` limited to +-(2**31 - 1), the ACT format's saturation."""
    return saturate(m, value, 32, name)
