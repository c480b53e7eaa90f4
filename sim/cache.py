"""A folder of builds named by what went into them: shared by processes, safe to delete.

An entry is made in a scratch folder and renamed into place when it's complete, so a reader never
sees half a build. One lock per entry keeps two processes from making the same thing; one more,
held during the costly part, keeps the whole machine at one build at a time however many test
workers there are.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from sim.toolchain import cache_root

__all__ = ["BuildCache", "content_key", "say", "tree_digest"]

_LIMIT_BYTES = int(os.environ.get("DFVG_CACHE_LIMIT_MB", "4096")) << 20
"""Size above which the builds that went unused longest are dropped."""


def say(text: str) -> None:
    """Print a progress line; standard output stays free for results."""
    print(text, file=sys.stderr, flush=True)


def content_key(parts: Iterable[str | bytes | Path]) -> str:
    """Return a 20-digit key for a sequence of texts and of files' contents.

    Lengths are hashed too, so that moving a byte from one part to the next changes the key.
    """
    digest = hashlib.sha256()
    for part in parts:
        data = part.read_bytes() if isinstance(part, Path) else part
        data = data.encode() if isinstance(data, str) else data
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()[:20]


def tree_digest(folder: Path, pattern: str = "*.py") -> str:
    """Return a key for the names and contents of the files under `folder` that match."""
    files = sorted(p for p in folder.rglob(pattern) if p.is_file())
    parts: list[str | bytes | Path] = []
    for file in files:
        parts += [file.relative_to(folder).as_posix(), file]
    return content_key(parts)


def _size(folder: Path) -> int:
    return sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())


class BuildCache:
    """Entries under `root`, each a folder named LABEL-KEY.

    Parameters
    ----------
    root : Path, optional
        Folder of the cache; `builds` in the project's cache folder by default.
    """

    def __init__(self, root: Path | None = None) -> None:
        self.root = cache_root() / "builds" if root is None else root

    def get(self, label: str, key: str, make: Callable[[Path], None]) -> Path:
        """Return the entry's folder, calling `make` with an empty folder if it isn't there.

        Parameters
        ----------
        label : str
            Readable part of the name.
        key : str
            From `content_key` over everything that the result depends on.
        make : callable
            Fills the folder it's given. Nothing is kept if it raises.
        """
        entry = self.root / f"{label}-{key}"
        if entry.is_dir():
            os.utime(entry)
            return entry
        self.root.mkdir(parents=True, exist_ok=True)
        with self.lock(entry.name):
            if entry.is_dir():  # made by another process while this one waited
                return entry
            scratch = Path(tempfile.mkdtemp(prefix=f".{label}-", dir=self.root))
            try:
                make(scratch)
                scratch.chmod(0o755)
                scratch.rename(entry)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
        self.prune(keep=entry)
        return entry

    @contextlib.contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """Hold the lock called `name` against other processes; says so if it has to wait."""
        self.root.mkdir(parents=True, exist_ok=True)
        with (self.root / f".{name}.lock").open("w") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                say(f"[cache] waiting for another process ({name})")
                fcntl.flock(handle, fcntl.LOCK_EX)
            yield

    def prune(self, keep: Path, limit: int = _LIMIT_BYTES) -> list[Path]:
        """Drop the entries that went unused longest until `limit` bytes are left.

        `keep`, entries used in the last hour and unfinished ones younger than a day stay.

        Returns
        -------
        list of Path
            The entries that were dropped.
        """
        now = time.time()
        entries, dropped = [], []
        for path in self.root.iterdir():
            with contextlib.suppress(OSError):  # another process may be pruning too
                if not path.is_dir() or path == keep:
                    continue
                age = now - path.stat().st_mtime
                if path.name.startswith("."):
                    if age > 86400:
                        shutil.rmtree(path, ignore_errors=True)
                    continue
                entries.append((age, _size(path), path))
        total = sum(size for _, size, _ in entries)
        for age, size, path in sorted(entries, reverse=True):
            if total <= limit or age < 3600:
                break
            shutil.rmtree(path, ignore_errors=True)
            total -= size
            dropped.append(path)
        return dropped
