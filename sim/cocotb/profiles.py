"""When a driver acts: the idle and back-pressure patterns that benches sweep.

A profile is an endless iterator of bools, one a cycle: may the source offer an item, may the sink
accept one.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

__all__ = ["PROFILES", "profile"]


def _none(rng: random.Random) -> Iterator[bool]:
    """Act in every cycle."""
    while True:
        yield True


def _random(rng: random.Random) -> Iterator[bool]:
    """Act in half of the cycles."""
    while True:
        yield rng.random() < 0.5


def _bursts(rng: random.Random) -> Iterator[bool]:
    """Act and pause for long runs: queues get full and run empty."""
    while True:
        for active in (True, False):
            for _ in range(rng.randint(1, 40)):
                yield active


def _alternate(rng: random.Random) -> Iterator[bool]:
    """Act in every other cycle: catches blocks that need two free cycles in a row."""
    while True:
        yield True
        yield False


PROFILES = {"none": _none, "random": _random, "bursts": _bursts, "alternate": _alternate}
"""Profiles by name: `none`, `random`, `bursts`, `alternate`."""


def profile(name: str, rng: random.Random) -> Iterator[bool]:
    """Return a profile's iterator.

    Raises
    ------
    ValueError
        If there is no profile of that name.
    """
    if name not in PROFILES:
        raise ValueError(f"no profile {name!r}: expected one of {', '.join(PROFILES)}")
    return PROFILES[name](rng)
