"""The token table behind the head, and the port it shares with the core."""

import random

import pytest
from amaranth.sim import Simulator

from dfvg_hw.config import get_config
from dfvg_hw.head.id_map import IdMap
from dfvg_hw.memory.share import MemoryShare
from tests.hw.pcie.buses import HostMemory

BASE = 3  # units of 64 bytes


@pytest.mark.parametrize("size", [8, 16, 64])
def test_channels_become_tokens_in_order(size, seed):
    rng = random.Random(seed)
    config = get_config("tiny").replace(bus_bytes=size)
    dut = IdMap(config)
    memory = HostMemory(dut.axi, 4096, rng, pause=0.3, latency=9)
    table = [rng.randrange(1 << 20) for _ in range(500)]
    for channel, token in enumerate(table):
        at = 64 * BASE + 4 * channel
        memory.data[at : at + 4] = token.to_bytes(4, "little")
    children = [(rng.randrange(4), rng.randrange(4), rng.randrange(500)) for _ in range(60)]
    found = []

    async def bench(ctx):
        ctx.set(dut.base, BASE)
        number = 0
        for _ in range(3000):
            offered = number < len(children) and rng.random() < 0.8
            ctx.set(dut.i.valid, offered)
            if offered:
                row, rank, channel = children[number]
                for name, value in (("row", row), ("rank", rank), ("channel", channel),
                                    ("logprob", -channel), ("last", channel & 1)):  # fmt: skip
                    ctx.set(dut.i.payload[name], value)
            ready = rng.random() < 0.7
            ctx.set(dut.o.ready, ready)
            memory.step(ctx)
            if ctx.get(dut.o.valid) and ready:
                item = dut.o.payload
                found.append(tuple(ctx.get(item[n]) for n in ("row", "rank", "channel", "logprob")))
            taken = offered and ctx.get(dut.i.ready)
            await ctx.tick()
            number += taken
            if len(found) == len(children):
                break
        ctx.set(dut.i.valid, 0)
        await ctx.tick()
        assert ctx.get(dut.idle)

    sim = Simulator(dut)
    sim.add_clock(1e-6)
    sim.add_testbench(bench)
    sim.run()
    assert found == [(row, rank, table[channel], -channel) for row, rank, channel in children]


def test_the_core_goes_first_and_offered_addresses_stay(seed):
    rng = random.Random(seed)
    dut = MemoryShare(get_config("tiny"))
    core, table, axi = dut.core, dut.table, dut.axi
    wanted, taken = {"core": 0, "table": 0}, {"core": 0, "table": 0}

    async def bench(ctx):
        held = None
        ctx.set(core.araddr, 0x1000)
        ctx.set(table.araddr, 0x2000)
        for _ in range(600):
            for name, port in (("core", core), ("table", table)):
                if not ctx.get(port.arvalid) and rng.random() < 0.4:
                    ctx.set(port.arvalid, 1)
                    wanted[name] += 1
            ctx.set(axi.arready, rng.random() < 0.4)
            offered = (ctx.get(axi.arvalid), ctx.get(axi.araddr), ctx.get(axi.arid))
            if held is not None:
                assert offered == held
            held = None if ctx.get(axi.arready) or not offered[0] else offered
            assert not (ctx.get(core.arready) and ctx.get(table.arready))
            done = []
            for name, port, number in (("core", core, 0), ("table", table, 1)):
                if ctx.get(port.arvalid) and ctx.get(port.arready):
                    assert offered[1:] == (0x1000 * (number + 1), number)
                    taken[name] += 1
                    done.append(port)
            # Answers go to the one that asked.
            ctx.set(axi.rvalid, 1)
            ctx.set(axi.rid, rng.randrange(2))
            ctx.set(core.rready, rng.randrange(2))
            ctx.set(table.rready, rng.randrange(2))
            asked, other = (table, core) if ctx.get(axi.rid) else (core, table)
            assert ctx.get(asked.rvalid)
            assert not ctx.get(other.rvalid)
            assert ctx.get(axi.rready) == ctx.get(asked.rready)
            await ctx.tick()
            for port in done:
                ctx.set(port.arvalid, 0)

    sim = Simulator(dut)
    sim.add_clock(1e-6)
    sim.add_testbench(bench)
    sim.run()
    assert min(taken.values()) > 30
    assert all(wanted[name] - taken[name] <= 1 for name in taken)
