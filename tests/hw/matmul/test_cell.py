"""A cell against integer dot products; its memory's partial writes."""

import random

import pytest

from dfvg_hw.matmul.cell import Cell
from dfvg_hw.matmul.control import CELL_LATENCY
from tests.hw.matmul.bench import simulate


def pack(values):
    return int.from_bytes(bytes(v & 255 for v in values), "little")


@pytest.mark.parametrize("lanes", [1, 2, 4, 8])
def test_cell_adds_dot_products_to_the_passing_partial(lanes, seed):
    rng = random.Random(seed)
    depth = 5
    dut = Cell(depth, lanes)
    # -128 never occurs in valid data, but must not overflow anything either.
    acts = [
        [rng.choice([-128, 127, rng.randint(-128, 127)]) for _ in range(8)] for _ in range(depth)
    ]

    async def bench(ctx):
        for addr, act in enumerate(acts):
            for part in range(8 // lanes):
                ctx.set(dut.w_en, 1 << part)
                ctx.set(dut.w_addr, addr)
                ctx.set(dut.w_data, pack(act[part * lanes : (part + 1) * lanes] * (8 // lanes)))
                await ctx.tick()
        ctx.set(dut.w_en, 0)
        history, hops = [], []
        for cycle in range(300):
            weight = [rng.choice([-128, 127, rng.randint(-128, 127)]) for _ in range(8)]
            addr, partial = rng.randrange(depth), rng.randint(-7 << 17, 7 << 17)
            ctx.set(dut.weight_i, pack(weight))
            ctx.set(dut.addr_i, addr)
            ctx.set(dut.partial_i, partial)
            history.append((sum(w * a for w, a in zip(weight, acts[addr], strict=True)), partial))
            hops.append((pack(weight), addr))
            if cycle:
                assert (ctx.get(dut.weight_o), ctx.get(dut.addr_o)) == hops[-2]
            if cycle >= CELL_LATENCY:
                # The neighbour's partial joins in the last cycle.
                expected = history[cycle - CELL_LATENCY][0] + history[cycle - 1][1]
                assert ctx.get(dut.partial_o) == expected
            await ctx.tick()

    simulate(dut, bench)


def test_eight_cells_of_extremes_do_not_overflow():
    dut = Cell(2, 8)

    async def bench(ctx):
        ctx.set(dut.w_en, 1)
        ctx.set(dut.w_data, pack([-128] * 8))
        ctx.set(dut.weight_i, pack([-128] * 8))
        ctx.set(dut.partial_i, 7 * 8 * 128 * 128)
        for _ in range(6):
            await ctx.tick()
        assert ctx.get(dut.partial_o) == 64 * 128 * 128

    simulate(dut, bench)
