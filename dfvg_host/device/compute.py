"""The emulator's arithmetic: a draft's forward pass in device integers, to the last bit.

Golden operations come from `dfvg_hw.numerics`; this module adds the order in which a decoder uses
them, the paged KV cache with the device's own contents, and exact matrix products that are fast.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from dfvg_host.compile.compiler import integer_model, memory_map
from dfvg_host.compile.image import DraftImage
from dfvg_host.compile.program import build_program
from dfvg_host.device.virtual import PassCost
from dfvg_host.quantize.integer import IntegerMatrix, IntegerModel, Kind
from dfvg_host.quantize.scales import pv_requant, score_requant
from dfvg_host.timing.cycles import CycleModel
from dfvg_hw.config import PAGE, DeviceConfig
from dfvg_hw.isa import Instruction
from dfvg_hw.numerics import attention as at
from dfvg_hw.numerics import ops
from dfvg_hw.numerics.ops import Quantized
from dfvg_hw.tree import Row

from .matmul import matmul_exact

__all__ = ["Children", "IntegerCompute", "KvCache"]

IntArray = NDArray[np.int64]
Children = list[tuple[int, int]]
"""A row's best next tokens, best first: (token id, edge log-probability in 1/256 log2)."""


class KvCache:
    """K and V of all physical pages as in device memory: int8 elements and sf8 scales.

    Attributes
    ----------
    k : ndarray of int8, shape (pages, layers, kv_heads, 64, head_pad)
    v : ndarray of int8, shape (pages, layers, kv_heads, head_pad, 64)
    k_scale, v_scale : ndarray of uint8, shape (pages, layers, kv_heads, 64)
    """

    def __init__(self, model: IntegerModel, pages: int) -> None:
        d = model.dims
        lead = (pages, d.layers, d.kv_heads)
        self.k = np.zeros((*lead, PAGE, d.head_pad), np.int8)
        self.v = np.zeros((*lead, d.head_pad, PAGE), np.int8)
        self.k_scale = np.zeros((*lead, PAGE), np.uint8)
        self.v_scale = np.zeros((*lead, PAGE), np.uint8)


class IntegerCompute:
    """Runs passes of an `IntegerModel`.

    Parameters
    ----------
    model : IntegerModel
    config : DeviceConfig
        Gives page counts, children per row and the shift of PV.
    digest : str
        Digest of the image that the model came from.
    program : list of Instruction, optional
        What costs are computed from; by default the one that the compiler writes.
    """

    def __init__(
        self,
        model: IntegerModel,
        config: DeviceConfig,
        digest: str = "",
        program: list[Instruction] | None = None,
    ) -> None:
        self.model = model
        self.digest = digest
        self.config = config
        self.kv = KvCache(model, config.pool_pages)
        self.cycles = CycleModel(config, model.dims, program or _program(model, config))
        self._score = score_requant(model.dims.head_groups)
        self._pv = pv_requant(config.seq_pages)

    @classmethod
    def from_image(cls, image: DraftImage) -> IntegerCompute:
        """Compute with exactly the bytes of an image."""
        return cls(integer_model(image), image.config, image.digest, image.program)

    @property
    def vocabulary(self) -> int:
        """Token ids that can be run."""
        return self.model.dims.vocab

    @property
    def output_vocabulary(self) -> int:
        """Different tokens that can be proposed."""
        return self.model.dims.out_vocab

    def cost(self, rows: Sequence[Row], tables: Mapping[int, Sequence[int]]) -> PassCost:
        """Cost of a pass by the cycle model."""
        return self.cycles.cost(rows, tables)

    # ---- passes -------------------------------------------------------------------------------

    def forward(
        self, rows: Sequence[Row], tables: Mapping[int, Sequence[int]]
    ) -> dict[int, Children]:
        """Run one pass: write the rows' K and V, return the children of rows that want them.

        Parameters
        ----------
        rows : sequence of Row
            In-pass ancestors are seen through their slots, so order doesn't matter.
        tables : mapping of int to sequence of int
            Physical pages of each sequence, by page index.

        Returns
        -------
        dict of int to Children
            By row index.
        """
        x = self.hidden(rows, tables)
        wanted = [i for i, row in enumerate(rows) if row.want_children]
        if not wanted:
            return {}
        scale = ops.RowScale(x.scale.mantissa[wanted], x.scale.exponent[wanted])
        logits = self.logits(Quantized(x.q[wanted], x.shift[wanted], scale))
        found = self.children(logits)
        return {rows[i].index: children for i, children in zip(wanted, found, strict=True)}

    def hidden(self, rows: Sequence[Row], tables: Mapping[int, Sequence[int]]) -> Quantized:
        """Run the layers; the head's quantised operand of every row."""
        m = self.model
        position = np.array([row.position for row in rows])
        cos, sin = m.cos[position].astype(np.int64), m.sin[position].astype(np.int64)
        place = _Placement(rows, tables)
        token = np.array([row.token for row in rows])
        x = ops.embed(m.embedding[token].numpy(), m.embedding_code[token], m.embedding_sbase)
        xq = self._norm(x, m.layers[0].gain_in)
        for index, layer in enumerate(m.layers):
            k = ops.rope(self._linear(xq, Kind.K, layer.matrices[Kind.K]), cos, sin)
            v = self._linear(xq, Kind.V, layer.matrices[Kind.V])
            q = ops.rope(self._linear(xq, Kind.Q, layer.matrices[Kind.Q]), cos, sin)
            self._store(index, k, v, place)
            a = self._attend(index, q, place)
            out = self._linear(ops.quantize(a), Kind.OUT, layer.matrices[Kind.OUT])
            x = ops.sat32(x + out)
            xq = self._norm(x, layer.gain_post)
            h = ops.swiglu(self._linear(xq, Kind.GATE_UP, layer.matrices[Kind.GATE_UP]))
            down = self._linear(ops.quantize(h), Kind.DOWN, layer.matrices[Kind.DOWN])
            x = ops.sat32(x + down)
            last = index + 1 == len(m.layers)
            xq = self._norm(x, m.gain_final if last else m.layers[index + 1].gain_in)
        return xq

    def logits(self, x: Quantized) -> IntArray:
        """Logits of every head channel: ACT in log2 units, shape (rows, out_vocab)."""
        return self._linear(x, Kind.HEAD, self.model.head)

    def children(self, logits: IntArray) -> list[Children]:
        """Top-k and log-probabilities of each row of logits."""
        y8 = at.to_log2_frac8(logits)
        channels = at.top_k(logits, self.config.topk)
        best = np.take_along_axis(y8, channels, axis=1)
        edges = at.edge_log_prob(best, at.log_sum_exp(y8)[:, None])
        tokens = self.model.output_ids[channels]
        pairs = np.stack((tokens, edges), -1)
        return [[(int(token), int(edge)) for token, edge in row] for row in pairs]

    # ---- parts --------------------------------------------------------------------------------

    def _norm(self, x: IntArray, gain: NDArray[np.int16]) -> Quantized:
        return ops.quantize(x, gain=gain.astype(np.int64), eps_k=self.model.eps_k)

    def _linear(self, x: Quantized, kind: Kind, matrix: IntegerMatrix) -> IntArray:
        acc = matmul_exact(x, matrix.weight)
        mantissa, exponent = ops.decode_sf16(matrix.code)
        shifts = self.model.requant[kind]
        scale = x.scale
        return ops.requant(
            acc, scale.mantissa, scale.exponent, mantissa, exponent, shifts.pre, shifts.sbase
        )

    def _attend(self, layer: int, y: IntArray, place: _Placement) -> IntArray:
        """Attention outputs of all heads, shape (rows, q_size), in units of PV."""
        q = ops.quantize(y, scope_groups=self.model.dims.head_groups)
        out = np.empty_like(y)
        for rows, table, visible in place.sequences:
            out[rows] = self._attend_sequence(layer, q, rows, table, visible)
        return out

    def _store(self, layer: int, k: IntArray, v: IntArray, place: _Placement) -> None:
        d = self.model.dims
        page, offset = place.page, place.offset
        elements, code = ops.quantize_kv(k, d.head_pad)
        self.kv.k[page, layer, :, offset] = elements.reshape(-1, d.kv_heads, d.head_pad)
        self.kv.k_scale[page, layer, :, offset] = code
        elements, code = ops.quantize_kv(v, d.head_pad)
        self.kv.v[page, layer, :, :, offset] = elements.reshape(-1, d.kv_heads, d.head_pad)
        self.kv.v_scale[page, layer, :, offset] = code

    def _attend_sequence(
        self, layer: int, q: Quantized, rows: IntArray, table: IntArray, visible: NDArray[np.bool_]
    ) -> IntArray:
        """Attention of the rows of one sequence; float64 products of integers below 2**53."""
        d = self.model.dims
        n, pages = len(rows), len(table)
        heads = (n, d.kv_heads, d.gqa)
        shifted = q.q[rows].reshape(*heads, d.head_groups, -1) << q.shift[rows].reshape(
            *heads, d.head_groups, 1
        )
        left = shifted.reshape(*heads, d.head_pad).transpose(1, 0, 2, 3).astype(np.float64)
        k = self.kv.k[table, layer].transpose(1, 0, 2, 3).reshape(d.kv_heads, pages * PAGE, -1)
        acc = left.reshape(d.kv_heads, -1, d.head_pad) @ k.transpose(0, 2, 1).astype(np.float64)
        acc = acc.astype(np.int64).reshape(d.kv_heads, n, d.gqa, pages, PAGE)
        scale = [
            part[rows].reshape(heads).transpose(1, 0, 2)[..., None, None]
            for part in (q.scale.mantissa, q.scale.exponent)
        ]
        ks = self.kv.k_scale[table, layer].transpose(1, 0, 2)[:, None, None]
        lv = at.value_log2(self.kv.v_scale[table, layer].transpose(1, 0, 2)[:, None, None])
        s = at.scores(acc, scale[0], scale[1], ks, self._score.pre, self._score.sbase)
        p = at.softmax(s, lv, visible[None, :, None])
        weights = (p.q << p.shift[..., None]).reshape(d.kv_heads, n * d.gqa, pages * PAGE)
        v = self.kv.v[table, layer].transpose(1, 0, 3, 2).reshape(d.kv_heads, pages * PAGE, -1)
        acc = (weights.astype(np.float64) @ v.astype(np.float64)).astype(np.int64)
        acc = acc.reshape(d.kv_heads, n, d.gqa, d.head_pad)
        y = ops.requant(
            acc,
            p.scale.mantissa[..., None],
            p.scale.exponent[..., None],
            2048,
            0,
            self._pv.pre,
            self._pv.sbase,
        )
        return y.transpose(1, 0, 2, 3).reshape(n, d.q_size)


class _Placement:
    """Slots and visibility of a pass's rows as arrays."""

    def __init__(self, rows: Sequence[Row], tables: Mapping[int, Sequence[int]]) -> None:
        self.page = np.array([row.phys for row in rows])
        self.offset = np.array([row.offset for row in rows])
        self.sequences: list[tuple[IntArray, IntArray, NDArray[np.bool_]]] = []
        for sequence in sorted({row.seq for row in rows}):
            index = [i for i, row in enumerate(rows) if row.seq == sequence]
            table = np.array(tables[sequence])
            maps = np.zeros((len(index), len(table)), np.uint64)
            for j, i in enumerate(index):
                maps[j, : len(rows[i].visible)] = np.array(rows[i].visible, np.uint64)
            bits = (maps[..., None] >> np.arange(PAGE, dtype=np.uint64)) & np.uint64(1)
            self.sequences.append((np.array(index), table, bits.astype(bool)))


def _program(model: IntegerModel, config: DeviceConfig) -> list[Instruction]:
    layout = memory_map(model.dims, config)
    return build_program(layout, model.requant, model.eps_k, model.embedding_sbase)
