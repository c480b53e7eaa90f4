"""Virtual time in whole device cycles."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["VirtualClock"]


@dataclass
class VirtualClock:
    """Integer count of device clock cycles; integers so that no run depends on summation order.

    Attributes
    ----------
    hertz: cycles per second of the device's core clock.
    now: cycles since the request began.
    """

    hertz: int
    now: int = 0

    def cycles(self, seconds: float) -> int:
        """Return a duration in cycles, to the nearest."""
        return round(seconds * self.hertz)

    def advance(self, cycles: int) -> None:
        """Let time pass; it never runs backwards."""
        if cycles < 0:
            raise ValueError(f"time can't go back by {-cycles} cycles")
        self.now += cycles

    @property
    def seconds(self) -> float:
        """Virtual seconds since the request began."""
        return self.now / self.hertz
