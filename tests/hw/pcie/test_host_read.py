"""Reads from host memory: order, 4 KiB lines, errors, silence."""

import random

import pytest
from amaranth.sim import Simulator

from dfvg_hw.pcie.host_read import HostReader
from tests.hw.pcie.buses import HostMemory

BASE = 0x1_2345_0000


def simulate(size, bench, rng, timeout=64, **options):
    dut = HostReader(size, timeout)
    memory = HostMemory(dut.axi, 16384, rng, BASE, **options)
    memory.data[:] = rng.randbytes(len(memory.data))
    events = {"error": 0, "failed": 0}

    async def tick(ctx):
        memory.step(ctx)
        events["error"] += ctx.get(dut.error)
        events["failed"] += ctx.get(dut.failed)
        await ctx.tick()

    async def request(ctx, address, words):
        ctx.set(dut.request.payload.address, address)
        ctx.set(dut.request.payload.words, words)
        ctx.set(dut.request.valid, 1)
        for _ in range(1000):
            taken = ctx.get(dut.request.ready)
            await tick(ctx)
            if taken:
                ctx.set(dut.request.valid, 0)
                return
        raise AssertionError("request not taken")

    async def collect(ctx, words, patience=2000):
        got, bad = bytearray(), []
        for _ in range(patience):
            if len(got) == words * size:
                break
            ready = rng.random() < 0.7
            ctx.set(dut.o.ready, ready)
            memory.step(ctx)
            if ctx.get(dut.o.valid) and ready:
                if ctx.get(dut.o.payload.bad):
                    bad.append(len(got) // size)
                got += ctx.get(dut.o.payload.data).to_bytes(size, "little")
            events["error"] += ctx.get(dut.error)
            events["failed"] += ctx.get(dut.failed)
            await ctx.tick()
        ctx.set(dut.o.ready, 0)
        return bytes(got), bad

    async def whole(ctx):
        await bench(ctx, dut, memory, tick, request, collect)

    sim = Simulator(dut)
    sim.add_clock(1e-6)
    sim.add_testbench(whole)
    sim.run()
    return events


@pytest.mark.parametrize("size", [8, 64])
def test_runs_around_4_kib_lines(size, seed):
    rng = random.Random(seed)

    async def bench(ctx, dut, memory, tick, request, collect):
        for offset in (0, 64, 1024 - 64, 4096 - 64, 4096 - 1024, 8192 - 128):
            for length in (64, 128, 1024, 4096):
                if offset + length > len(memory.data):
                    continue
                await request(ctx, BASE + offset, length // size)
                got, bad = await collect(ctx, length // size)
                assert got == memory.data[offset : offset + length]
                assert not bad
        assert max(beats for _, beats in memory.bursts) * size == 1024

    events = simulate(size, bench, rng, pause=0.2)
    assert events == {"error": 0, "failed": 0}


def test_an_error_response_marks_its_word(seed):
    rng = random.Random(seed)

    async def bench(ctx, dut, memory, tick, request, collect):
        memory.bad_read = 5
        await request(ctx, BASE, 8)
        got, bad = await collect(ctx, 8)
        assert bad == [5]
        assert got[:80] == memory.data[:80]

    assert simulate(16, bench, rng)["error"] == 1


def test_silence_is_noticed_and_late_words_are_dropped(seed):
    rng = random.Random(seed)

    async def bench(ctx, dut, memory, tick, request, collect):
        memory.dead = True
        await request(ctx, BASE, 256)
        got, _ = await collect(ctx, 256, patience=200)
        assert got == b""
        assert ctx.get(dut.failed)
        memory.dead = False  # everything comes after all
        for _ in range(600):
            await tick(ctx)
        assert not ctx.get(dut.failed)
        await request(ctx, BASE + 512, 4)
        got, _ = await collect(ctx, 4)
        assert got == memory.data[512 : 512 + 64]

    assert simulate(16, bench, rng)["failed"] > 0


def test_a_consumer_that_waits_is_no_failure(seed):
    rng = random.Random(seed)

    async def bench(ctx, dut, memory, tick, request, collect):
        await request(ctx, BASE, 4)
        ctx.set(dut.o.ready, 0)
        for _ in range(300):
            await tick(ctx)
        got, _ = await collect(ctx, 4)
        assert got == memory.data[:64]

    assert simulate(16, bench, rng)["failed"] == 0
