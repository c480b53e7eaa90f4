"""cocotb side of the memory-port tests."""

import itertools

import cocotb
from cocotb.triggers import FallingEdge, RisingEdge

from dfvg_hw.interfaces import word
from dfvg_hw.memory.reader import Target, read_request, tagged_word
from dfvg_hw.memory.writer import write_word
from sim.cocotb.axi import AxiMemory
from sim.cocotb.bench import Bench, parameter, rng
from tests.cocotb.configs import config_of

CONFIG = config_of(parameter("config", str, "tiny"))
WIDTH = CONFIG.bus_bytes
SIZE = 1 << 16
PROFILES = ("none", "random", "bursts")


class MemoryBench(Bench):
    """The port, its memory, and what goes in and out."""

    def __init__(self, dut, stalls="none", backpressure="none", latency=(1, 4)):
        super().__init__(dut)
        dut.clear.value = 0
        self.memory = AxiMemory(
            dut, "axi", SIZE, rng("memory"),
            latency=latency, reads=stalls, addresses=stalls, writes=stalls,
        )  # fmt: skip
        self.memory.data[:] = rng("contents").randbytes(SIZE)
        self.requests = self.source("request", read_request(), "random")
        self.writes = self.source("write", write_word(CONFIG), stalls)
        self.boards = {
            Target.MM: self.sink("mm", tagged_word(CONFIG), backpressure),
            Target.VEC: self.sink("vec", word(CONFIG), backpressure),
            Target.PROGRAM: self.sink("program", word(CONFIG), backpressure),
        }
        self.errors = {"read_error": 0, "write_error": 0}
        cocotb.start_soon(self._watch_errors())

    async def _watch_errors(self):
        while True:
            await RisingEdge(self.clk)
            for name in self.errors:
                self.errors[name] += int(getattr(self.dut, name).value)

    def load(self, address, words, target):
        """Request a run (byte address) and expect its words."""
        self.requests.put({"address": address // 64, "words": words, "target": target})
        for index in range(words):
            start = address + index * WIDTH
            value = int.from_bytes(self.memory.data[start : start + WIDTH], "little")
            if target in (Target.MM, Target.KV):
                self.boards[Target.MM].expect({"data": value, "target": target.value})
            else:
                self.boards[target].expect(value)

    def store(self, address, content):
        """Write whole words to a byte address."""
        words = len(content) // WIDTH
        for index in range(words):
            piece = content[index * WIDTH : (index + 1) * WIDTH]
            first = index == 0
            self.writes.put(
                {
                    "data": int.from_bytes(piece, "little"),
                    "first": int(first),
                    "address": address // 64 if first else 0,
                    "words": words if first else 0,
                }
            )

    async def until(self, name, value=1, limit=20_000):
        for _ in range(limit):
            if int(getattr(self.dut, name).value) == value:
                return
            await RisingEdge(self.clk)
        raise AssertionError(f"{name} did not become {value} within {limit} cycles")

    async def quiet(self):
        await self.finish()
        await self.until("read_idle")
        await self.until("write_idle")
        assert int(self.dut.credits.value) == CONFIG.prefetch_words, "credits were lost"
        assert int(self.dut.level.value) == int(self.dut.pending.value) == 0


@cocotb.test(timeout_time=20, timeout_unit="ms")
@cocotb.parametrize(pair=list(itertools.product(PROFILES, PROFILES)))
async def reads_what_was_requested_in_order(dut, pair):
    bench = MemoryBench(dut, *pair, latency=(1, 90))
    await bench.start()
    chance = rng("requests")
    lines = [64 * unit for unit in range(SIZE // 64)]
    near = [line for line in lines if (line % 4096) in (0, 64, 4032, 3968)]
    for _ in range(60):
        address = chance.choice(near if chance.random() < 0.5 else lines)
        most = min((SIZE - address) // WIDTH, chance.choice([1, 2, 5, 66, 300]))
        target = chance.choice(list(Target))
        bench.load(address, chance.randint(0, most), target)
    await bench.quiet()
    words = sum(board.matched for board in bench.boards.values())
    assert words == bench.memory.reads > 500
    longest = max(burst.beats for burst in bench.memory.read_log)
    assert longest == min(4096 // WIDTH, 256, CONFIG.prefetch_words // 2), longest


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def every_boundary_is_kept(dut):
    """Runs of 1 to 130 words around 4 KiB lines, in both directions."""
    bench = MemoryBench(dut, latency=(1, 20))
    await bench.start()
    edge = 4096 // WIDTH
    chance = rng("content")
    for start, words in itertools.product(
        (4096 - 128, 4096 - 64, 4096, 8192 - 64), (1, 2, edge - 1, edge, edge + 1, 130)
    ):
        bench.load(start, words, Target.VEC)
        content = chance.randbytes(words * WIDTH)
        where = start + 32768
        guard = bytes(bench.memory.data[where - 64 : where])
        after = bytes(bench.memory.data[where + len(content) : where + len(content) + 64])
        bench.store(where, content)
        await bench.quiet()
        assert bench.memory.data[where : where + len(content)] == content
        assert bench.memory.data[where - 64 : where] == guard, "wrote before the run"
        assert bench.memory.data[where + len(content) :][:64] == after, "wrote behind the run"


@cocotb.test(timeout_time=20, timeout_unit="ms")
@cocotb.parametrize(stalls=PROFILES)
async def writes_runs_in_order(dut, stalls):
    bench = MemoryBench(dut, stalls, latency=(1, 40))
    await bench.start()
    chance = rng("runs")
    model = bytearray(bench.memory.data)
    for _ in range(80):
        words = chance.choice([1, 1, 2, 8, 64, 200])
        words = max(1, words)
        address = 64 * chance.randrange((SIZE - words * WIDTH) // 64)
        content = chance.randbytes(words * WIDTH)
        model[address : address + len(content)] = content
        bench.store(address, content)
    await bench.quiet()
    assert bench.memory.data == model
    assert bench.errors == {"read_error": 0, "write_error": 0}


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def a_full_stream_has_no_bubbles(dut):
    """With a memory of 64 cycles latency, a long run moves a word in nearly every cycle."""
    bench = MemoryBench(dut, latency=(CONFIG.memory.latency_cycles,) * 2)
    await bench.start()
    words = 1000
    bench.load(0, words, Target.MM)
    begin = bench.memory.cycle
    await bench.quiet()
    cycles = bench.memory.cycle - begin - 50  # finish() watches 50 more
    limit = words + 110 if CONFIG.prefetch_words > 400 else 2 * words
    assert cycles <= limit, f"{words} words took {cycles} cycles"


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def errors_are_reported_and_words_still_come(dut):
    bench = MemoryBench(dut, "random", "random")
    await bench.start()
    bench.load(0, 20, Target.MM)
    bench.store(8192, bytes(8 * WIDTH))
    await bench.quiet()
    assert bench.errors == {"read_error": 0, "write_error": 0}
    bench.memory.bad_reads.add(1)
    bench.memory.bad_writes.add(9)
    bench.load(4096 - 64, 2 * 64 // WIDTH, Target.MM)
    bench.store(9 * 4096 - 64, bytes(128))
    await bench.quiet()
    assert bench.errors == {"read_error": 64 // WIDTH, "write_error": 1}


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def clear_drops_what_is_under_way(dut):
    chance = rng("moments")
    bench = MemoryBench(dut, "random", "bursts", latency=(1, 60))
    await bench.start()
    for _ in range(12):
        before = bytes(bench.memory.data)
        for _ in range(3):
            bench.load(64 * chance.randrange(400), chance.randint(1, 200), chance.choice([*Target]))
        content = chance.randbytes(256 * WIDTH)
        bench.store(32768, content)
        await bench.cycles(chance.randint(1, 400))
        dut.clear.value = 1
        await FallingEdge(dut.clk)  # every agent has judged the cycle before
        for source in (bench.requests, bench.writes):
            source.clear()
        for board in bench.boards.values():
            board.clear()
        for checker in bench.checkers:
            checker._held = None  # a cleared stream may withdraw its item, as in a reset
        await bench.cycles(2)
        await bench.until("read_idle")
        await bench.until("write_idle")
        assert bench.memory.pending == 0
        dut.clear.value = 0
        await bench.cycles(2)
        wrote = bench.memory.data[32768 : 32768 + len(content)]
        for start in range(0, len(content), WIDTH):
            piece = slice(start, start + WIDTH)
            assert wrote[piece] in (content[piece], before[32768:][piece]), "a torn word"
        bench.load(0, 50, Target.VEC)
        bench.store(4096, content[: 4 * WIDTH])
        await bench.quiet()
        assert bench.memory.data[4096 : 4096 + 4 * WIDTH] == content[: 4 * WIDTH]


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def reset_in_the_middle(dut):
    chance = rng("moments")
    bench = MemoryBench(dut, "random", "bursts", latency=(1, 60))
    await bench.start()
    for _ in range(5):
        bench.load(0, 300, Target.MM)
        bench.store(16384, chance.randbytes(64 * WIDTH))
        await bench.cycles(chance.randint(1, 300))
        await bench.reset()
    bench.load(64, 300, Target.MM)
    await bench.quiet()
