"""The matrix engine as a whole against the golden arithmetic: see test_matmul.py."""

import cocotb
from cocotb.triggers import RisingEdge

from dfvg_hw.isa import OutOp
from dfvg_hw.matmul import drain_latency
from sim.cocotb.bench import parameter, rng
from tests.cocotb.configs import config_of
from tests.cocotb.matmul_harness import MatmulHarness
from tests.hw.matmul.model import LINEAR, ArrayModel, Sequence

CONFIG = config_of(parameter("config", str, "tiny"))
ROUNDS = parameter("rounds", int, 3)
BURST = parameter("burst", int, 5)
IDLE = parameter("idle", str, "random")
FAULT = parameter("fault", int, 0)
HEADS = (1, 2)


async def begin(dut, label, head_groups=1, idle=IDLE):
    harness = MatmulHarness(dut, CONFIG, idle)
    model = ArrayModel(CONFIG, rng(label), head_groups)
    await harness.start()
    dut.fault.value = FAULT
    await harness.load(model)
    return harness, model


async def settle(harness, model):
    """Wait for a burst's token and renew operands and sequences behind it."""
    await harness.finish()
    model.randomize()
    model.random_sequences()
    await harness.load(model)


@cocotb.test(timeout_time=20, timeout_unit="ms")
@cocotb.parametrize(out=[int(o) for o in OutOp])
async def each_output_operation(dut, out):
    harness, model = await begin(dut, "each")
    model.random_sequences()
    harness.context_of(model)
    for _ in range(BURST):
        harness.play(model.random_step(out=OutOp(out)))
    harness.play(model.random_step((0, 1), out=OutOp(out)))
    await harness.finish()
    assert harness.tokens == 1


@cocotb.test(timeout_time=60, timeout_unit="ms")
@cocotb.parametrize(head_groups=HEADS)
async def bursts_of_anything(dut, head_groups):
    harness, model = await begin(dut, "bursts", head_groups)
    for _ in range(ROUNDS):
        await settle(harness, model)
        harness.play(model.random_step((1, 0)))
        for _ in range(BURST):
            harness.play(model.random_step((0, int(model.rng.random() < 0.3))))
        harness.play(model.random_step((0, 1)))
        before = harness.results
        for _ in range(60):
            await RisingEdge(dut.clk)
        assert harness.results == before, "ran without a token"
        harness.give_token()
    await harness.finish()


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def waits_for_every_token(dut):
    harness, model = await begin(dut, "tokens")
    steps = [model.random_step((1, 1), out=OutOp.STORE) for _ in range(3)]
    steps += [model.sync(1, 0), model.sync(0, 1), model.random_step((0, 1), out=OutOp.ADD)]
    for step in steps:
        harness.play(step)
    for given in range(1, 5):
        # Long enough for all words of the steps so far, whatever the gaps between words.
        for _ in range(4 * harness.words.pending + 400):
            await RisingEdge(dut.clk)
        assert harness.tokens == given - 1
        harness.give_token()
    await harness.finish()
    assert harness.tokens == 5


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def sequences_without_pages_are_skipped(dut):
    harness, model = await begin(dut, "skipped")
    everyone = (1 << CONFIG.rows) - 1
    for owner in range(CONFIG.max_seqs):
        model.sequences = [
            Sequence(everyone, 2) if i == owner else Sequence(0, 0) for i in range(CONFIG.max_seqs)
        ]
        harness.context_of(model)
        for out in (OutOp.SCORE, OutOp.PV):
            harness.play(model.random_step((0, 1), out=out))
        await harness.finish()
    model.sequences = [Sequence(0, 0)] * CONFIG.max_seqs
    harness.context_of(model)
    harness.play(model.random_step((0, 1), out=OutOp.SCORE))
    await harness.finish()


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def one_word_per_cycle(dut):
    """Back-to-back instructions lose one cycle each, two after a signal; results stay in time."""
    harness, model = await begin(dut, "rate", idle="none")
    words = 0
    signals = 0
    outs = [out for out in LINEAR for _ in range(3)]
    model.rng.shuffle(outs)
    for index, out in enumerate(outs):
        step = model.random_step((0, index % 2), out=out)
        signals += index % 2
        words += len(step.words)
        harness.play(step)
    await harness.finish()
    used = harness.last_word - harness.first_word + 1
    assert used == words + len(outs) - 1 + signals - (len(outs) - 1) % 2
    # The last result comes from the last row.
    assert harness.last_result - harness.last_word <= drain_latency(CONFIG)


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def latency_is_as_documented(dut):
    harness, model = await begin(dut, "latency", idle="none")
    harness.play(model.random_step((0, 1), out=OutOp.STORE))
    await harness.finish()
    assert harness.last_result - harness.last_word == drain_latency(CONFIG)


@cocotb.test(timeout_time=60, timeout_unit="ms")
async def starts_afresh_after_a_reset(dut):
    harness, model = await begin(dut, "reset")
    model.random_sequences()
    for cycles in (3, 50, 111, 400):
        harness.context_of(model)
        for _ in range(3):
            harness.play(model.random_step((0, 1)))
        await harness.bench.cycles(cycles)
        await harness.bench.reset()
        harness.forget()
        # Vector memory keeps what was written before the reset.
        for row, held in enumerate(harness.vm):
            model.vm[row] = 0
            for addr, value in held.items():
                model.vm[row, addr] = value
    for _ in range(4):
        harness.play(model.random_step((0, 1)))
    await harness.finish()
    assert harness.tokens == 4
