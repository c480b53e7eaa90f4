"""Drives the vector engine in a simulation and keeps the memories it writes to."""

import random

import numpy as np
from cocotb.triggers import RisingEdge

from dfvg_hw import interfaces
from sim.cocotb.bench import Bench, rng
from sim.cocotb.layout import Codec
from tests.hw.vector.bench_top import WRITE_PORTS

__all__ = ["VectorHarness"]


def _signed(value, bits):
    return value - (1 << bits) if value >> (bits - 1) else value


class VectorHarness:
    """Clock, streams, contexts, and the memories behind the write ports.

    Parameters
    ----------
    dut : handle
        An `EngineBench`.
    config : DeviceConfig
    idle : str
        Profile of the word stream.
    """

    def __init__(self, dut, config, idle="random"):
        self.dut, self.config = dut, config
        self.bench = Bench(dut)
        self.rng = rng("vector")
        self.issue = self.bench.source("issue", interfaces.issue())
        self.words = self.bench.source("words", interfaces.word(config), idle=idle)
        shape = interfaces.child_result(config).members["payload"].shape
        self.children = self.bench.sink("children", shape, backpressure="random")
        self._codecs = {"scores": Codec(interfaces.score()), "logits": Codec(interfaces.logit())}
        self._row_codec = Codec(interfaces.row_context())
        self._seq_codec = Codec(interfaces.sequence_context(config))
        self.tokens = 0
        self.clear()
        for name in ("visibility__en", "mm_token", "head_groups"):
            getattr(dut, name).value = 0
        for row in range(config.rows):
            for name in ("vm_w__{}__en", "vm_r__{}__en", "scores__{}__valid", "logits__{}__valid"):
                getattr(dut, name.format(row)).value = 0

    def clear(self):
        """Forget what was written."""
        config, rows = self.config, self.config.rows
        self.act = np.zeros((rows, config.act_groups * 64), dtype=np.int64)
        self.shift = np.zeros((rows, config.act_groups), dtype=np.int64)
        self.scale = np.zeros((rows, 256, 2), dtype=np.int64)
        self.rope = np.zeros((rows, 128, 2), dtype=np.int64)
        self.tails = {
            name: {"q": np.zeros((rows, 1 << 16), dtype=np.int64), "s": np.zeros((rows, 256), int)}
            for name in ("k_tail", "v_tail")
        }

    def _port(self, name, row, field):
        return int(getattr(self.dut, f"{name}__{row}__{field}").value)

    async def watch(self):
        """Record every write and token, for ever."""
        while True:
            await RisingEdge(self.dut.clk)
            self.tokens += int(self.dut.token.value)
            writes = int(self.dut.writes.value)
            while writes:
                bit = (writes & -writes).bit_length() - 1
                writes &= writes - 1
                row, port = divmod(bit, len(WRITE_PORTS))
                getattr(self, f"_{WRITE_PORTS[port]}")(row)

    def _lanes(self, name, row):
        lanes = self.config.lanes
        start, data = self._port(name, row, "addr") * lanes, self._port(name, row, "data")
        return start, [_signed(data >> 8 * i & 255, 8) for i in range(lanes)]

    def _act_w(self, row):
        start, values = self._lanes("act_w", row)
        self.act[row, start : start + len(values)] = values

    def _shift_w(self, row):
        self.shift[row, self._port("shift_w", row, "group")] = self._port("shift_w", row, "shift")

    def _scale_w(self, row):
        index = self._port("scale_w", row, "index")
        exponent = _signed(self._port("scale_w", row, "exp"), 8)
        self.scale[row, index] = (self._port("scale_w", row, "mant"), exponent)

    def _rope_w(self, row):
        pair = self._port("rope_w", row, "pair")
        values = [_signed(self._port("rope_w", row, name), 16) for name in ("cos", "sin")]
        self.rope[row, pair] = values

    def _k_tail(self, row, name="k_tail"):
        tail = self.tails[name]
        if self._port(name, row, "en"):
            start, values = self._lanes(name, row)
            tail["q"][row, start : start + len(values)] = values
        if self._port(name, row, "scale_en"):
            tail["s"][row, self._port(name, row, "head")] = self._port(name, row, "scale")

    def _v_tail(self, row):
        self._k_tail(row, "v_tail")

    def set_context(self, model, want=None):
        """Give the engine the rows and sequences of a model."""
        want = want or [0] * self.config.rows
        for row in range(self.config.rows):
            fields = dict.fromkeys(self._row_codec.unpack(0), 0)
            fields |= {
                "valid": int(model.valid[row]),
                "children": int(want[row]),
                "seq": model.seqs[row],
            }
            getattr(self.dut, f"rows__{row}").value = self._row_codec.pack(fields)
        for seq, pages in enumerate(model.pages):
            fields = {"rows": 0, "pages": pages}
            getattr(self.dut, f"sequences__{seq}").value = self._seq_codec.pack(fields)

    async def edge(self):
        """The next rising edge."""
        await RisingEdge(self.dut.clk)

    async def write_vm(self, start, values):
        """Write vectors (rows, n) as the array does: row r one cycle behind row r - 1."""
        rows, size = values.shape
        for cycle in range(size + rows):
            for row in range(rows):
                index = cycle - row
                on = 0 <= index < size
                getattr(self.dut, f"vm_w__{row}__en").value = int(on)
                if on:
                    getattr(self.dut, f"vm_w__{row}__addr").value = start + index
                    bits = int(values[row, index]) & 0xFFFFFFFF
                    getattr(self.dut, f"vm_w__{row}__data").value = bits
            await self.edge()
        for row in range(rows):
            getattr(self.dut, f"vm_w__{row}__en").value = 0
        await self.edge()

    async def read_vm(self, start, size):
        """Read the same stretch of all rows."""
        rows = self.config.rows
        out = np.zeros((rows, size), dtype=np.int64)
        for cycle in range(size + 2):
            for row in range(rows):
                getattr(self.dut, f"vm_r__{row}__en").value = int(cycle < size)
                getattr(self.dut, f"vm_r__{row}__addr").value = (start + cycle) % (1 << 14)
                if cycle >= 2:
                    bits = self._port("vm_r", row, "data")
                    out[row, cycle - 2] = _signed(bits, 32)
            await self.edge()
        return out

    async def see(self, row, page, bits):
        """Write a word of visibility."""
        self.dut.visibility__en.value = 1
        self.dut.visibility__row.value = row
        self.dut.visibility__page.value = page
        self.dut.visibility__bits.value = bits
        await self.edge()
        self.dut.visibility__en.value = 0

    async def stream(self, kind, items, gaps=0.0):
        """Send per-row lists of payload dicts, hopped, with gaps that all rows share."""
        rows, codec = self.config.rows, self._codecs[kind]
        longest = max(len(row) for row in items)
        position, history = 0, [None] * rows
        while position < longest + rows:
            gap = self.rng.random() < gaps
            history = [None if gap else position] + history[:-1]
            for row in range(rows):
                index = history[row]
                on = index is not None and index < len(items[row])
                getattr(self.dut, f"{kind}__{row}__valid").value = int(on)
                bits = codec.pack(items[row][index]) if on else self.rng.getrandbits(codec.width)
                getattr(self.dut, f"{kind}__{row}__payload").value = bits
            position += not gap
            await self.edge()
        for row in range(rows):
            getattr(self.dut, f"{kind}__{row}__valid").value = 0
        await self.edge()

    async def run(self, instruction, words=(), i1=0, limit=20_000):
        """Issue one instruction; returns the cycles until the engine is idle again."""
        code = int.from_bytes(instruction.encode(), "little")
        self.issue.put({"code": code, "i0": 0, "i1": i1})
        self.words.extend(words)
        if instruction.wait:
            for _ in range(self.rng.randint(0, 40)):
                await self.edge()
            self.dut.mm_token.value = 1
            while not int(self.dut.mm_take.value):
                await self.edge()
            self.dut.mm_token.value = 0
        before = self.tokens
        return await self.until_idle(limit, self.tokens if not instruction.signal else before + 1)

    async def until_idle(self, limit, tokens):
        """Wait until idle with so many tokens given."""
        for cycle in range(limit):
            await self.edge()
            idle = int(self.dut.idle.value) and not self.issue.pending
            if idle and self.tokens >= tokens:
                await self.edge()
                return cycle
        raise AssertionError(f"not idle within {limit} cycles, {self.words.pending} words left")

    def compare(self, model):
        """Check every memory against the model's."""
        for name in ("act", "shift", "scale", "rope"):
            self._equal(name, getattr(self, name), getattr(model, name))
        for name, tail in self.tails.items():
            for part, got in tail.items():
                self._equal(f"{name} {part}", got, model.tails[name][part])

    @staticmethod
    def _equal(name, got, wanted):
        if not np.array_equal(got, wanted):
            at = tuple(int(i) for i in np.argwhere(got != wanted)[0])
            count = int((got != wanted).sum())
            raise AssertionError(
                f"{name}{list(at)} is {got[at]}, expected {wanted[at]}; {count} differ"
            )


def seeded(label: str) -> random.Random:
    """Randomness of a test."""
    return rng(label)
