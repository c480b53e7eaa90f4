"""What the vector unit must have written, from the golden arithmetic.

Instructions are applied to whole memories, so that a write which should not have happened shows
up as much as a missing one.
"""

import random

import numpy as np

from dfvg_hw.isa import Instruction, Op, QuantMode
from dfvg_hw.numerics import attention, ops

__all__ = ["VectorModel", "random_vector", "random_visibility", "words_of"]


def words_of(config, data):
    """Bytes as bus words, zero-padded."""
    size = config.bus_bytes
    data += bytes(-len(data) % size)
    return [int.from_bytes(data[i : i + size], "little") for i in range(0, len(data), size)]


def random_vector(rng, size):
    """ACT values with very different magnitudes from group to group, sometimes extreme."""
    out = np.empty(size, dtype=np.int64)
    style = rng.choice(["mixed", "mixed", "mixed", "zero", "equal", "extreme", "small"])
    for start in range(0, size, 64):
        bits = {"zero": 0, "extreme": 31, "small": 2}.get(style, rng.randint(0, 31))
        top = max((1 << bits) - 1, 0)
        group = [rng.randint(-top, top) for _ in range(64)]
        if style == "equal":
            group = [12345] * 64
        elif style == "extreme":
            group = [rng.choice([top, -top, 0, 1]) for _ in range(64)]
        elif rng.random() < 0.2:
            group = [0] * 64
        elif bits > 17 and rng.random() < 0.4:
            # Just at the edge where rounding up carries into the next power of two.
            group[rng.randrange(64)] = rng.choice([top, top - 1, (top + 1) >> 1])
        out[start : start + 64] = group
    return out


def random_visibility(rng, pages, own):
    """Bits per page; token `own` of the last page is always visible, some pages are dark."""
    kinds = [0, (1 << 64) - 1, rng.getrandbits(64), 1 << rng.randrange(64)]
    masks = [rng.choice(kinds) for _ in range(pages)]
    masks[-1] |= 1 << own
    return masks


class VectorModel:
    """Memories of all rows, and what each instruction does to them.

    Parameters
    ----------
    config : DeviceConfig
    valid : list of bool
        Rows that take part.
    seqs : list of int
        Each row's sequence.
    pages : list of int
        KV pages of each sequence.
    """

    def __init__(self, config, valid, seqs, pages):
        self.config, self.valid, self.seqs, self.pages = config, valid, seqs, pages
        rows = config.rows
        self.vm = np.zeros((rows, config.vm_depth), dtype=np.int64)
        self.act = np.zeros((rows, config.act_groups * 64), dtype=np.int64)
        self.shift = np.zeros((rows, config.act_groups), dtype=np.int64)
        self.scale = np.zeros((rows, 256, 2), dtype=np.int64)
        self.rope = np.zeros((rows, 128, 2), dtype=np.int64)
        self.tails = {
            name: {"q": np.zeros((rows, 1 << 16), dtype=np.int64), "s": np.zeros((rows, 256), int)}
            for name in ("k_tail", "v_tail")
        }
        self.scores = None

    @property
    def rows(self):
        """Numbers of the rows that take part."""
        return [row for row in range(self.config.rows) if self.valid[row]]

    def set_vm(self, start, values):
        """Put vectors (rows, n) into vector memory."""
        self.vm[:, start : start + values.shape[1]] = values

    def embed(self, instruction, q, codes):
        """EMBED; returns its words. `q` is (rows, K) int8, `codes` sf16."""
        size, words = 64 * instruction.groups, []
        for row in self.rows:
            words += words_of(self.config, q[row].astype(np.int8).tobytes())
            words += words_of(self.config, int(codes[row]).to_bytes(2, "little"))
            out = ops.embed(q[row : row + 1], codes[row : row + 1], instruction.sbase)
            self.vm[row, instruction.vm : instruction.vm + size] = out[0]
        return words

    def rope_table(self, instruction, table):
        """ROPE_TABLE; `table` is (rows, pairs, 2) int16."""
        words = []
        for row in self.rows:
            words += words_of(self.config, table[row].astype("<i2").tobytes())
            self.rope[row, : instruction.pairs] = table[row]
        return words

    def quant(self, instruction, gain=None, i1=0):
        """QUANT; returns the gain's words."""
        start = instruction.vm + i1 * instruction.vm1
        size = 64 * instruction.groups
        mode = QuantMode(instruction.mode)
        for row in self.rows:
            v = self.vm[row : row + 1, start : start + size]
            if mode in (QuantMode.HEAD_K, QuantMode.HEAD_V):
                tail = self.tails["k_tail" if mode == QuantMode.HEAD_K else "v_tail"]
                q, codes = ops.quantize_kv(v, 64 * instruction.head_groups)
                tail["q"][row, :size] = q[0]
                tail["s"][row, : codes.shape[1]] = codes[0]
                continue
            result = ops.quantize(
                v,
                scope_groups=None if mode == QuantMode.ROW else instruction.head_groups,
                gain=gain,
                gain_frac=instruction.gain_frac,
                eps_k=instruction.eps if instruction.rms else None,
            )
            at, scopes = instruction.act, result.scale.mantissa.shape[1]
            self.act[row, 64 * at : 64 * at + size] = result.q[0]
            self.shift[row, at : at + instruction.groups] = result.shift[0]
            index = slice(instruction.scale, instruction.scale + scopes)
            self.scale[row, index, 0] = result.scale.mantissa[0]
            self.scale[row, index, 1] = result.scale.exponent[0]
        return [] if gain is None else words_of(self.config, gain.astype("<i2").tobytes())

    def softmax(self, instruction, y, vs, masks):
        """SOFTMAX over logits y[row] (pages, gqa, 64), V scales vs[seq], masks[row] per page."""
        step = self.config.seq_pages
        for row in self.rows:
            pages = self.pages[self.seqs[row]]
            visible = np.array([[m >> t & 1 for t in range(64)] for m in masks[row]], dtype=bool)
            s = np.clip(attention.to_log2_frac8(y[row]), -((1 << 17) - 1), (1 << 17) - 1)
            log2 = attention.value_log2(vs[self.seqs[row]])
            for g in range(instruction.gqa):
                out = attention.softmax(s[:, g], log2, visible)
                at = instruction.act + g * step
                self.act[row, 64 * at : 64 * (at + pages)] = out.q.reshape(-1)
                self.shift[row, at : at + pages] = out.shift
                self.scale[row, instruction.scale + g] = (
                    int(out.scale.mantissa),
                    int(out.scale.exponent),
                )

    def head(self, y, want):
        """Children of logits y (rows, N), as the tree unit gets them."""
        wanted = [row for row in self.rows if want[row]]
        result = []
        for row in wanted:
            y8 = attention.to_log2_frac8(y[row : row + 1])
            lse = attention.log_sum_exp(y8)
            best = attention.top_k(y[row : row + 1], self.config.topk)[0]
            for rank, channel in enumerate(best):
                edge = attention.edge_log_prob(y8[:, channel], lse)
                result.append(
                    {
                        "row": row,
                        "rank": rank,
                        "channel": int(channel),
                        "logprob": int(edge[0]),
                        "last": int(row == wanted[-1] and rank == self.config.topk - 1),
                    }
                )
        return result


def random_quant(rng: random.Random, config, mode, groups, head_groups=1, **fields) -> Instruction:
    """A QUANT with random places for operand and result."""
    return Instruction(
        Op.QUANT,
        mode=int(mode),
        groups=groups,
        head_groups=head_groups,
        vm=64 * rng.randint(0, config.vm_depth // 64 - groups),
        act=rng.randint(0, config.act_groups - groups),
        scale=rng.randint(0, 200),
        **fields,
    )
