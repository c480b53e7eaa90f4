"""A floating-point draft for the emulator: a Hugging Face LLaMA run row by row over paged KV.

It answers what an ideal draft, without the device's number formats, would propose, and proves that
slots, page tables and visibility maps alone are enough to run a tree.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from dfvg_host.device.virtual import PassCost
from dfvg_hw.config import PAGE, DeviceConfig
from dfvg_hw.errors import ModelError
from dfvg_hw.messages import LOGPROB_ONE
from dfvg_hw.tree import Row

__all__ = ["FloatBackend"]

_LOGPROB_MIN = -(1 << 15)


class FloatBackend:
    """Compute backend over a `LlamaForCausalLM`.

    Parameters
    ----------
    model : LlamaForCausalLM
        In evaluation mode; its dtype and device are used as they are.
    config : DeviceConfig
        Gives the pool's size, children per row and the bus of the cost estimate.

    Raises
    ------
    ModelError
        If it's another kind of model.

    Notes
    -----
    A pass is costed as if every weight (one byte each) and every live page crossed the memory bus
    once, with nothing lost in between.
    """

    digest = ""

    def __init__(self, model: Any, config: DeviceConfig) -> None:
        if getattr(model.config, "model_type", None) != "llama":
            kind = getattr(model.config, "model_type", type(model).__name__)
            raise ModelError(f"model type {kind!r} can't be drafted with: only 'llama'")
        self._model = model
        self._config = config
        shape = model.config
        self._heads, self._kv_heads = shape.num_attention_heads, shape.num_key_value_heads
        self._head_dim = getattr(shape, "head_dim", None) or shape.hidden_size // self._heads
        weight = model.model.embed_tokens.weight
        self._embedding_bytes = 0 if shape.tie_word_embeddings else weight.numel()
        size = (shape.num_hidden_layers, 2, config.pool_pages, PAGE, self._kv_heads, self._head_dim)
        # Poisoned: a row that sees a slot it shouldn't gets NaN, not a plausible answer.
        self._kv = torch.full(size, float("nan"), dtype=weight.dtype, device=weight.device)

    @property
    def vocabulary(self) -> int:
        """Rows of the embedding."""
        return int(self._model.config.vocab_size)

    @property
    def output_vocabulary(self) -> int:
        """Channels of the head."""
        return int(self._model.lm_head.weight.shape[0])

    def cost(self, rows: Sequence[Row], tables: Mapping[int, Sequence[int]]) -> PassCost:
        """Return the time that the bytes of a pass take on the bus."""
        weights = sum(p.numel() for p in self._model.parameters()) - self._embedding_bytes
        pages = sum(len(tables[seq]) for seq in {row.seq for row in rows})
        kv = 2 * pages * PAGE * self._kv_heads * self._head_dim * len(self._model.model.layers)
        cycles = math.ceil((weights + kv) / self._config.bus_bytes)
        return PassCost(cycles, cycles, cycles)

    @torch.no_grad()
    def forward(
        self, rows: Sequence[Row], tables: Mapping[int, Sequence[int]]
    ) -> dict[int, list[tuple[int, int]]]:
        """Run a pass; see `ComputeBackend.forward`."""
        body = self._model.model
        device = self._kv.device
        x = body.embed_tokens(torch.tensor([[row.token for row in rows]], device=device))
        positions = torch.tensor([[row.position for row in rows]], device=device)
        rotary = body.rotary_emb(x, positions)
        seen = [self._visible(row, tables[row.seq]) for row in rows]
        for index, layer in enumerate(body.layers):
            h = layer.input_layernorm(x)
            x = x + layer.self_attn.o_proj(self._attend(index, layer, h, rotary, rows, seen))
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        wanted = [row.index for row in rows if row.want_children]
        if not wanted:
            return {}
        logits = self._model.lm_head(body.norm(x[0, wanted])).float()
        return dict(zip(wanted, self._children(logits), strict=True))

    def _visible(self, row: Row, table: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Physical page and offset of every token that a row sees."""
        pairs = [
            (table[page], offset)
            for page, bits in enumerate(row.visible)
            for offset in range(PAGE)
            if bits >> offset & 1
        ]
        place = torch.tensor(pairs, device=self._kv.device).T
        return place[0], place[1]

    def _attend(
        self,
        index: int,
        layer: Any,
        h: torch.Tensor,
        rotary: tuple[torch.Tensor, torch.Tensor],
        rows: Sequence[Row],
        seen: Sequence[tuple[torch.Tensor, torch.Tensor]],
    ) -> torch.Tensor:
        """Store the rows' K and V, then let each row attend to what it sees."""
        attn = layer.self_attn
        shape = (1, len(rows), -1, self._head_dim)
        q, k = (proj(h).view(shape).transpose(1, 2) for proj in (attn.q_proj, attn.k_proj))
        q, k = apply_rotary_pos_emb(q, k, *rotary)
        v = attn.v_proj(h).view(shape)
        keys, values = self._kv[index]
        for row, key, value in zip(rows, k[0].transpose(0, 1), v[0], strict=True):
            keys[row.phys, row.offset] = key
            values[row.phys, row.offset] = value
        out = []
        for number, (pages, offsets) in enumerate(seen):
            k_seen, v_seen = keys[pages, offsets], values[pages, offsets]
            query = q[0, :, number].view(self._kv_heads, -1, self._head_dim)
            scores = torch.einsum("hgd,thd->hgt", query, k_seen) * attn.scaling
            weights = torch.softmax(scores, dim=-1)
            out.append(torch.einsum("hgt,thd->hgd", weights, v_seen).reshape(-1))
        return torch.stack(out)[None]

    def _children(self, logits: torch.Tensor) -> list[list[tuple[int, int]]]:
        count = min(self._config.topk, logits.shape[-1])
        logprobs = torch.log_softmax(logits, dim=-1) / math.log(2) * LOGPROB_ONE
        # Stable, so that equal logits keep the order of their ids, as in the device.
        tokens = torch.sort(logits, dim=-1, descending=True, stable=True).indices[:, :count]
        edges = logprobs.gather(1, tokens).round().clamp(_LOGPROB_MIN, 0).long()
        return [
            list(zip(ids, values, strict=True))
            for ids, values in zip(tokens.tolist(), edges.tolist(), strict=True)
        ]
