"""What must hold in every bench: the stream protocol, and scoreboards that end empty."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from sim.cocotb.streams import StreamPort, _Agent

__all__ = ["ProtocolChecker", "ProtocolViolation", "Scoreboard"]


class ProtocolViolation(AssertionError):
    """A stream broke its contract."""


class ProtocolChecker(_Agent):
    """Checks in every cycle that a stream keeps its contract.

    Once `valid` is high, it and the payload stay until the cycle in which `ready` is high too.
    While reset has been held for a cycle, and in the cycle after it, `valid` is low.

    Parameters
    ----------
    port : StreamPort
        The stream, in either direction: a bench's own driver is checked too.
    valid_after_reset : bool
        Allow `valid` in and right after reset, for a stream whose first item is there from reset
        on (a pool that starts full).
    """

    def __init__(self, port: StreamPort, valid_after_reset: bool = False) -> None:
        self._valid_after_reset = valid_after_reset
        self._held: int | None = None
        self._was_reset = False
        self.cycles = 0
        super().__init__(port)

    def forget(self) -> None:
        """Let an offered item be withdrawn once: the stream was just cleared on purpose."""
        self._held = None

    def _cycle(self) -> None:
        port, self.cycles = self.port, self.cycles + 1
        valid, reset = port.is_valid(), port.in_reset()
        if self._was_reset and valid and not self._valid_after_reset:
            raise ProtocolViolation(f"{port.name}: valid in reset or right after it")
        self._was_reset = reset
        if reset:
            self._held = None
            return
        bits = port.bits() if valid else None
        if self._held is not None and bits != self._held:
            now = "valid fell" if bits is None else f"payload became {bits:#x}"
            raise ProtocolViolation(f"{port.name}: {now} before {self._held:#x} was accepted")
        self._held = None if port.is_ready() else bits


class Scoreboard:
    """Compares items with what was expected, in order.

    Parameters
    ----------
    name : str
        For the text of a failure.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.matched = 0
        self._expected: deque[Any] = deque()

    def expect(self, *items: Any) -> None:
        """Add expected items."""
        self._expected.extend(items)

    def expect_all(self, items: Iterable[Any]) -> None:
        """Add expected items from an iterable."""
        self._expected.extend(items)

    def check(self, item: Any) -> None:
        """Take an item from the design; use it as a monitor's callback.

        Raises
        ------
        AssertionError
            If it isn't the next expected item, or none is expected.
        """
        if not self._expected:
            raise AssertionError(f"{self.name}: unexpected item {item!r} after {self.matched}")
        wanted = self._expected.popleft()
        if item != wanted:
            raise AssertionError(
                f"{self.name}: item {self.matched} is {item!r}, expected {wanted!r}"
            )
        self.matched += 1

    def clear(self) -> None:
        """Forget what is expected, as after a reset."""
        self._expected.clear()

    @property
    def pending(self) -> int:
        """Expected items that have not come."""
        return len(self._expected)

    def assert_empty(self) -> None:
        """Raise `AssertionError` if expected items have not come."""
        if self._expected:
            raise AssertionError(
                f"{self.name}: {len(self._expected)} items missing after {self.matched}, "
                f"first {self._expected[0]!r}"
            )
