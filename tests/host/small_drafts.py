"""Random LLaMA drafts, their integer forms and rows to run them with."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from dfvg_host.compile.source import float_model
from dfvg_host.quantize import FloatModel
from dfvg_host.quantize.fidelity import rows_of_text
from dfvg_hw.config import DeviceConfig, get_config
from dfvg_hw.tree import Row

SHAPES: dict[str, dict[str, Any]] = {
    # name: changes; every padding and grouping case of the data path occurs in one of them
    "plain": {},
    "gqa": {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64},
    "multi_head": {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 32},
    "wide_head": {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 128},
    "padded": {"hidden_size": 72, "intermediate_size": 100, "head_dim": 20},
    "tied": {"tie_word_embeddings": True},
    "llama3": {
        "max_position_embeddings": 4096,
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 500000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    },
}


def llama(seed: int = 0, **changes: Any) -> LlamaForCausalLM:
    """Return a random fp32 model whose gains differ from 1 and whose logits are decided."""
    torch.manual_seed(seed)
    settings: dict[str, Any] = {
        "vocab_size": 224,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 512,
        "initializer_range": 0.1,
        "bos_token_id": 1,
        "eos_token_id": 2,
        **changes,
    }
    model = LlamaForCausalLM(LlamaConfig(**settings)).float().eval().requires_grad_(False)
    for name, weight in model.named_parameters():
        if "norm" in name:
            weight.data.uniform_(0.3, 3.0)
    return model


def truncated(model: LlamaForCausalLM, keep: int = 40) -> FloatModel:
    """Return a model with only every fifth-or-so row of its head, and their ids."""
    ids = torch.arange(keep) * 5 + 3
    head = torch.nn.Linear(model.config.hidden_size, keep, bias=False)
    head.weight.data = model.lm_head.weight.data[ids].clone()
    model.lm_head = head.requires_grad_(False)
    return float_model(model, ids)


def tiny() -> DeviceConfig:
    """Return the smallest preset."""
    return get_config("tiny")


def all_children(rows: Sequence[Row]) -> list[Row]:
    """Return the rows with every one asking for children."""
    return [dataclasses.replace(row, want_children=True) for row in rows]


def text_passes(ids: Sequence[int], sizes: Sequence[int]) -> list[list[Row]]:
    """Return one text as passes of the given sizes, children wanted from the last row of each."""
    passes, start = [], 0
    for size in sizes:
        rows = rows_of_text(list(ids), start, start + size)
        rows[-1] = dataclasses.replace(rows[-1], want_children=True)
        passes.append(rows)
        start += size
    return passes
