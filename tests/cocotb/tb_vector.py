"""The vector engine as a whole, against the golden arithmetic: see test_vector.py."""

import cocotb
import numpy as np
from cocotb.triggers import RisingEdge

from dfvg_hw.isa import Instruction, Op, QuantMode
from dfvg_hw.vector.timing import emit_cycles, vector_cycles
from sim.cocotb.bench import parameter
from tests.cocotb.configs import config_of
from tests.cocotb.vector_cases import (
    extreme_vectors,
    head_items,
    make_model,
    random_gain,
    random_scores,
    score_items,
)
from tests.cocotb.vector_harness import VectorHarness
from tests.hw.vector.model import (
    VectorModel,
    random_quant,
    random_vector,
    random_visibility,
    words_of,
)

CONFIG = config_of(parameter("config", str, "tiny"))
ROUNDS = parameter("rounds", int, 3)
IDLE = parameter("idle", str, "random")


async def begin(dut, config=CONFIG):
    harness = VectorHarness(dut, config, idle=IDLE)
    await harness.bench.start()
    cocotb.start_soon(harness.watch())
    return harness


async def check_vm(harness, model):
    got = await harness.read_vm(0, harness.config.vm_depth)
    harness._equal("vm", got, model.vm)


async def fill_vm(harness, model):
    """Random vectors everywhere."""
    rng, config = harness.rng, harness.config
    values = np.stack([random_vector(rng, config.vm_depth) for _ in range(config.rows)])
    await harness.write_vm(0, values)
    model.set_vm(0, values)


async def quant_once(harness, model, mode):
    """One QUANT of random shape."""
    rng, config = harness.rng, harness.config
    most = min(config.vm_depth // 64, config.act_groups)
    groups, head_groups = rng.randint(1, min(most, 6)), 1
    fields = {"wait": rng.randint(0, 1), "signal": rng.randint(0, 1)}
    gain, i1 = None, 0
    if mode == QuantMode.ROW:
        if rng.random() < 0.6:
            gain = random_gain(rng, 64 * groups)
            fields |= {"gain": 1, "gain_frac": rng.choice([14, 14, 0, 15, 7])}
        if rng.random() < 0.6:
            fields |= {"rms": 1, "eps": rng.choice([0, 1, rng.getrandbits(40), 1 << 30])}
    else:
        head_groups = rng.choice([1, 1, 2])
        groups = max(head_groups, groups - groups % head_groups)
    instruction = random_quant(rng, config, mode, groups, head_groups, **fields)
    if rng.random() < 0.5 and instruction.vm >= 64:
        i1 = rng.randint(1, min(3, instruction.vm // 64))
        changed = {**instruction.fields, "vm": instruction.vm - 64 * i1, "vm1": 64}
        instruction = Instruction(Op.QUANT, **changed)
    words = model.quant(instruction, gain, i1)
    cycles = await harness.run(instruction, words, i1)
    cocotb.log.info(f"{instruction.op.name} {instruction.fields} i1={i1}: {cycles} cycles")
    harness.compare(model)


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def quantises(dut):
    harness = await begin(dut)
    for _ in range(ROUNDS):
        model = make_model(harness.rng, harness.config)
        harness.clear()
        harness.set_context(model)
        await fill_vm(harness, model)
        for mode in (QuantMode.ROW, QuantMode.ROW, *QuantMode):
            await quant_once(harness, model, mode)
    await check_vm(harness, model)


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def quantises_extremes(dut):
    """Every extreme vector in every mode, with and without gain and rms."""
    harness = await begin(dut)
    rng, config = harness.rng, harness.config
    vectors, rows = list(extreme_vectors()), config.rows
    model = VectorModel(config, [True] * rows, [0] * rows, [1] + [0] * (config.max_seqs - 1))
    harness.set_context(model)
    ends = np.array([rng.choice([-32768, 32767, 1 << 14, -1, 0]) for _ in range(128)])
    for start in range(0, len(vectors), rows):
        chunk = (vectors[start:] + vectors)[:rows]
        values = np.stack(chunk)
        await harness.write_vm(0, values)
        model.set_vm(0, values)
        for mode, gain, eps in (
            (QuantMode.ROW, None, None),
            (QuantMode.ROW, ends, 0),
            (QuantMode.ROW, None, (1 << 40) - 1),
            (QuantMode.HEAD_Q, None, None),
            (QuantMode.HEAD_K, None, None),
            (QuantMode.HEAD_V, None, None),
        ):
            fields = {"mode": int(mode), "groups": 2, "head_groups": 1 + (mode == QuantMode.HEAD_V)}
            if gain is not None:
                fields |= {"gain": 1, "gain_frac": rng.choice([0, 14, 15])}
            if eps is not None:
                fields |= {"rms": 1, "eps": eps}
            instruction = Instruction(Op.QUANT, **fields)
            await harness.run(instruction, model.quant(instruction, gain))
            harness.compare(model)


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def embeds_and_loads_rotary_tables(dut):
    harness = await begin(dut)
    rng, config = harness.rng, harness.config
    for _ in range(ROUNDS):
        model = make_model(rng, config)
        harness.clear()
        harness.set_context(model)
        await fill_vm(harness, model)
        groups = rng.randint(1, min(5, config.vm_depth // 64))
        instruction = Instruction(
            Op.EMBED,
            groups=groups,
            vm=64 * rng.randint(0, config.vm_depth // 64 - groups),
            sbase=rng.choice([-5, 0, 12, 20, 31, 90]),
        )
        q = np.array([[rng.randint(-127, 127) for _ in range(64 * groups)] for _ in model.valid])
        codes = np.array([rng.getrandbits(16) for _ in model.valid])
        words = model.embed(instruction, q, codes)
        await harness.run(instruction, words)
        await check_vm(harness, model)
        instruction = Instruction(Op.ROPE_TABLE, pairs=rng.choice([32, 64]), signal=1)
        shape = (config.rows, instruction.pairs, 2)
        table = np.array([rng.randint(-32768, 32767) for _ in range(np.prod(shape))]).reshape(shape)
        await harness.run(instruction, model.rope_table(instruction, table))
        harness.compare(model)


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def computes_softmax(dut):
    harness = await begin(dut)
    rng, config = harness.rng, harness.config
    for _ in range(ROUNDS):
        model = make_model(rng, config)
        harness.clear()
        harness.set_context(model)
        most = max(model.pages)
        room = min(config.score_depth // (64 * most), config.act_groups // config.seq_pages)
        gqa = rng.randint(1, min(room, 3))
        vs = [
            np.array([rng.getrandbits(8) for _ in range(64 * p)]).reshape(p, 64)
            for p in model.pages
        ]
        y, masks, items = {}, {}, [[] for _ in range(config.rows)]
        for row in model.rows:
            pages = model.pages[model.seqs[row]]
            y[row] = random_scores(rng, pages, gqa)
            masks[row] = random_visibility(rng, pages, rng.randrange(64))
            for page, bits in enumerate(masks[row]):
                await harness.see(row, page, bits)
            items[row] = score_items(model, row, y, vs, gqa)
        await harness.stream("scores", items, gaps=rng.choice([0.0, 0.3]))
        act = rng.randint(0, config.act_groups - gqa * config.seq_pages)
        instruction = Instruction(
            Op.SOFTMAX, gqa=gqa, act=act, scale=rng.randint(0, 200), wait=1, signal=1
        )
        model.softmax(instruction, y, vs, masks)
        cycles = await harness.run(instruction)
        cocotb.log.info(f"SOFTMAX gqa={gqa} pages={most}: {cycles} cycles")
        harness.compare(model)


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def collects_the_head(dut):
    harness = await begin(dut)
    rng, config = harness.rng, harness.config
    for _ in range(ROUNDS):
        model = make_model(rng, config)
        want = [rng.random() < 0.7 for _ in model.valid]
        want[model.rows[0]] = True
        harness.set_context(model, want)
        channels = rng.choice([config.topk, 64, 333])
        spread = rng.choice([3, 1 << 14, 1 << 18, (1 << 31) - 1])
        y = np.array([[rng.randint(-spread, spread) for _ in range(channels)] for _ in model.valid])
        harness.children.expect_all(model.head(y, want))
        items = head_items(y)
        await harness.stream("logits", items, gaps=rng.choice([0.0, 0.5]))
        assert not int(dut.idle.value)
        await harness.until_idle(5000, harness.tokens)
        harness.children.assert_empty()


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def absorbs_logits_while_it_quantises(dut):
    """Nothing in the head waits for the rest of the engine, or holds it up."""
    harness = await begin(dut)
    rng, config = harness.rng, harness.config
    for _ in range(ROUNDS):
        model = make_model(rng, config)
        want = [True] * config.rows
        harness.clear()
        harness.set_context(model, want)
        await fill_vm(harness, model)
        y = np.array([[rng.randint(-(1 << 18), 1 << 18) for _ in range(300)] for _ in want])
        harness.children.expect_all(model.head(y, want))
        items = head_items(y)
        sending = cocotb.start_soon(harness.stream("logits", items))
        await quant_once(harness, model, QuantMode.ROW)
        await sending
        await harness.until_idle(5000, harness.tokens)
        harness.compare(model)
        harness.children.assert_empty()


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def emits_children_in_the_documented_time(dut):
    harness = await begin(dut)
    config = harness.config
    for sink in harness.bench.sinks:
        sink.set_backpressure("none")
    for wanting in range(1, config.rows + 1):
        valid = [True] * config.rows
        model = VectorModel(config, valid, [0] * config.rows, [1] + [0] * (config.max_seqs - 1))
        want = [row < wanting for row in range(config.rows)]
        harness.set_context(model, want)
        y = np.array([[c * 4096 for c in range(32)] for _ in valid])
        harness.children.expect_all(model.head(y, want))
        items = head_items(y)
        sending = cocotb.start_soon(harness.stream("logits", items))
        while not int(dut.logits__0__valid.value):
            await harness.edge()
        for _ in range(31):
            await harness.edge()
        cycles = 0
        while not int(dut.idle.value):
            cycles += 1
            await harness.edge()
        await sending
        harness.children.assert_empty()
        wanted = emit_cycles(config, wanting)
        assert cycles == wanted, f"{wanting} rows: {cycles} cycles, documented {wanted}"


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def starts_afresh_after_a_reset(dut):
    """Reset at a random time in each kind of work, then a whole instruction must be right."""
    harness = await begin(dut)
    rng, config = harness.rng, harness.config
    for _ in range(4 * ROUNDS):
        model = make_model(rng, config)
        harness.set_context(model, [1] * config.rows)
        await fill_vm(harness, model)
        gain = random_gain(rng, 128)
        fields = {"gain": 1, "gain_frac": 14, "rms": 1, "eps": 5, "signal": 1}
        instruction = random_quant(rng, config, QuantMode.ROW, 2, **fields)
        code = int.from_bytes(instruction.encode(), "little")
        harness.issue.put({"code": code, "i0": 0, "i1": 0})
        words = words_of(config, gain.astype("<i2").tobytes())
        harness.words.extend(words[: rng.randint(0, len(words))])
        await harness.bench.cycles(rng.randint(1, 250))
        await harness.bench.reset()
        assert int(dut.idle.value)
        harness.clear()
        await quant_once(harness, model, QuantMode.ROW)
        await quant_once(harness, model, QuantMode.HEAD_V)


async def busy_cycles(harness, instruction, words):
    """Cycles in which the engine isn't idle, with words always there."""
    dut = harness.dut
    harness.words.set_idle("none")
    harness.words.extend(words)
    await harness.bench.cycles(3)
    code = int.from_bytes(instruction.encode(), "little")
    harness.issue.put({"code": code, "i0": 0, "i1": 0})
    while int(dut.idle.value):
        await harness.edge()
    dut.mm_token.value = instruction.wait
    cycles = 0
    while not int(dut.idle.value):
        cycles += 1
        await harness.edge()
    dut.mm_token.value = 0
    return cycles


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def takes_the_documented_time(dut):
    harness = await begin(dut)
    rng, config = harness.rng, harness.config
    for wait in (0, 1):
        model = make_model(rng, config)
        harness.set_context(model)
        instructions = [
            Instruction(Op.EMBED, groups=3, wait=wait),
            Instruction(Op.ROPE_TABLE, pairs=32, wait=wait),
            Instruction(Op.QUANT, groups=2, wait=wait),
            Instruction(Op.QUANT, groups=3, rms=1, wait=wait),
            Instruction(Op.QUANT, groups=3, gain=1, wait=wait),
            Instruction(Op.QUANT, groups=4, mode=int(QuantMode.HEAD_Q), head_groups=1, wait=wait),
            Instruction(Op.QUANT, groups=4, mode=int(QuantMode.HEAD_K), head_groups=2, wait=wait),
            Instruction(Op.SOFTMAX, gqa=2, wait=wait),
            Instruction(Op.SYNC, wait=wait),
        ]
        for instruction in instructions:
            rows, words = len(model.rows), 0
            if instruction.op == Op.EMBED:
                words = rows * (instruction.groups * config.group_words + 1)
            elif instruction.op == Op.ROPE_TABLE:
                words = rows * 4 * instruction.pairs // config.bus_bytes
            elif instruction.op == Op.QUANT and instruction.gain:
                words = 128 * instruction.groups // config.bus_bytes
            cycles = await busy_cycles(harness, instruction, [0] * words)
            wanted = vector_cycles(config, instruction, rows=rows, pages=max(model.pages))
            text = f"{instruction.op.name} {instruction.fields}"
            assert cycles == wanted, f"{text}: {cycles} cycles, documented {wanted}"


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def sees_collisions(dut):
    """The array reads vector memory while QUANT does: a wrong program, which must show."""
    harness = await begin(dut)
    model = make_model(harness.rng, harness.config)
    harness.set_context(model)
    instruction = random_quant(harness.rng, harness.config, QuantMode.ROW, 2)
    code = int.from_bytes(instruction.encode(), "little")
    harness.issue.put({"code": code, "i0": 0, "i1": 0})
    row = model.rows[0]
    for _ in range(20):
        await RisingEdge(dut.clk)
    assert not int(dut.collision.value)
    getattr(dut, f"vm_r__{row}__en").value = 1
    for _ in range(20):
        await RisingEdge(dut.clk)
    getattr(dut, f"vm_r__{row}__en").value = 0
    assert int(dut.collision.value)


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def bench_can_fail(dut):
    """One wrong bit in the model, of each memory, is found."""
    harness = await begin(dut)
    model = make_model(harness.rng, harness.config)
    harness.compare(model)
    memories = [model.act, model.shift, model.scale, model.rope]
    memories += [tail[part] for tail in model.tails.values() for part in ("q", "s")]
    for memory in memories:
        at = tuple(harness.rng.randrange(n) for n in memory.shape)
        memory[at] ^= 1
        try:
            harness.compare(model)
        except AssertionError:
            memory[at] ^= 1
        else:
            raise AssertionError("a wrong bit was not found")
