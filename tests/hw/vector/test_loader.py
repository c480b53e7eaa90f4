"""The word loader: every job, narrow and wide words, gaps, rows that take no part."""

import random

import numpy as np
import pytest

from dfvg_hw.numerics import ops
from dfvg_hw.vector.loader import LoadJob, WordLoader, gain_lanes
from tests.cocotb.configs import config_of
from tests.hw.matmul.bench import simulate
from tests.hw.vector.model import words_of

SHAPES = [(8, 1), (8, 8), (16, 2), (16, 8), (32, 4), (64, 1), (64, 8)]


def config_for(shape):
    bus_bytes, lanes = shape
    return config_of("odd").replace(bus_bytes=bus_bytes, lanes=lanes)


async def feed(ctx, dut, words, rng, see):
    """Offer words with gaps until done; `see` is called before every edge."""
    words, offered = list(words), False
    for _ in range(5000):
        offered = offered or (bool(words) and rng.random() < 0.6)
        ctx.set(dut.words.valid, offered)
        ctx.set(dut.words.payload, words[0] if offered else rng.getrandbits(60))
        see(ctx)
        done = ctx.get(dut.done)
        if offered and ctx.get(dut.words.ready):
            words.pop(0)
            offered = False
        await ctx.tick()
        ctx.set(dut.start, 0)
        if done:
            ctx.set(dut.words.valid, 1)
            for _ in range(5):
                assert not ctx.get(dut.words.ready)
                see(ctx)
                await ctx.tick()
            assert not words
            return
    raise AssertionError("not done")


def start(ctx, dut, job, **fields):
    ctx.set(dut.start, 1)
    ctx.set(dut.job, job)
    for name, value in fields.items():
        ctx.set(getattr(dut, name), value)


@pytest.mark.parametrize("shape", SHAPES)
def test_gains_reach_their_words(shape, seed):
    config, rng = config_for(shape), random.Random(seed)
    dut, lanes, narrow = WordLoader(config), config.lanes, gain_lanes(config)

    async def bench(ctx):
        for groups in (1, 2, 5):
            gain = np.array([rng.randint(-32768, 32767) for _ in range(64 * groups)])
            memory = np.zeros(config.vm_depth, dtype=np.int64)

            def see(ctx, memory=memory, gain=gain):
                enables, data = ctx.get(dut.gain_en), ctx.get(dut.gain_data)
                for i in range(lanes):
                    if enables >> (i // narrow) & 1:
                        memory[ctx.get(dut.gain_addr) * lanes + i] = (
                            (data >> 16 * i & 0xFFFF) ^ 0x8000
                        ) - 0x8000
                # Words that are called loaded are whole.
                ready = ctx.get(dut.gain_words) * lanes
                if not ctx.get(dut.start):
                    assert np.array_equal(memory[:ready], gain[:ready])

            start(ctx, dut, LoadJob.GAIN, groups=groups)
            await feed(ctx, dut, words_of(config, gain.astype("<i2").tobytes()), rng, see)
            assert np.array_equal(memory[: len(gain)], gain)
            assert not memory[len(gain) :].any()
            assert ctx.get(dut.gain_words) * lanes == len(gain)

    simulate(dut, bench)


@pytest.mark.parametrize("shape", SHAPES)
def test_embedding_rows_go_to_valid_rows(shape, seed):
    config, rng = config_for(shape), random.Random(seed)
    dut, lanes = WordLoader(config), config.lanes

    async def bench(ctx):
        for valid in (0b111, 0b101, 0b010, 0b000):
            groups, vm = rng.randint(1, 3), 64 * rng.randint(0, 2)
            sbase = rng.choice([-128, -1, 12, 31, 127])
            rows = [row for row in range(config.rows) if valid >> row & 1]
            q = np.array([[rng.randint(-127, 127) for _ in range(64 * groups)] for _ in rows])
            codes = [rng.getrandbits(16) for _ in rows]
            got = np.zeros((config.rows, config.vm_depth), dtype=np.int64)
            scales, words = {}, []
            for values, code in zip(q, codes, strict=True):
                words += words_of(config, values.astype(np.int8).tobytes())
                words += words_of(config, code.to_bytes(2, "little"))

            def see(ctx, got=got, scales=scales):
                row = ctx.get(dut.row)
                if ctx.get(dut.vm_en):
                    at, data = ctx.get(dut.vm_addr) * lanes, ctx.get(dut.vm_data)
                    for i in range(lanes):
                        bits = data >> 32 * i & 0xFFFFFFFF
                        got[row, at + i] = bits - (bits >> 31 << 32)
                if ctx.get(dut.embed_set):
                    scales[row] = (ctx.get(dut.embed_mult), ctx.get(dut.embed_shift))

            fields = {"groups": groups, "vm_word": vm // lanes, "sbase": sbase, "valid": valid}
            start(ctx, dut, LoadJob.EMBED, **fields)
            await feed(ctx, dut, words, rng, see)
            wanted = np.zeros_like(got)
            wanted[rows, vm : vm + 64 * groups] = q.reshape(len(rows), 64 * groups)
            assert np.array_equal(got, wanted)
            mantissa, exponent = ops.decode_sf16(np.array(codes, dtype=np.int64))
            shift = np.clip(sbase - exponent, 0, 63)
            assert sorted(scales) == rows
            assert list(scales.values()) == list(zip(mantissa, shift, strict=True))

    simulate(dut, bench)


@pytest.mark.parametrize("shape", SHAPES)
def test_rotary_pairs_go_to_valid_rows(shape, seed):
    config, rng = config_for(shape), random.Random(seed)
    dut = WordLoader(config)

    async def bench(ctx):
        for valid in (0b111, 0b100):
            pairs = rng.choice([32, 64])
            rows = [row for row in range(config.rows) if valid >> row & 1]
            table = {
                (row, pair): (rng.randint(-32768, 32767), rng.randint(-32768, 32767))
                for row in rows
                for pair in range(pairs)
            }
            data = b"".join(np.array(cs, dtype="<i2").tobytes() for cs in table.values())
            got = {}

            def see(ctx, got=got):
                if ctx.get(dut.rope.en):
                    key = (ctx.get(dut.row), ctx.get(dut.rope.pair))
                    got[key] = (ctx.get(dut.rope.cos), ctx.get(dut.rope.sin))

            start(ctx, dut, LoadJob.ROPE, pairs=pairs, valid=valid)
            await feed(ctx, dut, words_of(config, data), rng, see)
            assert got == table

    simulate(dut, bench)
