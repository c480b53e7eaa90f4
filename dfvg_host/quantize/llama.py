"""Quantise a LLaMA-architecture model, layer by layer, into an `IntegerModel`.

All real factors that hardware leaves out are folded into column scales here (docs/numerics.md,
"What the compiler folds").
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from dfvg_hw.errors import ModelError
from dfvg_hw.numerics import formats as fm

from .integer import IntegerLayer, IntegerMatrix, IntegerModel, Kind, ModelDims
from .scales import ATTENTION_OUT_SCALE, QUERY_SCALE, encode_sf16, requant_for

__all__ = ["FloatLayer", "FloatModel", "quantize_model"]

_MATMUL = 2.0**-fm.GROUP_SHIFT_MAX / fm.Q_MAX  # of the activation: shift and int8 range
_RMS = 2.0**fm.ACT_FRAC  # ACT of a normalised vector; sqrt(hidden) comes on top


@dataclass
class FloatLayer:
    """Weights of one decoder layer as stored by transformers: matrices (out, in)."""

    norm_in: torch.Tensor
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    o: torch.Tensor
    norm_post: torch.Tensor
    gate: torch.Tensor
    up: torch.Tensor
    down: torch.Tensor


@dataclass
class FloatModel:
    """What quantisation needs to know of a model; layers are read one at a time.

    Attributes
    ----------
    dims : ModelDims
    eps : float
        Epsilon of the RMS norms.
    layer : callable
        Index to `FloatLayer`.
    norm_final, head, embedding : torch.Tensor
    rotary : callable
        Number of positions to (cos, sin), float tensors of shape (positions, head_dim / 2).
    output_ids : torch.Tensor, shape (out_vocab,)
    """

    dims: ModelDims
    eps: float
    layer: Callable[[int], FloatLayer]
    norm_final: torch.Tensor
    head: torch.Tensor
    embedding: torch.Tensor
    rotary: Callable[[int], tuple[torch.Tensor, torch.Tensor]]
    output_ids: torch.Tensor


@dataclass
class _Pending:
    """A quantised matrix whose codes wait for the shifts that all layers share."""

    weight: torch.Tensor
    factor: NDArray[np.float64]


def _quantize_rows(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """int8 rows in -127..127 and their scales; a row of zeros gets scale 0."""
    peak = weight.abs().amax(1)
    scale = peak / fm.Q_MAX
    safe = torch.where(scale > 0, scale, torch.ones_like(scale))
    return (weight / safe[:, None]).round().clamp(-fm.Q_MAX, fm.Q_MAX).to(torch.int8), scale


def _place(rows: torch.Tensor, n: int, k: int) -> torch.Tensor:
    """Zero-pad a matrix to (n, k)."""
    if rows.shape == (n, k):
        return rows
    out = rows.new_zeros(n, k)
    out[: rows.shape[0], : rows.shape[1]] = rows
    return out


def _pad_heads(rows: torch.Tensor, heads: int, head_pad: int) -> torch.Tensor:
    """Pad each head of (heads * head_dim, columns) to `head_pad` rows."""
    split = rows.reshape(heads, -1, *rows.shape[1:])
    out = split.new_zeros(heads, head_pad, *rows.shape[1:])
    out[:, : split.shape[1]] = split
    return out.reshape(heads * head_pad, *rows.shape[1:])


def _interleave(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Rows a0, b0, a1, b1, ..."""
    return torch.stack((a, b), 1).reshape(2 * a.shape[0], *a.shape[1:])


def _rotary_order(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """Reorder each head so that rotary partners i and i + head_dim/2 are adjacent."""
    halves = rows.reshape(heads, 2, -1, *rows.shape[1:])
    return halves.transpose(1, 2).reshape(rows.shape)


def _gain(norm: torch.Tensor, size: int) -> tuple[NDArray[np.int16], float]:
    """int16 gain with its peak in [1, 2) and the power of two that was taken out."""
    values = norm.double()
    peak = float(values.abs().max())
    if not math.isfinite(peak):
        raise ModelError(
            "a norm of the draft holds values that are not finite: its weights are damaged"
        )
    factor = 2.0 ** math.floor(math.log2(peak)) if peak > 0 else 1.0
    scaled = (values / factor * (1 << fm.GAIN_FRAC)).round().clamp(-32767, 32767)
    out = np.zeros(size, np.int16)
    out[: len(values)] = scaled.numpy().astype(np.int16)
    return out, factor


@dataclass
class _Builder:
    dims: ModelDims
    pending: dict[Kind, list[_Pending]] = field(default_factory=dict)

    def add(self, kind: Kind, weight: torch.Tensor, factor: float) -> None:
        """Quantise a padded float matrix; `factor` multiplies its column scales."""
        n, k = self.dims.shape(kind)
        int8, scale = _quantize_rows(_place(weight.float(), n, k))
        real = scale.double().numpy() * factor * _MATMUL
        self.pending.setdefault(kind, []).append(_Pending(int8, real))

    def add_layer(self, layer: FloatLayer) -> tuple[NDArray[np.int16], NDArray[np.int16]]:
        """Quantise one layer and return its two gains."""
        d = self.dims
        rms = _RMS * math.sqrt(d.hidden)
        gain_in, fold_in = _gain(layer.norm_in, d.hidden_pad)
        gain_post, fold_post = _gain(layer.norm_post, d.hidden_pad)
        k = _pad_heads(_rotary_order(layer.k, d.kv_heads), d.kv_heads, d.head_pad)
        self.add(Kind.K, k, rms * fold_in)
        self.add(Kind.V, _pad_heads(layer.v, d.kv_heads, d.head_pad), rms * fold_in)
        q = _pad_heads(_rotary_order(layer.q, d.heads), d.heads, d.head_pad)
        # Scores come out in log2 units without a multiplication in hardware.
        query = QUERY_SCALE * math.log2(math.e) / math.sqrt(d.head_dim)
        self.add(Kind.Q, q, rms * fold_in * query)
        out = _pad_heads(layer.o.t().contiguous(), d.heads, d.head_pad).t()
        self.add(Kind.OUT, out, 1 / ATTENTION_OUT_SCALE)
        gate, up = (_place(w, d.ffn_pad, w.shape[1]) for w in (layer.gate, layer.up))
        self.add(Kind.GATE_UP, _interleave(gate, up), rms * fold_post)
        self.add(Kind.DOWN, layer.down, 1.0)
        return gain_in, gain_post


def _finish(kind: Kind, parts: list[_Pending], pre: int, sbase: int) -> list[IntegerMatrix]:
    out = []
    for part in parts:
        code, lost = encode_sf16(part.factor, pre + 16 + sbase)
        if lost.any():
            part.weight[torch.from_numpy(lost)] = 0
            code[lost] = 0
        out.append(IntegerMatrix(part.weight, code))
    return out


def _embedding(
    table: torch.Tensor, hidden_pad: int
) -> tuple[torch.Tensor, NDArray[np.uint16], int]:
    """int8 rows, sf16 codes and the shift of the largest."""
    int8 = torch.zeros(len(table), hidden_pad, dtype=torch.int8)
    scale = torch.empty(len(table), dtype=torch.float64)
    for i in range(0, len(table), 8192):  # the float copy of a big table stays small
        rows, s = _quantize_rows(table[i : i + 8192].float())
        int8[i : i + 8192, : rows.shape[1]] = rows
        scale[i : i + 8192] = s
    factor = scale.numpy() * 2.0**fm.ACT_FRAC
    requant = requant_for([factor], 0, "the input embedding")
    if not factor.any():
        raise ModelError("the input embedding of the draft is zero everywhere")
    sbase = requant.sbase + 16  # dequantisation has no row scale to shift out
    if sbase < fm.SF16_E_MAX:
        raise ModelError(
            f"the input embedding reaches {float(scale.max()) * fm.Q_MAX:.3g}: accepted is up to 32"
        )
    code, lost = encode_sf16(factor, sbase)
    int8[torch.from_numpy(lost)] = 0
    return int8, np.where(lost, 0, code).astype(np.uint16), sbase


def _rotary(model: FloatModel, positions: int) -> tuple[NDArray[np.int16], NDArray[np.int16]]:
    tables = []
    for table in model.rotary(positions):
        if float(table.abs().max()) >= 2:
            raise ModelError(
                f"rotary scaling gives values up to {float(table.abs().max()):.3g}: accepted is "
                "below 2"
            )
        fixed = np.zeros((positions, model.dims.head_pad // 2), np.int16)
        ints = (table.double() * (1 << fm.ROPE_FRAC)).round().clamp(-32767, 32767)
        fixed[:, : table.shape[1]] = ints.numpy().astype(np.int16)
        tables.append(fixed)
    return tables[0], tables[1]


def quantize_model(
    model: FloatModel, positions: int, progress: Callable[[str], None] = lambda _: None
) -> IntegerModel:
    """Quantise a model; `positions` is the length of the rotary table.

    Raises
    ------
    ModelError
        If a scale or table is outside what the device's formats express.
    """
    d = model.dims
    builder, gains = _Builder(d), []
    for i in range(d.layers):
        gains.append(builder.add_layer(model.layer(i)))
        progress(f"layer {i + 1} of {d.layers} quantised")
    gain_final, fold = _gain(model.norm_final, d.hidden_pad)
    builder.add(Kind.HEAD, model.head, _RMS * math.sqrt(d.hidden) * fold * math.log2(math.e))
    requant, matrices = {}, {}
    for kind, parts in builder.pending.items():
        shifts = requant_for(
            [p.factor for p in parts], d.shape(kind)[1] // fm.GROUP, f"the {kind.value} matrix"
        )
        requant[kind] = shifts
        matrices[kind] = _finish(kind, parts, shifts.pre, shifts.sbase)
    layers = [
        IntegerLayer(g_in, g_post, {k: m[i] for k, m in matrices.items() if k is not Kind.HEAD})
        for i, (g_in, g_post) in enumerate(gains)
    ]
    embedding, code, sbase = _embedding(model.embedding, d.hidden_pad)
    cos, sin = _rotary(model, positions)
    return IntegerModel(
        dims=d,
        eps_k=round(d.hidden * model.eps * 2**28),
        requant=requant,
        layers=layers,
        gain_final=gain_final,
        head=matrices[Kind.HEAD][0],
        embedding=embedding,
        embedding_code=code,
        embedding_sbase=sbase,
        cos=cos,
        sin=sin,
        output_ids=model.output_ids.to(torch.int32).numpy(),
    )
