"""Rotate a model so that its activations quantise better; its function stays the same.

RMS norms commute with rotations once their gains are in the weights that follow, so the residual
stream may be expressed in any orthonormal basis: one in which a few channels aren't much larger
than the rest (as in QuaRot, arXiv 2404.00456). The same goes for V and the output projection
inside each head. All of it happens in the compiler: the device does nothing for it.
"""

from __future__ import annotations

import dataclasses
import math

import torch

from .llama import FloatLayer, FloatModel

__all__ = ["orthonormal", "rotate"]

_ROWS = 8192  # of a table rotated at a time: bounds the double-precision copy


def orthonormal(n: int) -> torch.Tensor:
    """An orthonormal matrix that spreads every basis vector over all n places, float64.

    Kronecker product of the cosine transform of n's odd factor and a Hadamard matrix.
    """
    power = n & -n
    hadamard = torch.ones(1, 1, dtype=torch.float64)
    while len(hadamard) < power:
        top, bottom = (torch.cat((hadamard, s * hadamard), 1) for s in (1, -1))
        hadamard = torch.cat((top, bottom))
    odd = n // power
    i = torch.arange(odd, dtype=torch.float64)
    cosine = torch.cos(math.pi * (i[None] + 0.5) * i[:, None] / odd) * math.sqrt(2 / odd)
    cosine[0] = math.sqrt(1 / odd)
    return torch.kron(cosine, hadamard / math.sqrt(power))


def _times(table: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    """``table @ matrix`` in double precision, so that results don't depend on the machine."""
    out = torch.empty(table.shape, dtype=torch.float32)
    for i in range(0, len(table), _ROWS):
        out[i : i + _ROWS] = (table[i : i + _ROWS].double() @ matrix).float()
    return out


def _rotate_layer(layer: FloatLayer, hidden: torch.Tensor, head: torch.Tensor) -> FloatLayer:
    size = len(head)

    def reads(weight: torch.Tensor, norm: torch.Tensor) -> torch.Tensor:
        return _times(weight, norm.double()[:, None] * hidden)

    def writes(weight: torch.Tensor) -> torch.Tensor:
        return _times(weight.t(), hidden).t().contiguous()

    v = reads(layer.v, layer.norm_in)
    v = _times(v.reshape(-1, size, v.shape[1]).transpose(1, 2).reshape(-1, size), head)
    v = v.reshape(-1, layer.v.shape[1], size).transpose(1, 2).reshape(layer.v.shape)
    o = writes(layer.o)
    return FloatLayer(
        norm_in=torch.ones_like(layer.norm_in),
        q=reads(layer.q, layer.norm_in),
        k=reads(layer.k, layer.norm_in),
        v=v,
        o=_times(o.reshape(-1, size), head).reshape(o.shape),
        norm_post=torch.ones_like(layer.norm_post),
        gate=reads(layer.gate, layer.norm_post),
        up=reads(layer.up, layer.norm_post),
        down=writes(layer.down),
    )


def rotate(model: FloatModel) -> FloatModel:
    """The same function with a rotated residual stream and rotated values."""
    hidden = orthonormal(model.dims.hidden)
    head = orthonormal(model.dims.head_dim)
    return dataclasses.replace(
        model,
        layer=lambda index: _rotate_layer(model.layer(index), hidden, head),
        norm_final=torch.ones_like(model.norm_final),
        head=_times(model.head, model.norm_final.double()[:, None] * hidden),
        embedding=_times(model.embedding, hidden),
    )
