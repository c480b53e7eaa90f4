"""What all benchmarks share: the target, where results go, how much to do."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from .journal import Journal

if TYPE_CHECKING:
    from dfvg_host.models import LoadedTarget

__all__ = ["Setting", "watched"]

_Item = TypeVar("_Item")
_EVERY = 2.0


@dataclass(frozen=True)
class Setting:
    """How to run a benchmark.

    Attributes
    ----------
    target: packaged name, folder or file of the target; None is the default target.
    threads: CPU threads of the target.
    limit: prompts (or whatever it counts) to do, spread over all there are; None does all.
    tokens: most tokens a text; None is the benchmark's own figure.
    out: folder for JSON files and journals; None writes nothing.
    fresh: do everything anew instead of going on with an interrupted run.
    """

    target: str | None = None
    threads: int = 1
    limit: int | None = None
    tokens: int | None = None
    out: Path | None = None
    fresh: bool = False

    def load(self) -> LoadedTarget:
        """Return the target, loaded once."""
        return _load(self.target, self.threads)

    def journal(self, name: str, settings: Mapping[str, Any]) -> Journal:
        """Return the journal of one benchmark."""
        path = None if self.out is None else self.out / f"{name}.jsonl"
        return Journal(path, settings, self.fresh)

    def spread(self, items: list[_Item], default: int | None = None) -> list[_Item]:
        """Return as many items as wanted, evenly spread; all of them by default."""
        count = self.limit if self.limit is not None else default
        if count is None or count >= len(items):
            return items
        return [items[i * len(items) // count] for i in range(count)]


@functools.lru_cache(maxsize=1)
def _load(name: str | None, threads: int) -> LoadedTarget:
    from dfvg_host.models import DEFAULT_TARGET, load_target

    return load_target(name or DEFAULT_TARGET, threads=threads)


def watched(name: str, items: Iterable[_Item]) -> Iterator[_Item]:
    """Yield items; says on standard error how far it is, every two seconds at most."""
    listed = list(items)
    shown = time.monotonic()
    for number, item in enumerate(listed):
        if time.monotonic() - shown > _EVERY:
            shown = time.monotonic()
            print(f"dfvg: {name}: {number} of {len(listed)}", file=sys.stderr, flush=True)
        yield item
