"""What the core did with its time, in cycles and words."""

from typing import Any

from amaranth.hdl import Module
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

__all__ = ["COUNTER_BITS", "Counters", "counter_values"]

COUNTER_BITS = 48
"""16 days at 200 MHz."""

_NAMES = (
    "cycles",
    "busy",
    "starved",
    "blocked",
    "words_read",
    "words_written",
    "passes",
    "aborted",
)


def counter_values() -> data.StructLayout:
    """All counters; see the members of `Counters`."""
    return data.StructLayout(dict.fromkeys(_NAMES, COUNTER_BITS))


class Counters(wiring.Component):
    """Event counters since reset; they wrap. *Latency* 1 cycle.

    Members
    -------
    event : In(one bit per counter)
        Count in this cycle: ``cycles`` (clock cycles), ``busy`` (inside passes), ``starved`` (the
        array waits for a word from memory), ``blocked`` (a read waits for room in the prefetch
        FIFO: compute is slower than memory), ``words_read``, ``words_written``, ``passes``,
        ``aborted``.
    value : Out(`counter_values`)
    """

    event: In(data.StructLayout(dict.fromkeys(_NAMES, 1)))
    value: Out(counter_values())

    def elaborate(self, platform: Any) -> Module:
        """Return the hardware."""
        m = Module()
        for name in _NAMES:
            with m.If(self.event[name]):
                m.d.sync += self.value[name].eq(self.value[name] + 1)
        return m
