"""Drives the matrix engine: loads operands, plays steps, judges every result."""

from collections import deque

import cocotb
from cocotb.triggers import RisingEdge

from dfvg_hw.config import GROUP
from dfvg_hw.interfaces import issue, kv_command, logit, score, sequence_context, word
from sim.cocotb.bench import Bench, rng
from sim.cocotb.layout import Codec
from tests.hw.matmul.bench_top import EVENT_PORTS
from tests.hw.matmul.model import PORTS


class MatmulHarness:
    """Bench, event watcher and token bookkeeping around `EngineBench`.

    Per row and port, results must come in order; a token may come only when all results of the
    steps up to the one that signals have come, and `idle` must be low at every result.
    """

    def __init__(self, dut, config, idle="none", kv_stall="random"):
        self.dut, self.config = dut, config
        self.bench = Bench(dut)
        self.issue = self.bench.source("issue", issue())
        self.words = self.bench.source("words", word(config), idle)
        self.kv = self.bench.sink("kv", kv_command(), kv_stall)
        self.rng = rng("harness")
        self.codecs = {"scores": Codec(score()), "logits": Codec(logit())}
        self.context = Codec(sequence_context(config))
        self.vm = [{} for _ in range(config.rows)]
        self.forget()
        for name in ("vec_token", "fault", "head_groups"):
            getattr(dut, name).value = 0
        for row in range(config.rows):
            for port in ("act_w", "shift_w", "scale_w", "rope_w"):
                self.port(port, row, "en").value = 0

    def port(self, name, row, member):
        return getattr(self.dut, f"{name}__{row}__{member}")

    def forget(self):
        """Drop all expectations, as after a reset."""
        rows = range(self.config.rows)
        self.expected = {port: [deque() for _ in rows] for port in PORTS}
        self.counted = {port: [0 for _ in rows] for port in PORTS}
        self.seen = {port: [0 for _ in rows] for port in PORTS}
        self.tokens_due = deque()
        self.tokens = 0
        self.vec_tokens = 0
        self.results = 0
        self.first_word = self.last_word = self.last_result = None

    async def start(self):
        await self.bench.start()
        cocotb.start_soon(self._watch())

    # ---- loading ------------------------------------------------------------------------------

    async def load(self, model):
        """Write all operands, shifts, scales and tables of the model, all rows in parallel."""
        config = self.config
        units = config.act_groups * GROUP // config.lanes
        flat = model.act.reshape(config.rows, units, config.lanes)
        for index in range(max(units, 256)):
            for row in range(config.rows):
                self._load_row(model, flat, row, index, units)
            await RisingEdge(self.dut.clk)
        for row in range(config.rows):
            for port in ("act_w", "shift_w", "scale_w", "rope_w"):
                self.port(port, row, "en").value = 0
        self.dut.head_groups.value = model.head_groups
        self.context_of(model)
        await RisingEdge(self.dut.clk)

    def context_of(self, model):
        for index, sequence in enumerate(model.sequences):
            value = self.context.pack({"rows": sequence.rows, "pages": sequence.pages})
            getattr(self.dut, f"sequences__{index}").value = value

    def _load_row(self, model, flat, row, index, units):
        put = {"act_w": index < units, "shift_w": index < self.config.act_groups}
        put |= {"scale_w": index < 256, "rope_w": index < model.cos.shape[1]}
        for port, en in put.items():
            self.port(port, row, "en").value = int(en)
        if put["act_w"]:
            data = int.from_bytes(bytes(int(v) & 255 for v in flat[row, index]), "little")
            self.port("act_w", row, "addr").value = index
            self.port("act_w", row, "data").value = data
        if put["shift_w"]:
            self.port("shift_w", row, "group").value = index
            self.port("shift_w", row, "shift").value = int(model.shift[row, index])
        if put["scale_w"]:
            self.port("scale_w", row, "index").value = index
            self.port("scale_w", row, "mant").value = int(model.mant[row, index])
            self.port("scale_w", row, "exp").value = int(model.exp[row, index])
        if put["rope_w"]:
            self.port("rope_w", row, "pair").value = index
            self.port("rope_w", row, "cos").value = int(model.cos[row, index])
            self.port("rope_w", row, "sin").value = int(model.sin[row, index])

    # ---- playing ------------------------------------------------------------------------------

    def play(self, step):
        """Queue an instruction, its words and its results."""
        self.issue.put(step.issue)
        self.words.extend(step.words)
        self.kv.expect_all(step.kv)
        for port in PORTS:
            for row, results in enumerate(step.results[port]):
                self.expected[port][row].extend(results)
                self.counted[port][row] += len(results)
        if step.instruction.signal:
            self.tokens_due.append({p: list(c) for p, c in self.counted.items()})

    def give_token(self):
        self.vec_tokens += 1
        self.dut.vec_token.value = 1

    async def finish(self, limit=200_000):
        """Wait until everything came, then check that nothing more comes and all is idle."""
        for _ in range(limit):
            if not self._pending():
                break
            await RisingEdge(self.dut.clk)
        assert not self._pending(), f"missing after {limit} cycles: {self._pending()}"
        await self.bench.finish(quiet=40)
        assert int(self.dut.idle.value), "not idle although everything is done"

    def _pending(self):
        missing = {
            f"{port}{row}": len(queue)
            for port in PORTS
            for row, queue in enumerate(self.expected[port])
            if queue
        }
        return missing | ({"tokens": len(self.tokens_due)} if self.tokens_due else {})

    async def _watch(self):
        edge, dut, cycle = RisingEdge(self.dut.clk), self.dut, 0
        while True:
            await edge
            cycle += 1
            if int(dut.rst.value):
                continue
            if int(dut.words__valid.value) and int(dut.words__ready.value):
                self.first_word = cycle if self.first_word is None else self.first_word
                self.last_word = cycle
            if int(dut.vec_take.value):
                assert self.vec_tokens, "took a token that isn't there"
                self.vec_tokens -= 1
                dut.vec_token.value = int(self.vec_tokens > 0)
            events = int(dut.events.value)
            if events:
                self.last_result = cycle
                assert not int(dut.idle.value), "a result while idle"
                self._judge(events)
            # After the results: one in the same cycle as the token would be too late.
            if int(dut.token.value):
                self._judge_token()

    def _judge(self, events):
        for row in range(self.config.rows):
            bits = events >> (row * len(EVENT_PORTS))
            # A read in the cycle of a write returns the old value, as the memory does.
            if bits & 2:
                addr = int(self.port("vm_r", row, "addr").value)
                self.port("vm_r", row, "data").value = self.vm[row].get(addr, 0)
            else:
                self.port("vm_r", row, "data").value = self.rng.randrange(-(1 << 31), 1 << 31)
            if bits & 1:
                addr = int(self.port("vm_w", row, "addr").value)
                value = self.port("vm_w", row, "data").value.to_signed()
                self.vm[row][addr] = value
                self._match("vm", row, (addr, value))
            for bit, port in ((4, "scores"), (8, "logits")):
                if bits & bit:
                    payload = int(self.port(port, row, "payload").value)
                    self._match(port, row, self.codecs[port].unpack(payload))

    def _match(self, port, row, item):
        queue = self.expected[port][row]
        number = self.seen[port][row]
        assert queue, f"{port} of row {row}: unexpected {item} after {number} results"
        wanted = queue.popleft()
        assert item == wanted, f"{port} of row {row}: result {number} is {item}, not {wanted}"
        self.seen[port][row] += 1
        self.results += 1

    def _judge_token(self):
        assert self.tokens_due, "a token that nothing signalled"
        due = self.tokens_due.popleft()
        self.tokens += 1
        for port in PORTS:
            for row, count in enumerate(due[port]):
                seen = self.seen[port][row]
                assert seen >= count, f"token with {seen} of {count} results of {port} row {row}"
