"""The cache folder: where converted models live, and how they get there atomically."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from dfvg_host.files import is_folder, tell
from dfvg_hw.errors import ModelError

__all__ = [
    "build_once",
    "progress",
    "quiet_transformers",
    "require_disk",
    "sha256_file",
]


def progress(text: str) -> None:
    """Print one progress line to stderr (stdout belongs to decoded text)."""
    tell(f"dfvg: {text}")


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """Keep transformers' progress bars and reports off the terminal: one line says it better."""
    from transformers.utils import logging

    shown, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if shown:
            logging.enable_progress_bar()


def sha256_file(path: Path) -> str:
    """Return the SHA-256 of a file as 64 hexadecimal digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def require_disk(folder: Path, need: int) -> None:
    """Raise unless the file system of ``folder`` has ``need`` bytes left.

    Raises
    ------
    ModelError
        Names the folder, what is needed and what is free.
    """
    free = shutil.disk_usage(folder).free
    if free < need:
        raise ModelError(
            f"not enough disk in {folder}: {need / 1e9:.1f} GB needed, {free / 1e9:.1f} GB free "
            "(set DFVG_CACHE to another folder)"
        )


def _unusable(folder: Path, error: OSError) -> ModelError:
    return ModelError(
        f"cannot write to the cache folder {folder}: {error.strerror} (set DFVG_CACHE to another)"
    )


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an exclusive advisory lock; a second process waits and then finds the result."""
    try:
        file = open(path, "w")
    except OSError as err:
        raise _unusable(path.parent, err) from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress(f"waiting for another process that prepares {path.stem}")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def build_once(final: Path, build: Callable[[Path], None]) -> Path:
    """Return ``final``, a folder, running ``build(temporary folder)`` first if it is absent.

    The folder appears by a rename, so an interrupted build leaves nothing that looks complete,
    and two processes never build the same folder at once.
    """
    if is_folder(final):
        return final
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
    except OSError as err:
        raise _unusable(final.parent, err) from None
    with _locked(final.parent / f"{final.name}.lock"):
        if final.is_dir():
            return final
        with tempfile.TemporaryDirectory(dir=final.parent, prefix=f".{final.name}.") as name:
            work = Path(name) / "new"
            work.mkdir()
            build(work)
            work.rename(final)
    return final
