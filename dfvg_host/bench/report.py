"""What a benchmark found: a table for people, JSON for programs."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dfvg_hw.errors import UsageError

__all__ = ["Report", "machine"]

FORMAT = 1


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.machine()


def machine() -> dict[str, Any]:
    """Describe this machine, as far as it matters for speed."""
    import torch

    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    found = {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "load": None if load is None else round(load, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
    }
    if torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name(0)
    return found


@dataclass
class Report:
    """Outcome of one benchmark.

    Attributes
    ----------
    name, title: short name, and one line that says what was measured.
    settings: what it was measured with.
    figures: the results, by name; numbers or None.
    rows: the table behind them, one mapping a line with equal keys.
    notes: lines that a reader of the figures must know.
    """

    name: str
    title: str
    settings: dict[str, Any] = field(default_factory=dict)
    figures: dict[str, Any] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """Return the report for a terminal."""
        settings = ", ".join(f"{key} {_cell(value)}" for key, value in self.settings.items())
        width = max(map(len, self.figures), default=0)
        return [
            f"{self.name}: {self.title}",
            *([f"  ({settings})"] if settings else []),
            *(f"  {line}" for line in table(self.rows)),
            *(f"  {key:<{width}}  {_cell(value)}" for key, value in self.figures.items()),
            *(f"  {note}" for note in self.notes),
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return the object that `write` stores."""
        return {
            "format": FORMAT,
            "bench": self.name,
            "title": self.title,
            "settings": self.settings,
            "figures": self.figures,
            "rows": self.rows,
            "notes": self.notes,
            "machine": machine(),
        }

    def write(self, folder: Path) -> Path:
        """Write ``NAME.json`` and return its path.

        Raises
        ------
        UsageError
            If it can't be written.
        """
        path = folder / f"{self.name}.json"
        text = json.dumps(self.to_dict(), indent=1, ensure_ascii=False) + "\n"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise UsageError(f"cannot write {path}: {error.strerror}") from None
        return path


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.3f}" if abs(value) < 1000 else f"{value:,.0f}"
    if isinstance(value, int):
        return f"{value:,}"
    return str(value)


def table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return rows with equal keys as aligned lines, numbers to the right."""
    if not rows:
        return []
    cells = [[str(key) for key in rows[0]], *([_cell(v) for v in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    text = [isinstance(value, str) for value in rows[0].values()]
    return [
        "  ".join(
            cell.ljust(width) if left else cell.rjust(width)
            for cell, width, left in zip(line, widths, text, strict=True)
        ).rstrip()
        for line in cells
    ]
