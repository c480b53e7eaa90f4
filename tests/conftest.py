"""Settings that hold for every test: one thread per worker, fixed seeds, the run's seed shown."""

import os
import random

import pytest

from sim.runner import bench_seed

# Two workers on two cores: more threads only make them wait for each other, and floating-point
# sums would depend on the machine. No test module, so neither torch nor numpy, is imported yet.
for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Start every test from the same random state; DFVG_SEED=N chooses another."""
    random.seed(bench_seed())


@pytest.fixture
def seed() -> int:
    """Return the run's seed, for generators of a test's own."""
    return bench_seed()


def pytest_report_header() -> str:
    return f"dfvg: DFVG_SEED={bench_seed()}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests that may take longest first, or one core waits for the other at the end."""

    def longest(item: pytest.Item) -> float:
        mark = item.get_closest_marker("timeout")
        return mark.args[0] if mark and mark.args else 0.0

    items.sort(key=longest, reverse=True)  # a stable sort: otherwise the order of the files
