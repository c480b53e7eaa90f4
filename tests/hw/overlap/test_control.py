"""Pass controller, watchdog, tokens, counters, program loader."""

import random

import pytest

from dfvg_hw.config import get_config
from dfvg_hw.interfaces import row_context, sequence_context
from dfvg_hw.memory.reader import Target
from dfvg_hw.overlap.control import SETTLE, PassController, pass_context
from dfvg_hw.overlap.counters import Counters
from dfvg_hw.overlap.program import ProgramLoader
from dfvg_hw.overlap.tokens import TOKEN_LIMIT, TokenCounter
from dfvg_hw.overlap.watchdog import Watchdog
from tests.hw.overlap.helpers import simulate, struct

pytestmark = pytest.mark.rtl

CONFIG = get_config("tiny")


def context(valid=0b0011, children=0b0010):
    rows = [
        {"valid": valid >> i & 1, "children": children >> i & 1, "token": 100 + i, "offset": i}
        for i in range(CONFIG.rows)
    ]
    sequences = [{"rows": valid, "pages": 2}] + [{}] * (CONFIG.max_seqs - 1)
    return pass_context(CONFIG).const(
        {
            "rows": [struct(row_context(), **row) for row in rows],
            "sequences": [struct(sequence_context(CONFIG), **s) for s in sequences],
        }
    )


async def begin(ctx, dut, **fields):
    """Start a pass; returns in the first cycle that it runs."""
    ctx.set(dut.i.payload, context(**fields))
    ctx.set(dut.i.valid, 1)
    assert ctx.get(dut.i.ready)
    await ctx.tick()
    ctx.set(dut.i.valid, 0)


async def until_done(ctx, dut, limit=100):
    for cycle in range(limit):
        if ctx.get(dut.done):
            return cycle
        await ctx.tick()
    raise AssertionError("not done")


def test_a_pass_from_context_to_result():
    dut = PassController(CONFIG)

    async def bench(ctx):
        ctx.set(dut.ended, 1)
        ctx.set(dut.writes_idle, 1)
        await begin(ctx, dut)
        assert ctx.get(dut.start)
        assert ctx.get(dut.running)
        assert not ctx.get(dut.i.ready)
        assert ctx.get(dut.children)
        assert [ctx.get(row.token) for row in dut.rows] == [100, 101, 102, 103]
        assert ctx.get(dut.sequences[0].pages) == 2
        await ctx.tick()
        assert not ctx.get(dut.start), "start is a pulse"
        ctx.set(dut.ended, 0)
        await ctx.tick().repeat(20)
        ctx.set(dut.ended, 1)
        ctx.set(dut.busy, 1)
        await ctx.tick().repeat(20)
        ctx.set(dut.busy, 0)
        await ctx.tick().repeat(SETTLE - 1)
        ctx.set(dut.busy, 1)  # an item was between two blocks
        await ctx.tick().repeat(20)
        assert ctx.get(dut.running)
        ctx.set(dut.busy, 0)
        await until_done(ctx, dut, SETTLE + 3)
        assert ctx.get(dut.result.killed) == ctx.get(dut.result.aborted) == 0
        assert 60 < ctx.get(dut.result.cycles) < 80
        await ctx.tick()
        assert not ctx.get(dut.done), "done is a pulse"
        await begin(ctx, dut, valid=0b1000, children=0)
        assert not ctx.get(dut.children)

    simulate(dut, bench)


@pytest.mark.parametrize("by_reset", [False, True])
def test_abort_clears_until_both_managers_are_idle(by_reset):
    dut = PassController(CONFIG)

    async def bench(ctx):
        await begin(ctx, dut, valid=0b0101)
        await ctx.tick().repeat(5)
        assert not ctx.get(dut.clear)
        ctx.set(dut.kill, 0b0010)  # not a row of the pass
        await ctx.tick()
        ctx.set(dut.kill, 0b0001)
        await ctx.tick()
        ctx.set(dut.kill, 0)
        await ctx.tick().repeat(5)
        assert not ctx.get(dut.clear), "one row lives"
        if by_reset:
            ctx.set(dut.soft_reset, 1)
        else:
            ctx.set(dut.kill, 0b0100)
        await ctx.tick()
        ctx.set(dut.kill, 0)
        ctx.set(dut.soft_reset, 0)
        await ctx.tick()
        for _ in range(30):
            assert ctx.get(dut.clear)
            assert ctx.get(dut.running)
            assert not ctx.get(dut.done)
            await ctx.tick()
        ctx.set(dut.drained, 1)
        await until_done(ctx, dut)
        assert ctx.get(dut.result.aborted)
        assert ctx.get(dut.result.killed) & 0b0101 == (0b0001 if by_reset else 0b0101)
        assert not ctx.get(dut.clear)
        assert ctx.get(dut.i.ready)

    simulate(dut, bench)


def test_kv_waits_for_the_writes_of_the_pass_before():
    dut = PassController(CONFIG)

    async def bench(ctx):
        ctx.set(dut.ended, 1)
        ctx.set(dut.writes_idle, 1)
        await begin(ctx, dut)
        assert ctx.get(dut.fenced)
        ctx.set(dut.writes_idle, 0)
        await until_done(ctx, dut)
        await ctx.tick()
        await begin(ctx, dut)
        await ctx.tick().repeat(2)
        assert not ctx.get(dut.fenced), "writes of the pass before are not answered"
        ctx.set(dut.writes_idle, 1)
        await ctx.tick()
        ctx.set(dut.writes_idle, 0)  # this pass writes now
        await ctx.tick()
        assert ctx.get(dut.fenced)

    simulate(dut, bench)


def test_hold_and_soft_reset_between_passes():
    dut = PassController(CONFIG)

    async def bench(ctx):
        ctx.set(dut.hold, 1)
        ctx.set(dut.i.valid, 1)
        await ctx.tick().repeat(5)
        assert not ctx.get(dut.i.ready)
        assert not ctx.get(dut.running)
        ctx.set(dut.i.valid, 0)
        ctx.set(dut.hold, 0)
        ctx.set(dut.soft_reset, 1)
        await ctx.tick().repeat(2)
        assert ctx.get(dut.clear)
        ctx.set(dut.soft_reset, 0)
        ctx.set(dut.drained, 1)
        await ctx.tick().repeat(2)
        assert not ctx.get(dut.clear)
        assert not ctx.get(dut.done), "no pass ran"
        assert ctx.get(dut.i.ready)

    simulate(dut, bench)


def test_watchdog_bites_once_and_keeps_the_first_state():
    dut = Watchdog(8)

    async def bench(ctx):
        ctx.set(dut.limit, 10)
        ctx.set(dut.state, 7)
        await ctx.tick().repeat(50)
        assert not ctx.get(dut.hung), "no pass runs"
        ctx.set(dut.running, 1)
        for _ in range(10):
            await ctx.tick().repeat(9)
            ctx.set(dut.progress, 1)
            await ctx.tick()
            ctx.set(dut.progress, 0)
        assert not ctx.get(dut.hung)
        await ctx.tick().repeat(12)
        assert ctx.get(dut.hung)
        assert ctx.get(dut.dump) == 7
        ctx.set(dut.state, 9)
        await ctx.tick().repeat(50)
        assert ctx.get(dut.dump) == 7
        ctx.set(dut.running, 0)
        ctx.set(dut.clear, 1)
        await ctx.tick()
        ctx.set(dut.clear, 0)
        await ctx.tick()
        assert not ctx.get(dut.hung)
        ctx.set(dut.running, 1)
        ctx.set(dut.limit, 0)
        await ctx.tick().repeat(100)
        assert not ctx.get(dut.hung), "limit 0 is no limit"

    simulate(dut, bench)


def test_tokens_count_and_refuse_what_can_not_be(seed):
    dut, rng = TokenCounter(), random.Random(seed)

    async def bench(ctx):
        count = 0
        for share in (0.8, 0.3, 0.9, 0.1):
            for _ in range(150):
                give, take = rng.random() < share, rng.random() < 1 - share
                ctx.set(dut.give, give)
                ctx.set(dut.take, take)
                assert ctx.get(dut.count) == count
                assert ctx.get(dut.available) == (count > 0)
                over = give and not take and count == TOKEN_LIMIT
                under = take and not give and count == 0
                assert ctx.get(dut.bad) == (over or under)
                if not over and not under:
                    count += give - take
                await ctx.tick()

    simulate(dut, bench)


def test_counters_count_their_own_events():
    dut = Counters()

    async def bench(ctx):
        names = [name for name, _ in dut.value.shape()]
        for index, name in enumerate(names):
            ctx.set(dut.event[name], 1)
            await ctx.tick().repeat(index + 1)
            ctx.set(dut.event[name], 0)
        assert [ctx.get(dut.value[name]) for name in names] == list(range(1, len(names) + 1))

    simulate(dut, bench)


@pytest.mark.parametrize("bus_bytes", [8, 16, 32, 64])
@pytest.mark.parametrize("length", [1, 3, 4, 33, 128])
def test_program_loader_copies_every_instruction(bus_bytes, length, seed):
    config, rng = CONFIG.replace(bus_bytes=bus_bytes), random.Random(seed)
    dut = ProgramLoader(config)
    program = rng.randbytes(16 * length)
    padded = program + rng.randbytes(-len(program) % bus_bytes)
    memory = {}

    async def bench(ctx):
        ctx.set(dut.base, 77)
        ctx.set(dut.length, length)
        ctx.set(dut.start, 1)
        await ctx.tick()
        ctx.set(dut.start, 0)
        ctx.set(dut.request.ready, 1)
        request = ctx.get(dut.request.payload)
        assert ctx.get(dut.request.valid)
        assert (request.address, request.target) == (77, Target.PROGRAM)
        assert request.words * bus_bytes == len(padded)
        await ctx.tick()
        ctx.set(dut.request.ready, 0)
        words = [padded[i : i + bus_bytes] for i in range(0, len(padded), bus_bytes)]
        for _ in range(2000):
            ctx.set(dut.words.valid, bool(words) and rng.random() < 0.7)
            ctx.set(dut.words.payload, int.from_bytes(words[0], "little") if words else 0)
            if ctx.get(dut.write_en):
                memory[ctx.get(dut.write_addr)] = ctx.get(dut.write_data)
            if ctx.get(dut.words.valid) and ctx.get(dut.words.ready):
                words.pop(0)
            assert not (ctx.get(dut.loaded) and ctx.get(dut.busy))
            await ctx.tick()
            if ctx.get(dut.loaded):
                break
        assert not words
        assert not ctx.get(dut.busy)

    simulate(dut, bench)
    data = b"".join(memory[i].to_bytes(16, "little") for i in range(length))
    assert data == program
    assert len(memory) == length


@pytest.mark.parametrize("length", [0, CONFIG.prog_depth + 1])
def test_program_loader_refuses_what_does_not_fit(length):
    dut = ProgramLoader(CONFIG)

    async def bench(ctx):
        ctx.set(dut.length, length)
        ctx.set(dut.start, 1)
        await ctx.tick()
        ctx.set(dut.start, 0)
        for _ in range(20):
            assert not ctx.get(dut.request.valid)
            assert not ctx.get(dut.loaded)
            await ctx.tick()

    simulate(dut, bench)
