"""cocotb side of the bench-helper tests: one queue, every profile, every fault."""

import itertools

import cocotb

from sim.cocotb.bench import Bench, parameter, rng
from sim.cocotb.layout import Codec
from sim.cocotb.profiles import PROFILES
from tests.sim.designs import ITEM, Fault

FAULT = parameter("fault", int, 0)
COUNT = parameter("count", int, 200)


def make(dut, idle, backpressure):
    bench = Bench(dut)
    dut.fault.value = FAULT
    source = bench.source("i", ITEM, idle)
    board = bench.sink("o", ITEM, backpressure)
    return bench, source, board


def feed(source, board, count=COUNT):
    generator = rng("items")
    items = [Codec(ITEM).random(generator) for _ in range(count)]
    source.extend(items)
    board.expect_all(items)


@cocotb.test(timeout_time=1, timeout_unit="ms")
@cocotb.parametrize(pair=list(itertools.product(PROFILES, PROFILES)))
async def passes_items_in_order(dut, pair):
    bench, source, board = make(dut, *pair)
    await bench.start()
    feed(source, board)
    await bench.finish(limit=5000)
    assert board.matched == source.sent == COUNT
    if FAULT == Fault.NONE.value and pair == ("none", "bursts"):
        assert bench.monitors[0].stalls > 0, "back-pressure never reached the output"


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def starts_afresh_after_a_reset_in_the_middle(dut):
    bench, source, board = make(dut, "random", "bursts")
    await bench.start()
    for cycles in (1, 17, 40):
        feed(source, board)
        await bench.cycles(cycles)
        await bench.reset()
    feed(source, board)
    await bench.finish(limit=5000)
    assert board.matched >= COUNT
