"""State of a pass in the interpreter: device memory, row memories, the KV tail."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from dfvg_host.compile.image import DraftImage
from dfvg_host.device.compute import Children
from dfvg_hw.config import GROUP, PAGE
from dfvg_hw.errors import ImageError
from dfvg_hw.isa import LoadKind
from dfvg_hw.tree import Row

__all__ = ["ALIGN", "TAIL_BYTES", "PassState"]

Bytes = NDArray[np.uint8]
IntArray = NDArray[np.int64]

ALIGN = 64
TAIL_BYTES = 2 * PAGE
_POISON = -0x5A5A5A5A


class PassState:
    """Everything that engines read and write during a pass.

    `memory` is device memory as loads see it; writes go to `written`, which becomes the memory of
    the next pass, as hardware fences passes.
    """

    def __init__(
        self,
        image: DraftImage,
        rows: Sequence[Row],
        tables: Mapping[int, Sequence[int]],
        memory: Bytes,
    ) -> None:
        if not 1 <= len(rows) <= image.config.rows:
            raise ImageError(f"a pass has {len(rows)} rows: accepted are 1 to {image.config.rows}")
        self.rows, self.tables = rows, tables
        self.registers, self.config, self.dims = image.registers, image.config, image.dims
        self.output_ids = image.output_ids
        self.memory, self.written = memory, memory.copy()
        self.head_groups = self.registers["model_shape"] & 3
        self.kv_heads = self.registers["model_shape"] >> 8 & 255
        self.head_pad = self.head_groups * GROUP
        n, c = len(rows), image.config
        self.vm = np.full((n, c.vm_depth), _POISON, np.int64)
        self.act = np.full((n, c.act_groups, GROUP), 99, np.int64)
        self.shift = np.full((n, c.act_groups), 7, np.int64)
        self.mantissa = np.full((n, 256), 40000, np.int64)
        self.exponent = np.full((n, 256), -3, np.int64)
        self.cos = np.zeros((n, self.head_pad // 2), np.int64)
        self.sin = np.zeros_like(self.cos)
        self.tail = {
            kind: np.full((n, self.kv_heads, self.head_pad), 99, np.int64) for kind in "kv"
        }
        self.tail_scale = {kind: np.full((n, self.kv_heads), 17, np.int64) for kind in "kv"}
        # Scores and V-scale logarithms by row: (page, query head, token).
        self.scores: list[IntArray] = [np.zeros(0, np.int64)] * n
        self.value_logs: list[IntArray] = [np.zeros(0, np.int64)] * n
        self.children: dict[int, Children] = {}

    def read(self, address: int, size: int) -> Bytes:
        """Bytes of device memory."""
        if address + size > len(self.memory):
            raise ImageError(f"load of {size} bytes at {address} ends outside device memory")
        return self.memory[address : address + size]

    @property
    def sequences(self) -> list[int]:
        """Sequences with a row in the pass, ascending."""
        return sorted({row.seq for row in self.rows})

    def kv_block(self, physical: int, layer: int, head: int) -> int:
        """Byte address of the K and V of one page, layer and KV head."""
        r = self.registers
        return ALIGN * (
            r["model_kv_base"]
            + physical * r["model_kv_page"]
            + layer * r["model_kv_layer"]
            + head * r["model_kv_head"]
        )

    def kv_v(self) -> int:
        """Offset of V in a block."""
        return ALIGN * self.registers["model_kv_v"]

    def gather(self, kind: LoadKind, i0: int, i1: int) -> Iterator[tuple[int, int]]:
        """(address, bytes) of the runs of a LOAD that isn't linear."""
        r, bus = self.registers, self.config.bus_bytes
        if kind in (LoadKind.EMBED_ROWS, LoadKind.ROPE_ROWS):
            name = "embed" if kind is LoadKind.EMBED_ROWS else "rope"
            base, stride = r[f"model_{name}_base"], r[f"model_{name}_stride"]
            for row in self.rows:
                index = row.token if kind is LoadKind.EMBED_ROWS else row.position
                yield ALIGN * (base + index * stride), r[f"model_{name}_words"] * bus
            return
        for sequence in self.sequences:
            for physical in self.tables[sequence]:
                block = self.kv_block(physical, i0, i1)
                if kind is LoadKind.K_PAGES:
                    yield block, TAIL_BYTES + PAGE * self.head_pad
                else:
                    yield block + self.kv_v(), PAGE * self.head_pad

    def page_rows(self, sequence: int, page: int) -> list[int]:
        """Rows of the pass whose K and V belong to this page."""
        return [i for i, row in enumerate(self.rows) if row.seq == sequence and row.page == page]

    def visible(self, row: int) -> NDArray[np.bool_]:
        """Visibility of a row's tokens, shape (pages, 64)."""
        pages = len(self.tables[self.rows[row].seq])
        maps = list(self.rows[row].visible)
        maps += [0] * (pages - len(maps))
        bits = [[(m >> t) & 1 for t in range(PAGE)] for m in maps]
        return np.array(bits, dtype=bool)
