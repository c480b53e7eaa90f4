"""A target run as a pool of rows: each row its own text, position and length, one step together.

transformers' ``generate`` waits for the slowest text of a batch and copies keys three times for
grouped-query attention. Here a finished row is refilled at once and the query heads that share
a key head are stacked as query rows, which made generation about three times faster.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

__all__ = ["SlotModel", "grouped_attention", "use_grouped_attention"]

_ATTENTION = "dfvg_grouped"  # name under which transformers finds it


def grouped_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attention with the heads of a group as more query rows, so that keys are not repeated.

    Shapes: query (rows, heads, steps, head_dim), key and value (rows, kv_heads, length,
    head_dim), mask (rows or 1, 1, steps, length) bool, True where visible; it must be given.
    Returns (rows, steps, heads, head_dim).
    """
    rows, heads, steps, dim = query.shape
    group = heads // key.shape[1]
    assert attention_mask is not None
    out = functional.scaled_dot_product_attention(
        query.reshape(rows, key.shape[1], group * steps, dim),
        key,
        value,
        attn_mask=attention_mask.repeat(1, 1, group, 1),
        scale=scaling,
    )
    return out.reshape(rows, heads, steps, dim).transpose(1, 2), None


def use_grouped_attention(model: Any) -> None:
    """Switch a transformers model to `grouped_attention` (it then needs explicit masks)."""
    from transformers import AttentionInterface

    AttentionInterface.register(_ATTENTION, grouped_attention)
    model.set_attn_implementation(_ATTENTION)


class _SlotCache:
    """Keys and values of all rows; quacks like a transformers cache for the model's forward.

    Row r's next entry goes to ``positions[r]``; entries at or beyond the row's length are stale
    and hidden by the mask.
    """

    is_compileable = False

    def __init__(self, layers: int) -> None:
        self.keys: list[torch.Tensor | None] = [None] * layers
        self.values: list[torch.Tensor | None] = [None] * layers
        self.positions = torch.zeros(0, dtype=torch.long)
        self.length = 0  # entries handed to attention: max(positions) + 1
        self.rows, self.capacity = 0, 0

    def update(
        self, key: torch.Tensor, value: torch.Tensor, layer: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        keys, values = self.keys[layer], self.values[layer]
        if keys is None or values is None:
            shape = (self.rows, key.shape[1], self.capacity, key.shape[3])
            keys = self.keys[layer] = torch.zeros(shape, dtype=key.dtype)
            values = self.values[layer] = torch.zeros(shape, dtype=key.dtype)
        if key.shape[2] > 1:  # prefix: computed in row 0 alone, from position 0
            keys[:1, :, : key.shape[2]], values[:1, :, : key.shape[2]] = key, value
            return key, value
        active = key.shape[0]
        index = torch.arange(active)
        keys[index, :, self.positions] = key[:, :, 0]
        values[index, :, self.positions] = value[:, :, 0]
        return keys[:active, :, : self.length], values[:active, :, : self.length]

    def get_seq_length(self, *_: Any) -> int:
        return 0


class SlotModel:
    """Rows that decode together.

    Parameters
    ----------
    model: transformers causal language model on the CPU, eval mode; its attention
        implementation is replaced.
    rows: most rows of a step.
    capacity: most tokens of a row.
    """

    def __init__(self, model: Any, rows: int, capacity: int) -> None:
        use_grouped_attention(model)
        self.model, self.rows, self.capacity = model, rows, capacity
        self.cache = _SlotCache(model.config.num_hidden_layers)
        self.cache.rows, self.cache.capacity = rows, capacity
        self._prefix: list[tuple[torch.Tensor, torch.Tensor]] = []

    @torch.inference_mode()
    def set_prefix(self, tokens: list[int]) -> None:
        """Run ``tokens`` once; ``start`` copies their keys and values into a row."""
        ids, length = torch.tensor([tokens]), len(tokens)
        mask = torch.ones(1, 1, length, length, dtype=torch.bool).tril()
        self.model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=torch.arange(length)[None],
            cache=self.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        pairs = zip(self.cache.keys, self.cache.values, strict=True)
        self._prefix = [
            (k[:1, :, :length].clone(), v[:1, :, :length].clone())
            for k, v in pairs
            if k is not None and v is not None
        ]

    @torch.inference_mode()
    def start(self, row: int) -> None:
        """Copy the prefix into ``row``; its next token is to be given at position len(prefix)."""
        for layer, (key, value) in enumerate(self._prefix):
            keys, values = self.cache.keys[layer], self.cache.values[layer]
            assert keys is not None
            assert values is not None
            keys[row, :, : key.shape[2]], values[row, :, : key.shape[2]] = key[0], value[0]

    @torch.inference_mode()
    def move(self, source: int, target: int) -> None:
        """Copy row ``source`` over row ``target`` (to keep the active rows contiguous)."""
        for tensor in (*self.cache.keys, *self.cache.values):
            assert tensor is not None
            tensor[target] = tensor[source]

    @torch.inference_mode()
    def step(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Give one token to each of the first len(tokens) rows.

        Parameters
        ----------
        tokens, positions: (active,) int64; a row's earlier entries must be filled.

        Returns
        -------
        (active, vocabulary) logits in fp32.
        """
        self.cache.positions, self.cache.length = positions, int(positions.max()) + 1
        visible = torch.arange(self.cache.length)[None] <= positions[:, None]
        out = self.model(
            input_ids=tokens[:, None],
            attention_mask=visible[:, None, None],
            position_ids=positions[:, None],
            cache=self.cache,
            use_cache=True,
        )
        return out.logits[:, -1].float()
