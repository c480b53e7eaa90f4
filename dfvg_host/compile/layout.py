"""The memory map of an image and its byte streams.

Streams are in the order in which the array reads them, so that a layer is one run of bursts; see
``docs/image-format.md``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from dfvg_host.quantize.integer import IntegerLayer, IntegerMatrix, IntegerModel, Kind, ModelDims
from dfvg_hw.config import PAGE, DeviceConfig
from dfvg_hw.errors import ImageError

__all__ = [
    "ALIGN",
    "LAYER_RUNS",
    "MemoryMap",
    "Run",
    "align",
    "pack_embedding",
    "pack_gain",
    "pack_layer",
    "pack_matrix",
    "pack_rope",
    "unpack_matrix",
]

Bytes = NDArray[np.uint8]

ALIGN = 64
"""Every address that an instruction or register names is a multiple of this many bytes."""
TAIL_BYTES = 2 * PAGE
"""K and V scales of one page and KV head."""

LAYER_RUNS: tuple[tuple[str, tuple[Kind, ...]], ...] = (
    ("gain_in", ()),
    ("kvq", (Kind.K, Kind.V, Kind.Q)),
    ("out", (Kind.OUT,)),
    ("gain_post", ()),
    ("ffn", (Kind.GATE_UP, Kind.DOWN)),
)
"""A layer's runs: each is one LOAD; gains go to the vector unit, matrices to the array."""


def align(n: int) -> int:
    """Round up to the alignment of addresses."""
    return -(-n // ALIGN) * ALIGN


def matrix_bytes(n: int, k: int, bus: int) -> int:
    """Bytes of a matrix stream: per block of bus/2 channels a scale word and the channels."""
    return n // (bus // 2) * (bus + bus // 2 * k)


def pack_matrix(matrix: IntegerMatrix, bus: int) -> Bytes:
    """Stream of a matrix: blocks of bus/2 channels, scale word first; N is a multiple of bus/2."""
    weight = matrix.weight.numpy()
    blocks = len(weight) // (bus // 2)
    codes = matrix.code.astype("<u2").view(np.uint8).reshape(blocks, bus)
    return np.concatenate((codes, weight.view(np.uint8).reshape(blocks, -1)), axis=1).reshape(-1)


def unpack_matrix(data: Bytes, n: int, k: int, bus: int) -> IntegerMatrix:
    """Inverse of `pack_matrix`; `data` may be longer than the stream."""
    stream = data[: matrix_bytes(n, k, bus)].reshape(n // (bus // 2), -1)
    code = np.ascontiguousarray(stream[:, :bus]).view("<u2").reshape(-1)
    weight = np.ascontiguousarray(stream[:, bus:]).view(np.int8).reshape(-1, k)
    return IntegerMatrix(torch.from_numpy(weight), code.astype(np.uint16))


def pack_gain(gain: NDArray[np.int16]) -> Bytes:
    """A gain vector: int16, whole alignment units (its length is a multiple of 64)."""
    return gain.astype("<i2").view(np.uint8)


def pack_layer(layer: IntegerLayer, bus: int) -> Bytes:
    """All runs of a layer, each aligned."""
    parts = []
    for name, kinds in LAYER_RUNS:
        run = [pack_matrix(layer.matrices[kind], bus) for kind in kinds]
        data = np.concatenate(run) if run else pack_gain(getattr(layer, name))
        parts.append(data)
        parts.append(np.zeros(align(len(data)) - len(data), np.uint8))
    return np.concatenate(parts)


def pack_embedding(model: IntegerModel, bus: int) -> Bytes:
    """Embedding rows: int8 elements, then one word that starts with the sf16 scale."""
    k = model.dims.hidden_pad
    rows = np.zeros((model.dims.vocab, align(k + bus)), np.uint8)
    rows[:, :k] = model.embedding.numpy().view(np.uint8)
    rows[:, k : k + 2] = model.embedding_code.astype("<u2").view(np.uint8).reshape(-1, 2)
    return rows.reshape(-1)


def pack_rope(model: IntegerModel) -> Bytes:
    """Rotary rows by position: (cos, sin) pairs of int16."""
    pairs = np.stack((model.cos, model.sin), -1).astype("<i2")
    return pairs.reshape(-1).view(np.uint8)


@dataclass(frozen=True)
class Run:
    """A stream that one LOAD reads: byte address and bus words."""

    address: int
    words: int


@dataclass(frozen=True)
class MemoryMap:
    """Byte addresses of everything in device memory.

    Weights lie first, the KV pages last; all are multiples of `ALIGN`.
    """

    dims: ModelDims
    config: DeviceConfig
    program_bytes: int

    @property
    def embed_stride(self) -> int:
        """Bytes from one embedding row to the next."""
        return align(self.dims.hidden_pad + self.config.bus_bytes)

    @property
    def rope_stride(self) -> int:
        """Bytes from one rotary row to the next: head_pad / 2 pairs of 4 bytes."""
        return 2 * self.dims.head_pad

    @property
    def positions(self) -> int:
        """Rows of the rotary table: every position a page can hold."""
        return self.config.seq_pages * PAGE

    @property
    def embed(self) -> int:
        """The embedding table; the program lies before it."""
        return align(self.program_bytes)

    @property
    def rope(self) -> int:
        """The rotary table."""
        return self.embed + self.dims.vocab * self.embed_stride

    @property
    def ids(self) -> int:
        """Token id (u32) of each head channel."""
        return self.rope + self.positions * self.rope_stride

    @property
    def layers(self) -> int:
        """The first layer."""
        return self.ids + align(4 * self.dims.out_vocab)

    def run_bytes(self, kinds: tuple[Kind, ...]) -> int:
        """Bytes of one run of a layer (a gain vector if it has no matrices)."""
        if not kinds:
            return 2 * self.dims.hidden_pad
        bus = self.config.bus_bytes
        return sum(matrix_bytes(*self.dims.shape(kind), bus) for kind in kinds)

    @property
    def layer_stride(self) -> int:
        """Bytes from one layer to the next."""
        return sum(align(self.run_bytes(kinds)) for _, kinds in LAYER_RUNS)

    def run(self, name: str) -> Run:
        """A run of layer 0; "gain_in" of layer ``layers`` is the final gain."""
        address = self.layers
        for run_name, kinds in LAYER_RUNS:
            size = self.run_bytes(kinds)
            if run_name == name:
                return Run(address, size // self.config.bus_bytes)
            address += align(size)
        raise KeyError(name)

    @property
    def final(self) -> int:
        """The final gain, in the place where another layer would have its first."""
        return self.layers + self.dims.layers * self.layer_stride

    @property
    def head(self) -> Run:
        """The head's stream."""
        size = self.run_bytes((Kind.HEAD,))
        return Run(self.final + align(2 * self.dims.hidden_pad), size // self.config.bus_bytes)

    @property
    def kv(self) -> int:
        """The first KV page."""
        return align(self.head.address + self.head.words * self.config.bus_bytes)

    @property
    def kv_v(self) -> int:
        """Offset of V in the block of one page, layer and KV head."""
        return TAIL_BYTES + PAGE * self.dims.head_pad

    @property
    def kv_head(self) -> int:
        """Stride of a KV head: K scales, V scales, K by token, V by dimension."""
        return TAIL_BYTES + 2 * PAGE * self.dims.head_pad

    @property
    def kv_layer(self) -> int:
        """Stride of a layer."""
        return self.dims.kv_heads * self.kv_head

    @property
    def kv_page(self) -> int:
        """Stride of a physical page."""
        return self.dims.layers * self.kv_layer

    @property
    def end(self) -> int:
        """First byte after the last KV page."""
        return self.kv + self.config.pool_pages * self.kv_page

    def check(self) -> None:
        """Refuse a map that the device can't address.

        Raises
        ------
        ImageError
            With the bytes needed and what the config addresses.
        """
        if self.end > 1 << self.config.addr_bits:
            raise ImageError(
                f"the draft and its KV pages take {self.end} bytes: config {self.config.name!r} "
                f"addresses {1 << self.config.addr_bits} (addr_bits {self.config.addr_bits})"
            )
        if self.end > ALIGN << 26:
            raise ImageError(
                f"the draft and its KV pages take {self.end} bytes: accepted is up to 4 GiB"
            )

    def registers(self, instructions: int) -> dict[str, int]:
        """Values of the model registers, by their names in `dfvg_hw.registers`."""
        bus, d = self.config.bus_bytes, self.dims
        return {
            "model_kv_base": self.kv // ALIGN,
            "model_kv_page": self.kv_page // ALIGN,
            "model_kv_layer": self.kv_layer // ALIGN,
            "model_kv_head": self.kv_head // ALIGN,
            "model_kv_v": self.kv_v // ALIGN,
            "model_shape": d.head_groups | d.kv_heads << 8 | d.layers << 16,
            "model_embed_base": self.embed // ALIGN,
            "model_embed_stride": self.embed_stride // ALIGN,
            "model_embed_words": d.hidden_pad // bus + 1,
            "model_rope_base": self.rope // ALIGN,
            "model_rope_stride": self.rope_stride // ALIGN,
            "model_rope_words": self.rope_stride // bus,
            "model_vocab": d.vocab,
            "model_program": 0,
            "model_program_length": instructions,
            "model_ids_base": self.ids // ALIGN,
        }
