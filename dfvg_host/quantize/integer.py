"""A model in device integers: int8 matrices with column scales, gains, tables and shifts.

Everything here is in *device order*: padded to groups of 64, rotary pairs interleaved, gate and up
interleaved. `IntegerModel` is what an image holds, what the emulator computes with and what the
fidelity measurement runs.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfvg_hw.config import GROUP

__all__ = ["IntegerLayer", "IntegerMatrix", "IntegerModel", "Kind", "ModelDims", "Requant", "pad"]


def pad(n: int) -> int:
    """Round up to a whole number of groups."""
    return -(-n // GROUP) * GROUP


class Kind(enum.Enum):
    """The matrices in stream order; each has one set of shifts for all layers."""

    K = "k"
    V = "v"
    Q = "q"
    OUT = "out"
    GATE_UP = "gate_up"
    DOWN = "down"
    HEAD = "head"


@dataclass(frozen=True)
class ModelDims:
    """Sizes of a decoder, as in its configuration; properties give the padded ones.

    Attributes
    ----------
    vocab : int
        Rows of the input embedding.
    out_vocab : int
        Rows of the head, fewer than `vocab` if it's truncated.
    """

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    out_vocab: int

    @property
    def hidden_pad(self) -> int:
        """Hidden size, whole groups."""
        return pad(self.hidden)

    @property
    def head_pad(self) -> int:
        """Head size, whole groups."""
        return pad(self.head_dim)

    @property
    def head_groups(self) -> int:
        """Groups of a padded head."""
        return self.head_pad // GROUP

    @property
    def ffn_pad(self) -> int:
        """Inner size of the feed-forward part, whole groups."""
        return pad(self.ffn)

    @property
    def gqa(self) -> int:
        """Query heads per KV head."""
        return self.heads // self.kv_heads

    @property
    def q_size(self) -> int:
        """Elements of all padded query heads."""
        return self.heads * self.head_pad

    @property
    def kv_size(self) -> int:
        """Elements of all padded K (or V) heads."""
        return self.kv_heads * self.head_pad

    def shape(self, kind: Kind) -> tuple[int, int]:
        """Padded (output channels, inner dimension) of a matrix; the head's rows aren't padded."""
        return {
            Kind.K: (self.kv_size, self.hidden_pad),
            Kind.V: (self.kv_size, self.hidden_pad),
            Kind.Q: (self.q_size, self.hidden_pad),
            Kind.OUT: (self.hidden_pad, self.q_size),
            Kind.GATE_UP: (2 * self.ffn_pad, self.hidden_pad),
            Kind.DOWN: (self.hidden_pad, self.ffn_pad),
            Kind.HEAD: (self.out_vocab, self.hidden_pad),
        }[kind]


@dataclass(frozen=True)
class Requant:
    """Shifts of one kind of matrix: see `dfvg_hw.numerics.ops.requant`."""

    pre: int
    sbase: int


@dataclass
class IntegerMatrix:
    """An int8 matrix.

    Attributes
    ----------
    weight : torch.Tensor of int8, shape (N, K)
        In -127..127, K a multiple of 64.
    code : ndarray of uint16, shape (N,)
        sf16 column scales.
    """

    weight: Any
    code: NDArray[np.uint16]


@dataclass
class IntegerLayer:
    """One decoder layer; gains are int16 of length `hidden_pad` with `GAIN_FRAC` fraction bits."""

    gain_in: NDArray[np.int16]
    gain_post: NDArray[np.int16]
    matrices: dict[Kind, IntegerMatrix]


@dataclass
class IntegerModel:
    """A whole draft in device integers.

    Attributes
    ----------
    dims : ModelDims
    eps_k : int
        round(hidden * eps * 2**28).
    requant : dict of Kind to Requant
    layers : list of IntegerLayer
    gain_final : ndarray of int16, shape (hidden_pad,)
    head : IntegerMatrix
    embedding : torch.Tensor of int8, shape (vocab, hidden_pad)
    embedding_code : ndarray of uint16, shape (vocab,)
    embedding_sbase : int
    cos, sin : ndarray of int16, shape (positions, head_pad / 2)
    output_ids : ndarray of int32, shape (out_vocab,)
        Token id of each head row.
    """

    dims: ModelDims
    eps_k: int
    requant: dict[Kind, Requant]
    layers: list[IntegerLayer]
    gain_final: NDArray[np.int16]
    head: IntegerMatrix
    embedding: Any
    embedding_code: NDArray[np.uint16]
    embedding_sbase: int
    cos: NDArray[np.int16]
    sin: NDArray[np.int16]
    output_ids: NDArray[np.int32]
