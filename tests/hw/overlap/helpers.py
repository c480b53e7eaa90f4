"""What the overlap tests share: one simulation call, streams with gaps, struct literals."""

from __future__ import annotations

import random
from typing import Any

from amaranth.sim import Simulator

__all__ = ["collect", "put", "simulate", "struct"]


def simulate(dut: Any, *benches: Any) -> None:
    """Run async testbenches on a component with clock `sync`."""
    sim = Simulator(dut)
    sim.add_clock(1e-8)
    for bench in benches:
        sim.add_testbench(bench)
    sim.run()


def struct(shape: Any, **values: Any) -> Any:
    """A constant of a struct shape; absent fields are 0."""
    fields = {name: 0 for name, _ in shape}
    return shape.const(fields | values)


async def put(ctx: Any, stream: Any, item: Any, limit: int = 2000) -> None:
    """Offer an item until it is taken."""
    ctx.set(stream.payload, item)
    ctx.set(stream.valid, 1)
    for _ in range(limit):
        taken = ctx.get(stream.ready)
        await ctx.tick()
        if taken:
            ctx.set(stream.valid, 0)
            return
    raise AssertionError("not taken")


async def collect(
    ctx: Any, stream: Any, count: int, rng: random.Random, chance: float = 1.0, limit: int = 5000
) -> list[Any]:
    """Take `count` items, accepting in a share of the cycles; checks that offers stay."""
    items: list[Any] = []
    offered = None
    for _ in range(limit):
        if len(items) == count:
            ctx.set(stream.ready, 0)
            return items
        ready = rng.random() < chance
        ctx.set(stream.ready, ready)
        valid = ctx.get(stream.valid)
        payload = ctx.get(stream.payload) if valid else None
        value = None if payload is None else payload.as_bits()
        assert offered is None or value == offered, "an offered item changed"
        offered = None if ready else value
        if valid and ready:
            items.append(payload)
        await ctx.tick()
    raise AssertionError(f"{len(items)} of {count} items came")
