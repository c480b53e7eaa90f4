"""What the slow tests share: everything here is slow, results are kept for a reader."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dfvg_host.bench import Report, Setting

_OUT = Path(__file__).parents[2] / "build" / "bench" / "slow"


@pytest.fixture
def setting() -> Setting:
    """Everything a benchmark has, done anew: no journal."""
    return Setting()


@pytest.fixture
def keep() -> Callable[[Report], Report]:
    """Print a report and keep its JSON in build/bench/slow."""

    def write(report: Report) -> Report:
        print("\n".join(report.lines()))
        report.write(_OUT)
        return report

    return write
