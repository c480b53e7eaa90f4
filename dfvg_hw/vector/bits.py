"""Bit length and normalisation, as logarithmic chains instead of priority encoders."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal, Value

__all__ = ["bit_length", "normalise"]


def _steps(width: int) -> list[int]:
    """Powers of two below `width`, descending."""
    step, steps = 1, []
    while step < width:
        steps.insert(0, step)
        step *= 2
    return steps


def bit_length(m: Module, value: Value, name: str) -> Signal:
    """Return the bit length of unsigned `value` (0 for 0), combinational.

    One multiplexer level per bit of the result: a priority encoder of 32 inputs is deeper, and a
    simulator evaluates this in a handful of instructions.
    """
    rest, flags = value, []
    for step in _steps(len(value)):
        high = Signal(name=f"{name}_ge{step}")
        kept = Signal(min(step, len(rest)), name=f"{name}_rest{step}")
        top = rest[step:]
        m.d.comb += [high.eq(top.any()), kept.eq(Mux(high, top, rest[:step]))]
        flags.insert(0, high)
        rest = kept
    result = Signal(range(len(value) + 1), name=name)
    # `rest` is one bit by now: the leading one, or 0 if `value` is 0.
    m.d.comb += result.eq(Cat(flags) + rest[0])
    return result


def normalise(m: Module, value: Value, name: str) -> tuple[Signal, Signal]:
    """Return (`value` shifted left until its top bit is 1, the shift), combinational.

    A value of 0 stays 0 and reports the largest shift.
    """
    width = len(value)
    rest, flags = value, []
    for step in _steps(width):
        low = Signal(name=f"{name}_lt{step}")
        kept = Signal(width, name=f"{name}_by{step}")
        m.d.comb += [
            low.eq(~rest[width - step :].any()),
            kept.eq(Mux(low, rest << step, rest)),
        ]
        flags.insert(0, low)
        rest = kept
    shift = Signal(len(flags), name=f"{name}_count")
    m.d.comb += shift.eq(Cat(flags))
    result = Signal(width, name=name)
    m.d.comb += result.eq(rest)
    return result, shift
