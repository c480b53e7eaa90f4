"""Files by names that users give: odd names are no such file, JSON is read and written strictly.

`pathlib` raises on names that can't exist (too long, an unknown ``~user``) where an answer "not
there" is wanted, so that the error line can say what is accepted.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

__all__ = [
    "abandon_stdout",
    "is_file",
    "is_folder",
    "is_text",
    "read_json",
    "replacing",
    "tell",
    "user_path",
    "writable",
]

_PART = ".part"
_LONGEST_NAME = 255 - len(_PART)


def is_text(text: str) -> bool:
    """Whether a string is text that can be written anywhere: no lone surrogates.

    Python lets bytes that are no UTF-8 pass as such; so does JSON.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def user_path(name: str | Path) -> Path:
    """Return the path of that name, ``~`` replaced; an unknown user's ``~`` stays as it is."""
    return Path(os.path.expanduser(name))


def is_file(path: Path) -> bool:
    """Whether this is a file; False also for names that can't be."""
    return os.path.isfile(path)


def is_folder(path: Path) -> bool:
    """Whether this is a folder; False also for names that can't be."""
    return os.path.isdir(path)


def read_json(text: str) -> Any:
    """Return what a JSON text says.

    Raises
    ------
    ValueError
        One line. Unlike `json.loads` also for what is nested too deeply, for NaN and Infinity,
        which are no JSON, and for numbers that would become infinite.
    """

    def refuse(name: str) -> NoReturn:
        raise ValueError(f"{name} is no number that can be used")

    def finite(digits: str) -> float:
        value = float(digits)
        return value if math.isfinite(value) else refuse(digits[:20])

    try:
        return json.loads(text, parse_constant=refuse, parse_float=finite)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def abandon_stdout() -> None:
    """Give up standard output after an error there, so that the last flush doesn't fail again."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def tell(text: str) -> None:
    """Print a line to standard error if there is one: nothing may end because nobody listens."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            print(text, file=sys.stderr, flush=True)


def _is_special(path: Path) -> bool:
    """Whether this is a device or a pipe."""
    return os.path.exists(path) and not is_file(path)


def writable(path: Path) -> bool:
    """Whether a file could be written there now, by `replacing`; leaves nothing behind."""
    if "\0" in str(path) or not path.name or is_folder(path):
        return False
    if _is_special(path):
        return os.access(path, os.W_OK)
    target = Path(os.path.realpath(path))
    if not is_folder(target.parent) or len(os.fsencode(target.name)) > _LONGEST_NAME:
        return False
    partial = target.with_name(target.name + _PART)
    kept = os.path.lexists(partial)
    try:
        with open(partial, "ab"):
            pass
        if not kept:
            partial.unlink()
    except OSError:
        return False
    return True


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a file that takes the place of ``path`` when it's complete, or else never.

    A link's file is replaced, not the link; devices and pipes are written to, not replaced.

    Raises
    ------
    OSError
    """
    if _is_special(path):
        with open(path, "wb") as file:
            yield file
        return
    target = Path(os.path.realpath(path))
    partial = target.with_name(target.name + _PART)
    try:
        with open(partial, "wb") as file:
            yield file
        partial.replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise
