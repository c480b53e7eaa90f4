"""The one memory of the core: simple dual port (one write, one synchronous read).

Anything wider in function (more readers, asynchronous reads, transparent ports) does not map to
block RAM the same way on every family, so blocks are built around this shape.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from amaranth.hdl import Module, unsigned
from amaranth.lib import memory, wiring
from amaranth.lib.wiring import In, Out

from .arith import bits_for_range

__all__ = ["Ram", "Rom", "memory_attrs"]


def memory_attrs(*, depth: int, disjoint: bool = False) -> dict[str, Any]:
    """Return the synthesis attributes of a memory.

    Parameters
    ----------
    depth : int
        Words. Up to 32 words are worth distributed RAM only; more go to block RAM by themselves.
    disjoint : bool
        The block never reads the address that it writes in the same cycle (or ignores what it
        then reads), so the read-under-write emulation of some families can be left out.
    """
    attrs: dict[str, Any] = {}
    if depth <= 32:
        attrs["ram_style"] = "distributed"
    if disjoint:
        attrs["no_rw_check"] = 1
    return attrs


class Ram(wiring.Component):
    """Simple dual-port RAM.

    Parameters
    ----------
    width : int
        Bits of a word.
    depth : int
        Words, any number from 1.
    granularity : int, optional
        Bits written by one bit of ``w_en``; must divide `width`. The whole word by default.
    init : iterable of int
        First words at power-up; reset does not restore them.
    disjoint : bool
        See `memory_attrs`.

    Members
    -------
    w_en : In(width / granularity)
        Write these parts of ``w_data`` to ``w_addr``.
    r_en : In(1)
        Read ``r_addr``. ``r_data`` keeps its value while this is low.
    r_data : Out(width)
        The word, one cycle after ``r_en``. A read of the address being written returns the old
        word.

    Raises
    ------
    ValueError
        If `granularity` does not divide `width`.
    """

    def __init__(
        self,
        width: int,
        depth: int,
        *,
        granularity: int | None = None,
        init: Iterable[int] = (),
        disjoint: bool = False,
    ) -> None:
        parts = width // (granularity or width)
        if granularity is not None and granularity * parts != width:
            raise ValueError(f"granularity {granularity} doesn't divide the width {width}")
        self._width, self._depth, self._granularity = width, depth, granularity
        self._init, self._disjoint = list(init), disjoint
        addr = bits_for_range(depth)
        super().__init__(
            {
                "w_en": In(parts),
                "w_addr": In(addr),
                "w_data": In(width),
                "r_en": In(1),
                "r_addr": In(addr),
                "r_data": Out(width),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Return the hardware."""
        m = Module()
        # Amaranth gives a one-word memory an address without bits: two words cost nothing more.
        depth = max(2, self._depth)
        m.submodules.mem = mem = memory.Memory(
            shape=unsigned(self._width),
            depth=depth,
            init=self._init,
            attrs=memory_attrs(depth=depth, disjoint=self._disjoint),
        )
        write = mem.write_port(granularity=self._granularity)
        read = mem.read_port()
        m.d.comb += [
            write.en.eq(self.w_en),
            write.addr.eq(self.w_addr),
            write.data.eq(self.w_data),
            read.en.eq(self.r_en),
            read.addr.eq(self.r_addr),
            self.r_data.eq(read.data),
        ]
        return m


class Rom(wiring.Component):
    """Synchronous ROM.

    Parameters
    ----------
    width : int
        Bits of a word.
    words : iterable of int
        The contents.

    Members
    -------
    r_en : In(1)
    r_addr : In
    r_data : Out(width)
        The word, one cycle after ``r_en``; kept while ``r_en`` is low.
    """

    def __init__(self, width: int, words: Iterable[int]) -> None:
        self._width, self._words = width, list(words)
        super().__init__(
            {
                "r_en": In(1),
                "r_addr": In(bits_for_range(len(self._words))),
                "r_data": Out(width),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Return the hardware."""
        m = Module()
        m.submodules.mem = mem = memory.Memory(
            shape=unsigned(self._width), depth=len(self._words), init=self._words
        )
        read = mem.read_port()
        m.d.comb += [
            read.en.eq(self.r_en),
            read.addr.eq(self.r_addr),
            self.r_data.eq(read.data),
        ]
        return m
