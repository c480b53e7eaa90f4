"""cocotb side of the core test: run passes, compare children and KV with the integer model."""

import pickle
from pathlib import Path

import cocotb
from cocotb.triggers import RisingEdge

from dfvg_hw.interfaces import child_result, model_registers
from dfvg_hw.overlap.control import pass_context, pass_result
from dfvg_hw.overlap.counters import counter_values
from dfvg_hw.overlap.status import core_errors, core_state
from sim.cocotb.axi import AxiMemory
from sim.cocotb.bench import Bench, parameter, rng
from sim.cocotb.layout import Codec
from tests.cocotb.configs import config_of
from tests.cocotb.core_case import CoreCase
from tests.cocotb.core_trace import CoreTrace

CASE = CoreCase.load(Path(parameter("case", str)))
CONFIG = config_of(CASE.config)
SHORT = CASE.short
TRACE = parameter("trace", str, "")


def model_values(registers):
    """Fields of `model_registers` from the image's register values."""
    values = {}
    shape = registers["model_shape"]
    for name, _ in model_registers():
        values[name] = registers.get(f"model_{name}", 0)
    return values | {
        "head_groups": shape & 3,
        "kv_heads": shape >> 8 & 255,
        "layers": shape >> 16,
    }


class CoreBench(Bench):
    """A core with its program and its model in memory."""

    def __init__(self, dut, stalls="none", latency=(8, 8), backpressure="none"):
        super().__init__(dut)
        self.memory = AxiMemory(
            dut, "axi", -(-len(CASE.memory) // 4096) * 4096, rng("memory"),
            latency=latency, reads=stalls, addresses=stalls, writes=stalls,
        )  # fmt: skip
        self.memory.data[: len(CASE.memory)] = CASE.memory
        self.passes = self.source("i", pass_context(CONFIG))
        self.children = self.sink(
            "children", child_result(CONFIG).members["payload"].shape, backpressure
        )
        dut.model.value = Codec(model_registers()).pack(model_values(CASE.registers))
        dut.program_base.value = CASE.registers["model_program"]
        dut.program_length.value = CASE.registers["model_program_length"]
        for name in (
            "program_start", "page_w__en", "visibility__en", "kill", "soft_reset",
            "watchdog_limit", "error_clear",
        ):  # fmt: skip
            getattr(dut, name).value = 0

    async def boot(self):
        """Reset, then load the program."""
        await self.start()
        await self.pulse("program_start")
        await self.until("program_loaded", limit=2000)

    async def pulse(self, name, value=1):
        getattr(self.dut, name).value = value
        await RisingEdge(self.clk)
        getattr(self.dut, name).value = 0

    async def until(self, name, limit):
        handle = getattr(self.dut, name)
        for _ in range(limit):
            await RisingEdge(self.clk)
            if int(handle.value):
                return
        raise AssertionError(f"no {name} within {limit} cycles: {self.state()}")

    def state(self):
        return Codec(core_state(CONFIG)).unpack(int(self.dut.state.value))

    async def prepare(self, item):
        """Write page tables and visibility."""
        dut = self.dut
        dut.page_w__en.value = 1
        for seq, pages in item.tables.items():
            for page, phys in enumerate(pages):
                dut.page_w__seq.value, dut.page_w__page.value = seq, page
                dut.page_w__phys.value = phys
                await RisingEdge(self.clk)
        dut.page_w__en.value = 0
        dut.visibility__en.value = 1
        for row, maps in enumerate(item.visible):
            pages = item.sequences[item.rows[row]["seq"]]["pages"]
            for page in range(pages):
                dut.visibility__row.value, dut.visibility__page.value = row, page
                dut.visibility__bits.value = maps[page] if page < len(maps) else 0
                await RisingEdge(self.clk)
        dut.visibility__en.value = 0

    def launch(self, item):
        self.passes.put({"rows": item.rows, "sequences": item.sequences})

    def expect(self, item):
        for place, (row, rank, channel, logprob) in enumerate(item.children):
            self.children.expect(
                {"row": row, "rank": rank, "channel": channel, "logprob": logprob,
                 "last": int(place + 1 == len(item.children))}
            )  # fmt: skip

    async def run(self, item, limit=200_000):
        """One pass; returns its cycles."""
        await self.prepare(item)
        self.expect(item)
        self.launch(item)
        result = await self.ended(limit)
        assert not result["aborted"]
        assert not int(self.dut.errors.value), hex(int(self.dut.errors.value))
        self.children.assert_empty()
        return result["cycles"]

    async def ended(self, limit):
        """Wait for the end of a pass; returns its result."""
        await self.until("done", limit)
        return Codec(pass_result(CONFIG)).unpack(int(self.dut.result.value))

    def check_kv(self, right):
        start, end = CASE.kv
        ours = self.memory.data[start:end]
        wrong = [i for i in range(end - start) if ours[i] != right[i]]
        assert not wrong, f"{len(wrong)} KV bytes differ, first at {start + wrong[0]:#x}"


@cocotb.test(timeout_time=200, timeout_unit="ms")
async def children_and_kv_equal_the_integer_model(dut):
    bench = CoreBench(dut)
    await bench.boot()
    trace = CoreTrace(dut, CONFIG.rows) if TRACE else None
    try:
        for number, item in enumerate(CASE.passes):
            cycles = await bench.run(item)
            dut._log.info(f"pass {number}: {cycles} cycles, {len(item.children)} children")
    finally:
        if trace is not None:
            Path(TRACE).write_bytes(pickle.dumps(trace.events))
    bench.check_kv(CASE.after)
    await bench.cycles(2)
    counters = Codec(counter_values()).unpack(int(dut.counters.value))
    assert counters["passes"] == len(CASE.passes)
    assert counters["words_read"] == bench.memory.reads
    assert counters["words_written"] == bench.memory.writes
    assert 0 < counters["busy"] < counters["cycles"]
    assert 0 < counters["starved"] < counters["busy"]
    assert 0 < counters["blocked"] < counters["busy"]


@cocotb.test(timeout_time=100, timeout_unit="ms")
async def nothing_depends_on_memory_timing(dut):
    bench = CoreBench(dut, "random", (1, 90), "bursts")
    await bench.boot()
    for item in CASE.passes[:SHORT]:
        await bench.run(item)
    bench.check_kv(CASE.early)


@cocotb.test(timeout_time=100, timeout_unit="ms")
async def the_first_address_follows_the_context_at_once(dut):
    bench = CoreBench(dut)
    await bench.boot()
    await bench.prepare(CASE.passes[0])
    bench.launch(CASE.passes[0])
    await bench.until("running", 10)
    await bench.until("axi__arvalid", 12)


@cocotb.test(timeout_time=100, timeout_unit="ms")
async def aborted_passes_leave_no_trace(dut):
    """Every pass is first killed at some moment, by its rows or by a soft reset, then repeated."""
    bench = CoreBench(dut, "random", (1, 60))
    chance = rng("moments")
    await bench.boot()
    for number, item in enumerate(CASE.passes[:SHORT]):
        await bench.prepare(item)
        bench.launch(item)
        await bench.until("running", 100)
        await bench.cycles(chance.choice([0, 1, 5, 40, 300, 2000, 7000, 12000]))
        begin = bench.memory.cycle
        name, value = ("soft_reset", 1) if number % 2 else ("kill", (1 << CONFIG.rows) - 1)
        await bench.pulse(name, value)
        result = await bench.ended(1000)
        assert result["aborted"]
        assert bench.memory.pending == 0, "a burst is still under way"
        dut._log.info(f"pass {number}: aborted within {bench.memory.cycle - begin} cycles")
        await bench.run(item)
    bench.check_kv(CASE.early)
    await bench.cycles(2)
    counters = Codec(counter_values()).unpack(int(dut.counters.value))
    assert counters["aborted"] == SHORT
    assert counters["passes"] == 2 * SHORT


@cocotb.test(timeout_time=100, timeout_unit="ms")
async def a_killed_row_among_live_ones_is_reported(dut):
    item = next(p for p in CASE.passes if sum(r["valid"] for r in p.rows) > 1)
    bench = CoreBench(dut)
    await bench.boot()
    for earlier in CASE.passes[: CASE.passes.index(item)]:
        await bench.run(earlier)
    await bench.prepare(item)
    bench.expect(item)
    bench.launch(item)
    await bench.until("running", 100)
    await bench.cycles(500)
    await bench.pulse("kill", 1)
    result = await bench.ended(100_000)
    assert (result["aborted"], result["killed"]) == (0, 1)
    bench.children.assert_empty()


@cocotb.test(timeout_time=100, timeout_unit="ms")
async def the_watchdog_keeps_the_state_and_a_soft_reset_recovers(dut):
    bench = CoreBench(dut, latency=(8, 60))
    await bench.boot()
    dut.watchdog_limit.value = 3000
    item = CASE.passes[0]
    await bench.prepare(item)
    bench.launch(item)
    await bench.until("running", 100)
    await bench.cycles(3000)
    assert not int(dut.errors.value), "the watchdog bit a healthy pass"
    bench.memory.freeze()
    for _ in range(20_000):
        await RisingEdge(dut.clk)
        if int(dut.errors.value):
            break
    assert Codec(core_errors()).unpack(int(dut.errors.value))["watchdog"]
    dump = Codec(core_state(CONFIG)).unpack(int(dut.dump.value))
    assert dump["mm_wants"] or dump["vec_wants"], dump
    assert dump["credits"] < CONFIG.prefetch_words, dump
    assert dump["reading"], dump
    assert int(dut.running.value), "a hung pass stays, to be looked at"
    await bench.pulse("soft_reset")
    await bench.cycles(100)
    assert int(dut.running.value), "words are still on their way"
    bench.memory.freeze(False)
    assert (await bench.ended(1000))["aborted"]
    bench.launch(item)
    await bench.cycles(50)
    assert not int(dut.running.value), "a pass started although an error stands"
    await bench.pulse("error_clear", Codec(core_errors()).pack(
        {"read": 0, "write": 0, "watchdog": 1, "program": 0}
    ))  # fmt: skip
    bench.expect(item)
    assert not (await bench.ended(100_000))["aborted"]
    bench.children.assert_empty()


@cocotb.test(timeout_time=100, timeout_unit="ms")
async def bus_errors_are_sticky_and_stop_further_passes(dut):
    bench = CoreBench(dut)
    await bench.boot()
    bench.memory.bad_writes.update(range(len(bench.memory.data) // 4096))
    item = CASE.passes[0]
    await bench.prepare(item)
    bench.expect(item)
    bench.launch(item)
    assert not (await bench.ended(100_000))["aborted"]
    await bench.cycles(50)
    errors = Codec(core_errors()).unpack(int(dut.errors.value))
    assert errors == {"read": 0, "write": 1, "watchdog": 0, "program": 0}
    bench.memory.bad_writes.clear()
    bench.memory.bad_reads.add(0)
    await bench.pulse("program_start")
    await bench.until("program_loaded", 2000)
    await bench.cycles(50)
    errors = Codec(core_errors()).unpack(int(dut.errors.value))
    assert errors == {"read": 1, "write": 1, "watchdog": 0, "program": 0}
    bench.launch(item)
    await bench.cycles(50)
    assert not int(dut.running.value)


@cocotb.test(timeout_time=100, timeout_unit="ms")
async def reset_in_the_middle(dut):
    bench = CoreBench(dut)
    await bench.boot()
    item = CASE.passes[0]
    for cycles in (10, 3000):
        await bench.prepare(item)
        bench.launch(item)
        await bench.cycles(cycles)
        await bench.reset()
        assert int(dut.program_loaded.value), "memories keep their contents, so the program too"
    await bench.run(item)
