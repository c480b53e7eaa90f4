"""cocotb side of the merge-unit tests: pages in, pages with the rows' K and V out, runs back."""

import itertools
from dataclasses import dataclass, field

import cocotb
from cocotb.triggers import FallingEdge, RisingEdge

from dfvg_hw.interfaces import (
    kv_command,
    model_registers,
    row_context,
    sequence_context,
    word,
)
from dfvg_hw.isa import KvKind
from dfvg_hw.memory.reader import Target, tagged_word
from dfvg_hw.memory.writer import write_word
from sim.cocotb.bench import Bench, parameter, rng
from sim.cocotb.checkers import ProtocolChecker, Scoreboard
from sim.cocotb.layout import Codec
from sim.cocotb.streams import Monitor, Sink, StreamPort
from tests.cocotb.configs import config_of

CONFIG = config_of(parameter("config", str, "tiny"))
WIDTH, ROWS, LANES = CONFIG.bus_bytes, CONFIG.rows, CONFIG.lanes
PROFILES = ("none", "random", "bursts")
PAGE = 64


@dataclass
class Pass:
    """What one pass works on: contexts and the rows' K and V."""

    model: dict
    rows: list
    sequences: list
    k: list = field(default_factory=list)  # per row: bytes of all heads
    v: list = field(default_factory=list)
    k_scale: list = field(default_factory=list)
    v_scale: list = field(default_factory=list)


def random_pass(chance):
    """Rows of random sequences in few pages, so that they often share one."""
    groups = chance.choice([1, 1, 2, 3])
    heads = chance.randint(1, min(3, CONFIG.vm_depth // 2 // 64 // groups))
    model = dict.fromkeys((name for name, _ in model_registers()), 0)
    model |= {
        "kv_base": chance.randrange(1 << 20),
        "kv_page": chance.randrange(1 << 14),
        "kv_layer": chance.randrange(1 << 10),
        "kv_head": chance.randrange(1 << 9),
        "kv_v": chance.randrange(1 << 8),
        "head_groups": groups,
        "kv_heads": heads,
    }
    pages = [chance.randint(0, 3) for _ in range(CONFIG.max_seqs)]
    pages[chance.randrange(CONFIG.max_seqs)] = 2
    phys = {}
    slots = [(s, p, t) for s, n in enumerate(pages) for p in range(n) for t in range(PAGE)]
    rows = []
    for seq, page, offset in chance.sample(slots, ROWS):
        number = phys.setdefault((seq, page), chance.randrange(CONFIG.pool_pages))
        rows.append(
            {"valid": int(chance.random() < 0.8), "children": 0, "token": 0, "position": 0,
             "seq": seq, "page": page, "phys": number, "offset": offset}
        )  # fmt: skip
    rows[0]["valid"] = 1
    sequences = [{"rows": 0, "pages": n} for n in pages]
    item = Pass(model, rows, sequences)
    size = heads * groups * 64
    for _ in range(ROWS):
        item.k.append(chance.randbytes(size))
        item.v.append(chance.randbytes(size))
        item.k_scale.append(chance.randbytes(heads))
        item.v_scale.append(chance.randbytes(heads))
    return item


def merged(item, kind, layer, head, seq, page, old):
    """Return the page's bytes with the rows' own, and the runs (address, bytes) to write back."""
    model, groups = item.model, item.model["head_groups"]
    dims = 64 * groups
    base = model["kv_base"] + layer * model["kv_layer"] + head * model["kv_head"]
    base += model["kv_v"] if kind == KvKind.V else 0
    data = bytearray(old)
    runs = []
    tokens = []
    for number, row in enumerate(item.rows):
        if not row["valid"] or (row["seq"], row["page"]) != (seq, page):
            continue
        token, own = row["offset"], slice(head * dims, (head + 1) * dims)
        address = (base + row["phys"] * model["kv_page"]) % (1 << 26)
        tokens.append(token)
        if kind == KvKind.K:
            data[token] = item.k_scale[number][head]
            data[64 + token] = item.v_scale[number][head]
            data[128 + token * dims : 128 + (token + 1) * dims] = item.k[number][own]
        else:
            data[token::64] = item.v[number][own]
    if not tokens:
        return data, runs
    if kind == KvKind.V:
        return data, [(address, bytes(data))]
    runs.append((address, bytes(data[:128])))
    for token in sorted(tokens):
        start = 128 + token * dims
        where = (address + 2 + token * groups) % (1 << 26)
        runs.append((where, bytes(data[start : start + dims])))
    return data, runs


class MergeBench(Bench):
    """The unit, its tails and contexts, and the scoreboards of both outputs."""

    def __init__(self, dut, idle="none", backpressure="none"):
        super().__init__(dut)
        self.input = self.source("i", tagged_word(CONFIG), idle)
        self.commands = self.source("command", kv_command(), "random")
        self.out = self.sink("o", word(CONFIG), backpressure)
        port = StreamPort(dut, "write", write_word(CONFIG))
        self.checkers.append(ProtocolChecker(port))
        Sink(port, rng("sink write"), backpressure)
        self.runs = Scoreboard("write")
        self.scoreboards.append(self.runs)
        self._run = None
        Monitor(port, self._take)
        for index in range(ROWS):
            for name in ("k_tail", "v_tail"):
                getattr(dut, f"{name}__{index}__en").value = 0
                getattr(dut, f"{name}__{index}__scale_en").value = 0

    def _take(self, item):
        """Put words of the write stream together to runs."""
        if item["first"]:
            assert self._run is None, "a run began inside another"
            self._run = (item["address"], item["words"], bytearray())
        assert self._run is not None, "a word outside any run"
        address, words, content = self._run
        content += item["data"].to_bytes(WIDTH, "little")
        if len(content) == words * WIDTH:
            self._run = None
            self.runs.check((address, bytes(content)))

    async def load(self, item):
        """Drive the contexts and write the tails of a pass."""
        self.dut.model.value = Codec(model_registers()).pack(item.model)
        for index, row in enumerate(item.rows):
            getattr(self.dut, f"rows__{index}").value = Codec(row_context()).pack(row)
        for index, sequence in enumerate(item.sequences):
            packed = Codec(sequence_context(CONFIG)).pack(sequence)
            getattr(self.dut, f"sequences__{index}").value = packed
        steps = max(len(item.k[0]) // LANES, item.model["kv_heads"])
        for step in range(steps):
            for row in range(ROWS):
                self._drive_tail("k_tail", row, step, item.k[row], item.k_scale[row])
                self._drive_tail("v_tail", row, step, item.v[row], item.v_scale[row])
            await RisingEdge(self.clk)
        for row in range(ROWS):
            for name in ("k_tail", "v_tail"):
                getattr(self.dut, f"{name}__{row}__en").value = 0
                getattr(self.dut, f"{name}__{row}__scale_en").value = 0
        await RisingEdge(self.clk)

    def _drive_tail(self, name, row, step, values, scales):
        def drive(member, value):
            getattr(self.dut, f"{name}__{row}__{member}").value = value

        drive("en", int(step < len(values) // LANES))
        drive("addr", step)
        drive("data", int.from_bytes(values[step * LANES : (step + 1) * LANES], "little"))
        drive("scale_en", int(step < len(scales)))
        drive("head", min(step, len(scales) - 1))
        drive("scale", scales[min(step, len(scales) - 1)])

    def plain(self, chance, words):
        for _ in range(words):
            value = chance.getrandbits(8 * WIDTH)
            self.input.put({"data": value, "target": Target.MM})
            self.out.expect(value)

    def command(self, chance, item, kind, layer, head):
        """Stream the pages of a command; returns the words sent."""
        self.commands.put({"kind": kind.value, "layer": layer, "head": head})
        dims = 64 * item.model["head_groups"]
        size = 64 * dims + (128 if kind == KvKind.K else 0)
        sent = 0
        for seq, sequence in enumerate(item.sequences):
            for page in range(sequence["pages"]):
                old = chance.randbytes(size)
                new, runs = merged(item, kind, layer, head, seq, page, old)
                for start in range(0, size, WIDTH):
                    value = int.from_bytes(old[start : start + WIDTH], "little")
                    self.input.put({"data": value, "target": Target.KV})
                    self.out.expect(int.from_bytes(new[start : start + WIDTH], "little"))
                    sent += 1
                self.runs.expect_all(runs)
        return sent


@cocotb.test(timeout_time=20, timeout_unit="ms")
@cocotb.parametrize(pair=list(itertools.product(PROFILES, PROFILES)))
async def rows_find_their_kv_in_the_pages(dut, pair):
    bench = MergeBench(dut, *pair)
    chance = rng("passes")
    await bench.start()
    for _ in range(3):
        item = random_pass(chance)
        await bench.load(item)
        for _ in range(2):
            layer, head = chance.randrange(1 << 6), chance.randrange(item.model["kv_heads"])
            for kind in (KvKind.K, KvKind.V):
                bench.plain(chance, chance.randint(0, 30))
                bench.command(chance, item, kind, layer, head)
        bench.plain(chance, 5)
        await bench.finish(limit=1_000_000)  # narrow buses and slow sides take long
        assert int(dut.idle.value)
    assert bench.runs.matched >= 6


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def a_word_passes_in_every_cycle(dut):
    bench = MergeBench(dut)
    chance = rng("speed")
    await bench.start()
    bench.plain(chance, 500)
    cycles = await count(bench)
    assert cycles <= 500 + 5, f"500 plain words took {cycles} cycles"
    item = random_pass(chance)
    await bench.load(item)
    words = bench.command(chance, item, KvKind.K, 3, 0)
    words += bench.command(chance, item, KvKind.V, 3, 0)
    cycles = await count(bench)
    assert cycles <= words + 30, f"{words} KV words took {cycles} cycles"


async def count(bench):
    """Cycles until everything expected has come."""
    cycles = 0
    while bench.out.pending or bench.runs.pending:
        await RisingEdge(bench.clk)
        cycles += 1
        assert cycles < 100_000
    return cycles


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def kv_words_wait_for_their_command(dut):
    bench = MergeBench(dut)
    chance = rng("order")
    await bench.start()
    item = random_pass(chance)
    await bench.load(item)
    bench.commands.set_idle("alternate")
    bench.command(chance, item, KvKind.V, 1, 0)
    held = list(bench.commands._queue)
    bench.commands.clear()
    await bench.cycles(200)
    assert bench.out.matched == 0, "a KV word passed before its command"
    bench.commands._queue.extend(held)
    await bench.finish()


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def reset_in_the_middle(dut):
    bench = MergeBench(dut, "random", "random")
    chance = rng("moments")
    await bench.start()
    for _ in range(6):
        item = random_pass(chance)
        await bench.load(item)
        bench.command(chance, item, KvKind.K, 1, 0)
        await bench.cycles(chance.randint(1, 400))
        await bench.reset()
        await FallingEdge(dut.clk)
        bench._run = None
    bench.command(chance, item, KvKind.V, 2, item.model["kv_heads"] - 1)
    await bench.finish()
