"""The base of every testbench: clock, reset, seeded randomness, streams with their checkers.

@cocotb.test(timeout_time=1, timeout_unit="ms")
async def passes_items_in_order(dut):
bench = Bench(dut)
source = bench.source("i", shape, idle="random")
board = bench.sink("o", shape, backpressure="bursts")
await bench.start()
...
await bench.finish()
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any, TypeVar

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, RisingEdge

from sim.cocotb.checkers import ProtocolChecker, Scoreboard
from sim.cocotb.streams import Monitor, Sink, Source, StreamPort

__all__ = ["Bench", "parameter", "rng"]

_T = TypeVar("_T")


def parameter(name: str, cast: Callable[[str], _T], default: _T | None = None) -> _T:
    """Return a value given to `run_bench(parameters=...)`.

    Raises
    ------
    KeyError
        If it was not given and has no default.
    """
    text = os.environ.get(f"DFVG_PARAM_{name.upper()}")
    if text is None:
        if default is None:
            raise KeyError(f"the bench needs the parameter {name!r}")
        return default
    return cast(text)


def rng(label: str) -> random.Random:
    """Return a generator that depends on the run's seed, the test and `label` only."""
    test = cocotb.RANDOM_SEED  # differs from test to test, follows DFVG_SEED
    return random.Random(f"{test}:{label}")


class Bench:
    """Clock, reset, drivers and checkers around a top.

    Parameters
    ----------
    dut : handle
        The top, with ports `clk` and (if it has any state to reset) `rst`.
    period_ns : int
        Clock period; it scales the times in a waveform and in time-outs.
    """

    def __init__(self, dut: Any, period_ns: int = 10) -> None:
        self.dut = dut
        self.clk = dut.clk
        self.rst = getattr(dut, "rst", None)
        self.sources: list[Source] = []
        self.sinks: list[Sink] = []
        self.checkers: list[ProtocolChecker] = []
        self.scoreboards: list[Scoreboard] = []
        self.monitors: list[Monitor] = []
        if self.rst is not None:
            self.rst.value = 1
        Clock(self.clk, period_ns, unit="ns").start()

    def source(self, name: str, shape: Any, idle: str = "none", domain: str = "sync") -> Source:
        """Drive the design's input stream `name`, with a protocol checker on it."""
        port = StreamPort(self.dut, name, shape, domain)
        source = Source(port, rng(f"source {name}"), idle)
        self.sources.append(source)
        self.checkers.append(ProtocolChecker(port))
        return source

    def sink(
        self,
        name: str,
        shape: Any,
        backpressure: str = "none",
        domain: str = "sync",
        valid_after_reset: bool = False,
    ) -> Scoreboard:
        """Accept the design's output stream `name`; returns the scoreboard that judges it."""
        port = StreamPort(self.dut, name, shape, domain)
        sink = Sink(port, rng(f"sink {name}"), backpressure)
        self.sinks.append(sink)
        self.checkers.append(ProtocolChecker(port, valid_after_reset))
        board = Scoreboard(name)
        self.monitors.append(Monitor(port, board.check))
        self.scoreboards.append(board)
        return board

    async def cycles(self, count: int = 1) -> None:
        """Wait for `count` rising edges."""
        await ClockCycles(self.clk, count)

    async def start(self, cycles: int = 3) -> None:
        """Hold reset for some cycles and release it."""
        if self.rst is not None:
            self.rst.value = 1
        await self.cycles(cycles)
        if self.rst is not None:
            self.rst.value = 0
        await self.cycles(1)

    async def reset(self, cycles: int = 3) -> None:
        """Assert reset in the middle of a run: queued and expected items are forgotten."""
        if self.rst is None:
            raise AssertionError("the top has no reset")
        self.rst.value = 1
        await RisingEdge(self.clk)  # monitors may still be judging items of the edge just passed
        for source in self.sources:
            source.clear()
        for board in self.scoreboards:
            board.clear()
        await self.start(cycles)

    async def finish(self, quiet: int = 50, limit: int = 100_000) -> None:
        """Wait until all items went in and came out, then check that nothing more comes.

        Parameters
        ----------
        quiet : int
            Cycles to watch after the last expected item.
        limit : int
            Cycles after which a bench that still expects items has failed.
        """
        for _ in range(limit):
            if not any(s.pending for s in self.sources) and not any(
                b.pending for b in self.scoreboards
            ):
                break
            await RisingEdge(self.clk)
        stuck = [f"{s.port.name} holds {s.pending}" for s in self.sources if s.pending]
        if stuck:
            raise AssertionError(f"not accepted within {limit} cycles: {', '.join(stuck)}")
        await self.cycles(quiet)
        for board in self.scoreboards:
            board.assert_empty()
