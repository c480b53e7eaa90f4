"""Results that outlive an interruption: one line of JSON for each item that is done."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sim.cache import tree_digest

__all__ = ["Journal", "code_digest"]

_ROOT = Path(__file__).parents[2]


def code_digest() -> str:
    """Return a digest of all code that results can depend on."""
    parts = [tree_digest(_ROOT / name) for name in ("dfvg_hw", "dfvg_host", "sim")]
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()


class Journal:
    """Remembers items of one benchmark.

    An item that was done with the same settings, models and code isn't done again; everything
    else in the file is ignored.

    Parameters
    ----------
    path : Path or None
        Where to keep lines; None keeps nothing.
    settings : mapping
        What results depend on besides the code: models' digests, request.
    fresh : bool
        Forget what is there.
    """

    def __init__(self, path: Path | None, settings: Mapping[str, Any], fresh: bool = False) -> None:
        self._path = path
        text = json.dumps([code_digest(), settings], sort_keys=True, default=str)
        self._key = hashlib.sha256(text.encode()).hexdigest()[:16]
        self._done: dict[str, Any] = {}
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            if fresh:
                path.unlink(missing_ok=True)
            elif path.exists():
                self._read(path)

    def _read(self, path: Path) -> None:
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                entry = json.loads(line)
            except ValueError:  # cut off in the middle of a line
                continue
            if entry["key"] == self._key:
                self._done[entry["item"]] = entry["result"]

    def get(self, item: str, make: Callable[[], Any]) -> Any:
        """Return an item's result, made now if it isn't known; it must be plain JSON."""
        if item not in self._done:
            result = make()
            if self._path is not None:
                line = json.dumps({"key": self._key, "item": item, "result": result})
                with open(self._path, "a", encoding="utf-8") as file:
                    # An end of line on both sides: an interrupted one must not swallow this.
                    file.write(f"\n{line}\n")
            self._done[item] = result
        return self._done[item]
