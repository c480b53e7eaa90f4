"""KV cache of one sequence: rows are appended by a forward pass and compacted after the walk."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

__all__ = ["RowCache"]

_FIRST_ROWS = 256


class _RowLayer(CacheLayerMixin):
    """Keys and values of one layer in buffers [1, heads, capacity, head_dim] that double.

    transformers' own dynamic layer copies everything at each append and can only drop rows from
    the end, while a tree leaves the accepted rows scattered between rejected ones. Layers of
    sliding-window models also keep every row: the mask hides what is out of the window.
    """

    is_sliding = False
    is_croppable = False

    def __init__(self) -> None:
        super().__init__()
        self.length = 0

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.keys = key_states.new_empty(_shape(key_states, _FIRST_ROWS))
        self.values = value_states.new_empty(_shape(value_states, _FIRST_ROWS))
        self.is_initialized = True

    def _reserve(self, rows: int) -> None:
        capacity = self.keys.shape[-2]
        if rows <= capacity:
            return
        while capacity < rows:
            capacity *= 2
        for name in ("keys", "values"):
            old = getattr(self, name)
            new = old.new_empty(_shape(old, capacity))
            new[..., : self.length, :] = old[..., : self.length, :]
            setattr(self, name, new)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        end = self.length + key_states.shape[-2]
        self._reserve(end)
        self.keys[..., self.length : end, :] = key_states
        self.values[..., self.length : end, :] = value_states
        self.length = end
        return self.keys[..., :end, :], self.values[..., :end, :]

    def keep(self, start: int, rows: torch.Tensor) -> None:
        """Move rows ``start + rows`` to ``start`` and drop everything behind them."""
        end = start + len(rows)
        for buffer in (self.keys, self.values):
            # index_select copies first, so source and destination may overlap.
            buffer[..., start:end, :] = buffer.index_select(-2, rows + start)
        self.length = end

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return -1

    def reset(self) -> None:
        self.length = 0


def _shape(states: torch.Tensor, rows: int) -> tuple[int, ...]:
    return (*states.shape[:-2], rows, states.shape[-1])


class RowCache(Cache):
    """Cache whose newest rows are the nodes of a tree until `keep` compacts them.

    Row *i* below `length` belongs to the *i*-th committed token. All layers hold the same rows.
    """

    def __init__(self) -> None:
        super().__init__(layer_class_to_replicate=_RowLayer)

    @property
    def length(self) -> int:
        """Rows in the cache."""
        return max((layer.length for layer in self.layers), default=0)

    def keep(self, start: int, rows: Sequence[int]) -> None:
        """Keep rows below ``start`` and, behind them in the given order, ``start + rows``.

        Parameters
        ----------
        start: rows that stay as they are.
        rows: ascending offsets from ``start``.

        Raises
        ------
        ValueError
            ``rows`` is not strictly ascending or leaves the cache.
        """
        offsets = list(rows)
        if offsets != sorted(set(offsets)) or start < 0:
            raise ValueError(f"rows to keep must be strictly ascending, got {offsets} from {start}")
        if offsets and not (offsets[0] >= 0 and start + offsets[-1] < self.length):
            raise ValueError(f"rows {offsets} from {start} leave a cache of {self.length} rows")
        for layer in self.layers:
            if not layer.is_initialized:
                continue  # a layer that shares another one's keys and values
            if offsets == list(range(len(offsets))):
                layer.length = start + len(offsets)  # already in place
            else:
                layer.keep(start, torch.tensor(offsets, device=layer.keys.device))

    def fork(self) -> RowCache:
        """Return an independent copy."""
        return copy.deepcopy(self)
