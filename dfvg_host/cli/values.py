"""What every option accepts: the one place where values are judged, for the command line and API.

Only the value itself is judged here. Whether a model exists, a prompt fits or a config is known is
found out by the part that uses it, which raises its own `DfvgError`.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from dfvg_host.files import writable
from dfvg_hw.errors import UsageError

__all__ = [
    "RULES",
    "Choice",
    "Number",
    "OutputFile",
    "Rule",
    "Window",
    "check",
    "existing_file",
    "parse",
    "parse_as",
    "working_folder",
]


_MOST_SHOWN = 200  # characters of a bad value; whatever goes beyond tells nobody anything


@dataclass(frozen=True)
class Number:
    """A whole number or a decimal one, within limits.

    Parameters
    ----------
    kind : type
        `int` or `float`.
    low, high : float
        Limits, both accepted unless `above_low`; no upper limit by default.
    above_low : bool
        `low` itself is refused.
    """

    kind: type
    low: float
    high: float = math.inf
    above_low: bool = False

    def accepted(self) -> str:
        """Return what is accepted, in words."""
        noun = "a whole number" if self.kind is int else "a number"
        if self.high == math.inf:
            return f"{noun}, {self.low} or more"
        start = f"above {self.low} and up" if self.above_low else f"from {self.low}"
        return f"{noun} {start} to {self.high}"

    def __call__(self, value: Any) -> int | float:
        """Return the number that a text or number stands for, or raise `ValueError`."""
        if isinstance(value, bool):
            raise ValueError("not a number")
        number = self.kind(value)
        if self.kind is int and not isinstance(value, str) and number != value:
            raise ValueError("not whole")
        if not (self.low < number if self.above_low else self.low <= number):
            raise ValueError("too small")  # also refuses a number that isn't one (nan)
        if number > self.high or (self.kind is float and math.isinf(number)):
            raise ValueError("too large")
        return number


@dataclass(frozen=True)
class Choice:
    """One of a few words."""

    words: tuple[str, ...]

    def accepted(self) -> str:
        """Return what is accepted, in words."""
        return " or ".join([", ".join(self.words[:-1]), self.words[-1]])

    def __call__(self, value: Any) -> str:
        """Return the word, or raise `ValueError`."""
        if value not in self.words:
            raise ValueError("unknown")
        return str(value)


@dataclass(frozen=True)
class OutputFile:
    """A file that can be written, in a folder that exists."""

    def accepted(self) -> str:
        """Return what is accepted, in words."""
        return "the name of a file that can be written, in an existing folder"

    def __call__(self, value: Any) -> Path:
        """Return the path, or raise `ValueError`."""
        path = Path(value)
        if not writable(path):
            raise ValueError("not writable")
        return path


@dataclass(frozen=True)
class Window:
    """A range of draft passes, FIRST:LAST, both included and counted from 0."""

    def accepted(self) -> str:
        """Return what is accepted, in words."""
        return "FIRST:LAST, whole numbers from 0 with FIRST not above LAST"

    def __call__(self, value: Any) -> tuple[int, int]:
        """Return (first, last), or raise `ValueError`."""
        first, last = value.split(":") if isinstance(value, str) else value
        window = int(first), int(last)
        if not 0 <= window[0] <= window[1]:
            raise ValueError("not a window")
        return window


class Rule(Protocol):
    """What one option accepts."""

    def accepted(self) -> str:
        """Return what is accepted, in words."""
        ...

    def __call__(self, value: Any) -> Any:
        """Return the value that a text or object stands for, or raise `ValueError`."""
        ...


RULES: dict[str, Rule] = {
    "device": Choice(("emulator", "rtl")),
    "dtype": Choice(("fp32", "bf16")),
    "max_new_tokens": Number(int, low=0),
    "passes_per_round": Number(int, low=0, high=1024),
    "schedule": Choice(("lockstep", "overlap")),
    "seed": Number(int, low=0, high=2**64 - 1),
    "output": OutputFile(),
    "stats": OutputFile(),
    "temperature": Number(float, low=0),
    "threads": Number(int, low=1, high=1024),
    "top_k": Number(int, low=0),
    "top_p": Number(float, low=0, high=1, above_low=True),
    "tree_budget": Number(int, low=0, high=4096),
    "vcd": OutputFile(),
    "vcd_passes": Window(),
}
"""Rules by the name of the argument; an option is spelled the same with dashes."""


def check(name: str, value: Any, shown: str | None = None) -> Any:
    """Return `value` converted to what the rule for `name` produces.

    Parameters
    ----------
    name : str
        A key of `RULES`.
    value : object
        Text from a command line, or an object from a caller of the Python API.
    shown : str, optional
        What to call the argument in an error; `name` by default.

    Raises
    ------
    UsageError
        Naming the argument, the value and what is accepted.
    """
    return _judge(RULES[name], value, shown or name)


def _judge(rule: Rule, value: Any, shown: str) -> Any:
    try:
        return rule(value)
    except (TypeError, ValueError, OverflowError):
        text = repr(value)
        if len(text) > _MOST_SHOWN:
            text = f"{text[: _MOST_SHOWN // 2]}... ({len(text)} characters)"
        raise UsageError(f"{shown} is {text}: expected {rule.accepted()}") from None


def parse(name: str) -> Callable[[str], Any]:
    """Return a converter of the option with a rule in `RULES`, for `argparse`'s `type`."""
    return parse_as("--" + name.replace("_", "-"), RULES[name])


def parse_as(option: str, rule: Rule) -> Callable[[str], Any]:
    """Return a converter of an option's text by a rule, for `argparse`'s `type`.

    `UsageError` is a `ValueError`, which argparse would replace by a text of its own that doesn't
    say what is accepted; so the error is passed on as the one kind that keeps its text.
    """
    import argparse

    def convert(text: str) -> Any:
        try:
            return _judge(rule, text, option)
        except UsageError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return convert


def working_folder(option: str, path: Path) -> None:
    """Make a folder if it's missing and try to write into it, before hours of work.

    Raises
    ------
    UsageError
        It can't be made or written.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise UsageError(
            f"{option} is {str(path)!r}: expected a folder that can be written ({error.strerror})"
        ) from None


def existing_file(option: str) -> Callable[[str], Path]:
    """Return a converter that accepts the name of a readable file."""
    import argparse

    def convert(text: str) -> Path:
        path = Path(text)
        try:
            with path.open("rb"):
                return path
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise argparse.ArgumentTypeError(
                f"{option} is {text!r}: expected a readable file ({reason})"
            ) from None

    return convert
