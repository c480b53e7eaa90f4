"""Stream buffers: order, no loss, full throughput, protocol, reset in the middle."""

import random
from collections import deque

import pytest
from amaranth.hdl import ResetInserter, Signal
from amaranth.sim import Simulator

from dfvg_hw.common.stream import Queue, SkidBuffer

PROFILES = {
    "none": lambda rng, t: True,
    "random": lambda rng, t: rng.random() < 0.5,
    "bursts": lambda rng, t: (t // 11) % 2 == 0,
    "alternate": lambda rng, t: t % 2 == 0,
}
BLOCKS = {
    "skid": lambda: SkidBuffer(8),
    "queue1": lambda: Queue(8, 1),
    "queue3": lambda: Queue(8, 3),
    "queue17": lambda: Queue(8, 17),
}


def simulate(dut, seed, idle, stall, cycles=400, reset_at=()):
    """Return (items, cycles with a transfer at the output)."""
    rng = random.Random(seed)
    reset = Signal()
    moved = 0

    async def bench(ctx):
        nonlocal moved
        inside, held, offered = deque(), None, None
        for t in range(cycles):
            ctx.set(reset, t in reset_at)
            if offered is None and PROFILES[idle](rng, t):
                offered = rng.getrandbits(8)
            ctx.set(dut.i.valid, offered is not None)
            ctx.set(dut.i.payload, rng.getrandbits(8) if offered is None else offered)
            ready = PROFILES[stall](rng, t)
            ctx.set(dut.o.ready, ready)
            valid, item = ctx.get(dut.o.valid), ctx.get(dut.o.payload)
            if held is not None:
                assert (valid, item) == (1, held), "valid or payload changed before the transfer"
            held = item if valid and not ready else None
            if valid and ready:
                moved += 1
                assert item == inside.popleft()
            if offered is not None and ctx.get(dut.i.ready):
                inside.append(offered)
                offered = None
            await ctx.tick()
            if t in reset_at:
                inside.clear()
                held = offered = None

    sim = Simulator(ResetInserter(reset)(dut))
    sim.add_clock(1e-6)
    sim.add_testbench(bench)
    sim.run()
    return moved


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("idle", PROFILES)
@pytest.mark.parametrize("stall", PROFILES)
def test_items_pass_in_order(block, idle, stall, seed):
    assert simulate(BLOCKS[block](), seed, idle, stall) > 50


@pytest.mark.parametrize("block", BLOCKS)
def test_reset_empties(block, seed):
    simulate(BLOCKS[block](), seed, "random", "bursts", reset_at=(20, 21, 95, 200))


@pytest.mark.parametrize("block", ["skid", "queue3", "queue17"])
def test_one_item_per_cycle(block, seed):
    assert simulate(BLOCKS[block](), seed, "none", "none", cycles=200) >= 196
