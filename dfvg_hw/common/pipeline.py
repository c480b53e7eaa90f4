"""Delay lines that keep values beside a pipeline."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Signal

__all__ = ["delayed"]


def delayed(m: Module, value: Any, cycles: int, name: str, *, reset: bool = False) -> list[Any]:
    """Return `value` and its copies delayed by 1 to `cycles` cycles.

    Parameters
    ----------
    m : Module
        Receives the registers.
    value : Value or View
        A signal; an expression would be evaluated once only, by the first register.
    cycles : int
        Registers, from 0.
    name : str
        Prefix of their names.
    reset : bool
        Clear the registers by reset, as ``valid`` bits need. Data should not: registers without
        reset become shift-register memories and simulate faster.
    """
    taps = [value]
    for cycle in range(1, cycles + 1):
        # Not Signal.like: it fails for unions in Amaranth 0.5.
        tap = Signal(value.shape(), name=f"{name}_{cycle}", reset_less=not reset)
        m.d.sync += tap.eq(taps[-1])
        taps.append(tap)
    return taps
