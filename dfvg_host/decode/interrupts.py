"""Ctrl-C where nothing is half done: noted at once, raised at the next place that allows for it."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

__all__ = ["Interrupts"]


class Interrupts:
    """Holds Ctrl-C back while it is entered.

    Python would raise `KeyboardInterrupt` between any two instructions: with a token written but
    not yet counted, say. Here the first Ctrl-C is noted, and `check` raises it. The second is not
    held back, for whoever can't wait.

    Signals belong to the main thread; in any other, and where the program has a handler of its own,
    this does nothing. May be nested.

    Attributes
    ----------
    impatient : bool
        Ctrl-C came again before `check`: what was under way may be half done.
    """

    def __init__(self) -> None:
        self.impatient = False
        self._noted = False
        self._old: Any = None

    def __enter__(self) -> Interrupts:
        """Start to hold back."""
        if threading.current_thread() is threading.main_thread():
            old = signal.getsignal(signal.SIGINT)
            if old is signal.default_int_handler or isinstance(
                getattr(old, "__self__", None), Interrupts
            ):
                self._old = old
                signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Hold back no longer; what came after the last `check` goes on to whoever is outside."""
        if self._old is not None:
            signal.signal(signal.SIGINT, self._old)
            if self._noted and kind is None:
                signal.raise_signal(signal.SIGINT)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._noted:
            self._noted, self.impatient = False, True
            raise KeyboardInterrupt
        self._noted = True

    def check(self) -> None:
        """Raise what was noted.

        Raises
        ------
        KeyboardInterrupt
            If Ctrl-C has come.
        """
        if self._noted:
            self._noted = False
            raise KeyboardInterrupt
