"""Golden model of the matrix engine and a generator of random instructions for it.

Results come from `dfvg_hw.numerics`; this file knows only the orders of words and results.
"""

from dataclasses import dataclass, field

import numpy as np

from dfvg_hw.config import GROUP, PAGE
from dfvg_hw.isa import Dest, Instruction, KvKind, Op, OutOp
from dfvg_hw.numerics import ops

LINEAR = (OutOp.STORE, OutOp.ADD, OutOp.ROPE, OutOp.SWIGLU, OutOp.TOPK)
PORTS = ("vm", "scores", "logits")


@dataclass
class Step:
    """An instruction with the words it consumes and the results it must give, per port and row."""

    instruction: Instruction
    i0: int
    i1: int
    words: list
    results: dict
    kv: list = field(default_factory=list)

    @property
    def issue(self):
        code = int.from_bytes(self.instruction.encode(), "little")
        return {"code": code, "i0": self.i0, "i1": self.i1}


@dataclass
class Sequence:
    """Rows (bit mask) and pages of a sequence in a pass."""

    rows: int
    pages: int


def pack_words(config, *arrays):
    """Byte arrays, one after the other, as integers of one word each."""
    data = b"".join(np.ascontiguousarray(a).tobytes() for a in arrays)
    size = config.bus_bytes
    assert len(data) % size == 0
    return [int.from_bytes(data[i : i + size], "little") for i in range(0, len(data), size)]


class ArrayModel:
    """Operands, scales, tables and vector memories of all rows."""

    def __init__(self, config, rng, head_groups=1):
        self.config, self.rng, self.head_groups = config, rng, head_groups
        self.sequences = [Sequence(0, 0) for _ in range(config.max_seqs)]
        rows = config.rows
        self.vm = np.zeros((rows, config.vm_depth), dtype=np.int64)
        self.randomize()
        self.cos, self.sin = (self.int16((rows, GROUP * head_groups // 2)) for _ in range(2))

    def np_rng(self):
        return np.random.default_rng(self.rng.getrandbits(64))

    def int16(self, shape):
        values = self.np_rng().integers(-32768, 32768, shape)
        return np.where(self.np_rng().random(shape) < 0.1, -32768, values)

    def bytes127(self, shape):
        """int8 operands: random, sparse, or all of the largest magnitude."""
        g, style = self.np_rng(), self.rng.choice(["random", "random", "sparse", "extreme"])
        values = g.integers(-127, 128, shape)
        if style == "sparse":
            values = np.where(g.random(shape) < 0.8, 0, values)
        if style == "extreme":
            values = np.where(g.random(shape) < 0.98, 127, -127)
        return values.astype(np.int64)

    def randomize(self):
        """New operands, shifts and scales in every row."""
        config, g = self.config, self.np_rng()
        rows = config.rows
        self.act = self.bytes127((rows, config.act_groups, GROUP))
        self.shift = g.integers(0, 16, (rows, config.act_groups))
        self.mant = g.integers(1 << 15, 1 << 16, (rows, 256))
        self.mant[g.random((rows, 256)) < 0.1] = 65535
        self.exp = g.integers(-12, 12, (rows, 256))
        wild = g.random((rows, 256)) < 0.05
        self.exp[wild] = g.choice([-128, 127], wild.sum())

    def scale(self, out):
        """Shifts that keep most results between zero and saturation."""
        pre = self.rng.choice([0, 3, 8, 15, 31])
        sbase = self.rng.choice([-20, 0, 20 - pre, 30 - pre, 40, 127])
        return {"pre": pre, "sbase": max(-128, sbase)}

    def _requant(self, acc, scale, mantissa, exponent, shifts):
        return ops.requant(
            acc,
            self.mant[:, scale, None],
            self.exp[:, scale, None],
            mantissa,
            exponent,
            shifts["pre"],
            shifts["sbase"],
        )

    def _results(self, port, rows, values):
        """Results of one port: `values[row]` for the rows in the mask, none elsewhere."""
        empty = [[] for _ in range(self.config.rows)]
        results = {name: [list(e) for e in empty] for name in PORTS}
        for row in range(self.config.rows):
            if rows >> row & 1:
                results[port][row] = values[row]
        return results

    def linear(self, out, blocks, groups, act, scale, vm, sync=(0, 0), strides=(0, 0, 0), i1=0):
        """A linear layer of `blocks` scale blocks with random weights."""
        config = self.config
        wait, signal = sync
        per_block = config.bus_bytes // 2
        n, k = blocks * per_block, groups * GROUP
        weights = self.bytes127((n, k))
        codes = self.np_rng().integers(0, 1 << 16, n)
        codes = np.where(self.np_rng().random(n) < 0.5, codes & 0x07FF | 0x1800, codes)
        shifts = self.scale(out)
        at = act + i1 * strides[0]
        q = self.act[:, at : at + groups].reshape(config.rows, k)
        acc = ops.dot_groups(weights, q, self.shift[:, at : at + groups])
        mantissa, exponent = ops.decode_sf16(codes)
        y = self._requant(acc, scale + i1 * strides[1], mantissa, exponent, shifts)
        words = []
        for block in range(blocks):
            part = slice(block * per_block, (block + 1) * per_block)
            scales, matrix = codes[part].astype("<u2"), weights[part].astype(np.int8)
            words += pack_words(config, scales, matrix)
        instruction = Instruction(
            Op.MM, wait=wait, signal=signal, out=out, blocks=blocks, groups=groups, act=act,
            act1=strides[0], scale=scale, scale1=strides[1], vm=vm, vm1=strides[2], **shifts,
        )  # fmt: skip
        results = self._apply(out, y, vm + i1 * strides[2])
        return Step(instruction, self.rng.randrange(1 << 16), i1, words, results)

    def _apply(self, out, y, vm):
        everyone = (1 << self.config.rows) - 1
        if out == OutOp.TOPK:
            last = y.shape[1] - 1
            logits = [
                [
                    {"y": int(v), "channel": c, "first": int(c == 0), "last": int(c == last)}
                    for c, v in enumerate(row)
                ]
                for row in y
            ]
            return self._results("logits", everyone, logits)
        if out == OutOp.ROPE:
            y = ops.rope(y, self.cos, self.sin)
        elif out == OutOp.SWIGLU:
            y = ops.swiglu(y)
        elif out == OutOp.ADD:
            y = ops.sat32(self.vm[:, vm : vm + y.shape[1]] + y)
        return self._results("vm", everyone, self._store(y, vm))

    def _store(self, y, vm):
        self.vm[:, vm : vm + y.shape[1]] = y
        return [[(vm + i, int(v)) for i, v in enumerate(row)] for row in y]

    def _paged(self, out, gqa, act, scale, vm, shifts, sync, i0, i1):
        kind = KvKind.K if out == OutOp.SCORE else KvKind.V
        instruction = Instruction(
            Op.MM, wait=sync[0], signal=sync[1], out=out, groups=self.head_groups, act=act,
            scale=scale, gqa=gqa, vm=vm, **shifts,
        )  # fmt: skip
        results = self._results("vm", 0, [])
        kv = [{"kind": int(kind), "layer": i0, "head": i1}]
        return Step(instruction, i0, i1, [], results, kv)

    def score(self, gqa, act, scale, sync=(0, 0), i0=0, i1=0):
        """Queries against random K pages of all sequences."""
        config, hg, g = self.config, self.head_groups, self.np_rng()
        shifts = self.scale(OutOp.SCORE)
        step = self._paged(OutOp.SCORE, gqa, act, scale, 0, shifts, sync, i0, i1)
        for sequence in self.sequences:
            for page in range(sequence.pages):
                k_codes, v_codes = g.integers(0, 256, (2, PAGE))
                keys = self.bytes127((PAGE, hg * GROUP))
                step.words += pack_words(
                    config, k_codes.astype("u1"), v_codes.astype("u1"), keys.astype(np.int8)
                )
                m8, e8 = ops.decode_sf8(k_codes)
                for head in range(gqa):
                    at = act + head * hg
                    q = self.act[:, at : at + hg].reshape(config.rows, -1)
                    acc = ops.dot_groups(keys, q, self.shift[:, at : at + hg])
                    y = self._requant(acc, scale + head, m8 << 8, e8, shifts)
                    done = page == sequence.pages - 1 and head == gqa - 1
                    self._page_scores(step, sequence.rows, y, head, page, v_codes, done)
        return step

    def _page_scores(self, step, rows, y, head, page, v_codes, done):
        for row in range(self.config.rows):
            if rows >> row & 1:
                step.results["scores"][row] += [
                    {
                        "y": int(y[row, t]), "g": head, "page": page, "token": t,
                        "vs": int(v_codes[t]), "last": int(t == PAGE - 1),
                        "done": int(done and t == PAGE - 1),
                    }
                    for t in range(PAGE)
                ]  # fmt: skip

    def pv(self, gqa, act, scale, vm, sync=(0, 0), i0=0, i1=0):
        """Probabilities (operands as they are) against random V pages of all sequences."""
        config, dims = self.config, self.head_groups * GROUP
        shifts = self.scale(OutOp.PV)
        step = self._paged(OutOp.PV, gqa, act, scale, vm, shifts, sync, i0, i1)
        for sequence in self.sequences:
            pages = [self.bytes127((dims, PAGE)) for _ in range(sequence.pages)]
            step.words += pack_words(config, *(p.astype(np.int8) for p in pages))
            for head in range(gqa if pages else 0):
                at = act + head * config.seq_pages
                acc = sum(
                    ops.dot_groups(v, self.act[:, at + p], self.shift[:, at + p : at + p + 1])
                    for p, v in enumerate(pages)
                )
                y = self._requant(acc, scale + head, 2048, 0, shifts)
                first = vm + head * dims
                for row in range(config.rows):
                    if sequence.rows >> row & 1:
                        self.vm[row, first : first + dims] = y[row]
                        step.results["vm"][row] += [
                            (first + d, int(v)) for d, v in enumerate(y[row])
                        ]
        return step

    def sync(self, wait, signal):
        """SYNC for the matrix engine."""
        instruction = Instruction(Op.SYNC, wait=wait, signal=signal, dest=Dest.MM)
        return Step(instruction, 0, 0, [], self._results("vm", 0, []))

    def random_sequences(self):
        """Give every row to some sequence; sequences without rows have no pages."""
        config, rng = self.config, self.rng
        owner = [rng.randrange(config.max_seqs) for _ in range(config.rows)]
        for index in range(config.max_seqs):
            rows = sum(1 << row for row, seq in enumerate(owner) if seq == index)
            self.sequences[index] = Sequence(rows, rng.randint(1, 3) if rows else 0)

    def random_step(self, sync=(0, 0), out=None):
        """Any instruction that the config has room for."""
        config, rng, hg = self.config, self.rng, self.head_groups
        out = rng.choice(list(OutOp)) if out is None else out
        i0, i1 = rng.randrange(1 << 16), rng.randrange(6)
        if out in (OutOp.SCORE, OutOp.PV):
            limit = min(3, config.acc_depth // (hg * GROUP), config.vm_depth // (hg * GROUP))
            gqa = rng.randint(1, limit)
            scale = rng.randrange(200)
            if out == OutOp.SCORE:
                act = rng.randint(0, config.act_groups - gqa * hg)
                return self.score(gqa, act, scale, sync, i0, i1)
            act = rng.randint(0, config.act_groups - gqa * config.seq_pages)
            vm = rng.randrange(config.vm_depth // GROUP - gqa * hg + 1) * GROUP
            return self.pv(gqa, act, scale, vm, sync, i0, i1)
        groups = rng.choice([1, 1, 2, 3, 7])
        channels = config.bus_bytes // 2
        step = hg * GROUP // channels if out == OutOp.ROPE else 1
        most = min(config.vm_depth // 3, 200) // channels // step
        blocks = rng.randint(1, max(1, most)) * step
        strides = (rng.randrange(2), rng.randrange(4), rng.randrange(3) * 2)
        act = rng.randint(0, config.act_groups - groups - i1 * strides[0])
        vm = rng.randrange((config.vm_depth - blocks * channels - 16) // GROUP + 1) * GROUP
        return self.linear(out, blocks, groups, act, rng.randrange(200), vm, sync, strides, i1)
