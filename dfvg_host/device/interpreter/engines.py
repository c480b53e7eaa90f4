"""The two compute engines of the interpreter, at the level of whole instructions."""

from __future__ import annotations

from collections.abc import Generator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dfvg_hw.config import GROUP, PAGE
from dfvg_hw.errors import ImageError
from dfvg_hw.isa import Dest, Instruction, Op, OutOp, QuantMode
from dfvg_hw.numerics import attention as at
from dfvg_hw.numerics import ops

from .state import TAIL_BYTES, PassState

__all__ = ["MmEngine", "VecEngine"]

Bytes = NDArray[np.uint8]
IntArray = NDArray[np.int64]
Results = dict[str, IntArray]


class _Port(Protocol):
    def take(self, size: int) -> Generator[None, None, Bytes]: ...


class MmEngine:
    """The systolic array and its output lanes."""

    def __init__(self, state: PassState, port: _Port) -> None:
        self.state, self.port = state, port

    def owns(self, instruction: Instruction) -> bool:
        """Whether this engine executes the instruction."""
        op = instruction.op
        return op is Op.MM or (op is Op.SYNC and instruction.dest == Dest.MM)

    def execute(self, mm: Instruction, i0: int, i1: int) -> Generator[None, None, Results]:
        """Run one instruction."""
        out = OutOp(mm.out)
        if out is OutOp.SCORE:
            return (yield from self._score(mm, i0, i1))
        if out is OutOp.PV:
            return (yield from self._pv(mm, i0, i1))
        y = yield from self._linear(mm, i1)
        if out is OutOp.TOPK:
            self._top_k(y)
            return {"y": y}
        s, at_vm = self.state, mm.vm + i1 * mm.vm1
        if out is OutOp.ROPE:
            y = ops.rope(y, s.cos, s.sin)
        elif out is OutOp.SWIGLU:
            y = ops.swiglu(y)
        elif out is OutOp.ADD:
            y = ops.sat32(y + s.vm[:, at_vm : at_vm + y.shape[1]])
        s.vm[:, at_vm : at_vm + y.shape[1]] = y
        return {"vm": y}

    def _linear(self, mm: Instruction, i1: int) -> Generator[None, None, IntArray]:
        """Stream a matrix: per block a scale word, then bus/2 channels."""
        s, bus, k = self.state, self.state.config.bus_bytes, mm.groups * GROUP
        per = bus // 2
        data = yield from self.port.take(mm.blocks * (bus + per * k))
        blocks = data.reshape(mm.blocks, bus + per * k)
        code = np.ascontiguousarray(blocks[:, :bus]).view("<u2").reshape(-1)
        weight = np.ascontiguousarray(blocks[:, bus:]).view(np.int8).reshape(-1, k)
        first = mm.act + i1 * mm.act1
        groups = slice(first, first + mm.groups)
        acc = ops.dot_groups(weight, s.act[:, groups].reshape(-1, k), s.shift[:, groups])
        mantissa, exponent = ops.decode_sf16(code)
        scale = mm.scale + i1 * mm.scale1
        return ops.requant(
            acc,
            s.mantissa[:, scale, None],
            s.exponent[:, scale, None],
            mantissa,
            exponent,
            mm.pre,
            mm.sbase,
        )

    def _top_k(self, y: IntArray) -> None:
        s = self.state
        for i, row in enumerate(s.rows):
            if not row.want_children:
                continue
            y8 = at.to_log2_frac8(y[i : i + 1])
            channels = at.top_k(y[i : i + 1], s.config.topk)[0]
            edges = at.edge_log_prob(y8[0, channels], at.log_sum_exp(y8)[0])
            tokens = s.output_ids[channels]
            s.children[row.index] = list(zip(tokens.tolist(), edges.tolist(), strict=True))

    def _pages(
        self, size: int, layer: int, head: int
    ) -> Generator[None, None, list[tuple[int, int, int, Bytes]]]:
        """All pages of an attention instruction: (sequence, page, block address, bytes)."""
        pages = []
        for sequence in self.state.sequences:
            for page, physical in enumerate(self.state.tables[sequence]):
                data = yield from self.port.take(size)
                block = self.state.kv_block(physical, layer, head)
                pages.append((sequence, page, block, data.copy()))
        return pages

    def _score(self, mm: Instruction, layer: int, head: int) -> Generator[None, None, Results]:
        s, hd = self.state, self.state.head_pad
        pages = yield from self._pages(TAIL_BYTES + PAGE * hd, layer, head)
        scores: dict[int, list[IntArray]] = {i: [] for i in range(len(s.rows))}
        logs: dict[int, list[IntArray]] = {i: [] for i in range(len(s.rows))}
        for sequence, page, block, data in pages:
            self._merge_k(sequence, page, block, head, data)
            k_code, v_code = data[:PAGE], data[PAGE:TAIL_BYTES]
            k = data[TAIL_BYTES:].view(np.int8).reshape(PAGE, hd)
            for i, row in enumerate(s.rows):
                if row.seq == sequence:
                    scores[i].append(self._page_scores(mm, i, head, k, k_code))
                    logs[i].append(np.tile(at.value_log2(v_code), (mm.gqa, 1)))
        for i in range(len(s.rows)):
            s.scores[i], s.value_logs[i] = np.stack(scores[i]), np.stack(logs[i])
        return {f"score{i}": s.scores[i] for i in range(len(s.rows))}

    def _page_scores(
        self, mm: Instruction, row: int, head: int, k: NDArray[np.int8], k_code: Bytes
    ) -> IntArray:
        """Scores of one row on one page, shape (gqa, 64)."""
        s, out = self.state, []
        for g in range(mm.gqa):
            first = mm.act + head * mm.act1 + g * mm.groups
            groups = slice(first, first + mm.groups)
            acc = ops.dot_groups(k, s.act[row, groups].reshape(1, -1), s.shift[row, groups][None])[
                0
            ]
            scale = mm.scale + head * mm.scale1 + g
            out.append(
                at.scores(
                    acc,
                    s.mantissa[row, scale],
                    s.exponent[row, scale],
                    k_code,
                    mm.pre,
                    mm.sbase,
                )
            )
        return np.stack(out)

    def _merge_k(self, sequence: int, page: int, block: int, head: int, data: Bytes) -> None:
        """Put the pass's own K, K scales and V scales into a page and write them back."""
        s, hd = self.state, self.state.head_pad
        for i in s.page_rows(sequence, page):
            offset = s.rows[i].offset
            data[offset] = s.tail_scale["k"][i, head]
            data[PAGE + offset] = s.tail_scale["v"][i, head]
            start = TAIL_BYTES + offset * hd
            data[start : start + hd] = s.tail["k"][i, head].astype(np.int8).view(np.uint8)
            s.written[block + start : block + start + hd] = data[start : start + hd]
            s.written[block : block + TAIL_BYTES] = data[:TAIL_BYTES]

    def _pv(self, mm: Instruction, layer: int, head: int) -> Generator[None, None, Results]:
        s, hd = self.state, self.state.head_pad
        pages = yield from self._pages(PAGE * hd, layer, head)
        acc = np.zeros((len(s.rows), mm.gqa, hd), np.int64)
        for sequence, page, block, data in pages:
            v = data.view(np.int8).reshape(hd, PAGE)
            own = s.page_rows(sequence, page)
            for i in own:
                v[:, s.rows[i].offset] = s.tail["v"][i, head]
            if own:
                start = block + s.kv_v()
                s.written[start : start + PAGE * hd] = data
            for i, row in enumerate(s.rows):
                if row.seq != sequence:
                    continue
                for g in range(mm.gqa):
                    group = mm.act + head * mm.act1 + g * s.config.seq_pages + page
                    acc[i, g] += (v.astype(np.int64) @ s.act[i, group]) << s.shift[i, group]
        first = mm.scale + head * mm.scale1
        scales = slice(first, first + mm.gqa)
        y = ops.requant(
            acc, s.mantissa[:, scales, None], s.exponent[:, scales, None], 2048, 0, mm.pre, mm.sbase
        ).reshape(len(s.rows), -1)
        start = mm.vm + head * mm.vm1
        s.vm[:, start : start + y.shape[1]] = y
        return {"vm": y}


class VecEngine:
    """The vector unit."""

    def __init__(self, state: PassState, port: _Port) -> None:
        self.state, self.port = state, port

    def owns(self, instruction: Instruction) -> bool:
        """Whether this engine executes the instruction."""
        op = instruction.op
        if op is Op.SYNC:
            return bool(instruction.dest == Dest.VEC)
        return op in (Op.EMBED, Op.ROPE_TABLE, Op.QUANT, Op.SOFTMAX)

    def execute(self, v: Instruction, i0: int, i1: int) -> Generator[None, None, Results]:
        """Run one instruction."""
        if v.op is Op.EMBED:
            return (yield from self._embed(v))
        if v.op is Op.ROPE_TABLE:
            return (yield from self._rope_table(v))
        if v.op is Op.QUANT:
            return (yield from self._quant(v, i1))
        return self._softmax(v)

    def _embed(self, v: Instruction) -> Generator[None, None, Results]:
        s, k = self.state, v.groups * GROUP
        for i in range(len(s.rows)):
            data = yield from self.port.take(k + s.config.bus_bytes)
            q, code = data[:k].copy().view(np.int8), data[k : k + 2].copy().view("<u2")
            s.vm[i, v.vm : v.vm + k] = ops.embed(q[None], code, v.sbase)[0]
        return {"vm": s.vm[:, v.vm : v.vm + k].copy()}

    def _rope_table(self, v: Instruction) -> Generator[None, None, Results]:
        s = self.state
        for i in range(len(s.rows)):
            data = yield from self.port.take(4 * v.pairs)
            pairs = data.copy().view("<i2").reshape(-1, 2)
            s.cos[i], s.sin[i] = pairs[:, 0], pairs[:, 1]
        return {"cos": s.cos.copy(), "sin": s.sin.copy()}

    def _quant(self, v: Instruction, i1: int) -> Generator[None, None, Results]:
        s, k = self.state, v.groups * GROUP
        start = v.vm + i1 * v.vm1
        x, mode = s.vm[:, start : start + k], QuantMode(v.mode)
        gain = None
        if v.gain:
            data = yield from self.port.take(2 * k)
            gain = data.copy().view("<i2").astype(np.int64)
        if mode in (QuantMode.HEAD_K, QuantMode.HEAD_V):
            kind = "k" if mode is QuantMode.HEAD_K else "v"
            q, code = ops.quantize_kv(x, v.head_groups * GROUP)
            s.tail[kind][:] = q.reshape(s.tail[kind].shape)
            s.tail_scale[kind][:] = code
            return {"q": q, "scale": code}
        scope = v.head_groups if mode is QuantMode.HEAD_Q else None
        out = ops.quantize(x, scope, gain, v.gain_frac, v.eps if v.rms else None)
        s.act[:, v.act : v.act + v.groups] = out.q.reshape(len(x), v.groups, GROUP)
        s.shift[:, v.act : v.act + v.groups] = out.shift
        count = out.scale.mantissa.shape[1]
        s.mantissa[:, v.scale : v.scale + count] = out.scale.mantissa
        s.exponent[:, v.scale : v.scale + count] = out.scale.exponent
        return {
            "q": out.q,
            "shift": out.shift,
            "mantissa": out.scale.mantissa,
            "exponent": out.scale.exponent,
        }

    def _softmax(self, v: Instruction) -> Results:
        s, results = self.state, {}
        for i in range(len(s.rows)):
            if not s.scores[i].size:
                raise ImageError("SOFTMAX runs before the scores it needs: a token is missing")
            scores = s.scores[i].transpose(1, 0, 2)
            logs = s.value_logs[i].transpose(1, 0, 2)
            s.scores[i] = s.scores[i][:0]  # consumed: the next head must bring its own
            p = at.softmax(scores, logs, s.visible(i)[None])
            for g in range(v.gqa):
                first = v.act + g * s.config.seq_pages
                groups = slice(first, first + scores.shape[1])
                s.act[i, groups], s.shift[i, groups] = p.q[g], p.shift[g]
            s.mantissa[i, v.scale : v.scale + v.gqa] = p.scale.mantissa
            s.exponent[i, v.scale : v.scale + v.gqa] = p.scale.exponent
            results[f"q{i}"], results[f"shift{i}"] = p.q, p.shift
            results[f"mantissa{i}"], results[f"exponent{i}"] = p.scale.mantissa, p.scale.exponent
        return results
