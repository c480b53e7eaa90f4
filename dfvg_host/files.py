"""Files by names that users give: odd names are no such file, JSON is read and written strictly.

`pathlib` raises on names that can't exist (too long, an unknown ``~user``) where an answer "not
there" is wanted, so that the error line can say what is accepted.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

__all__ = ["is_file", "is_folder", "read_json", "replacing", "user_path", "writable"]

_PART = ".part"
_LONGEST_NAME = 255 - len(_PART)


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
        One line. Unlike `json.loads` also for what is nested too deeply, and for NaN and Infinity,
        which are no JSON.
    """

    def refuse(name: str) -> NoReturn:
        raise ValueError(f"{name} is no JSON number")

    try:
        return json.loads(text, parse_constant=refuse)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def writable(path: Path) -> bool:
    """Whether a file could be written there now, by `replacing`; leaves nothing behind."""
    target = Path(os.path.realpath(path))
    if "\0" in str(path) or not path.name or is_folder(target):
        return False
    if os.path.exists(target) and not is_file(target):  # a device or a pipe
        return os.access(target, os.W_OK)
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
    target = Path(os.path.realpath(path))
    if os.path.exists(target) and not is_file(target):
        with open(target, "wb") as file:
            yield file
        return
    partial = target.with_name(target.name + _PART)
    try:
        with open(partial, "wb") as file:
            yield file
        partial.replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise
