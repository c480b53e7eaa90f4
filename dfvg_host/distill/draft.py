"""The draft: a few layers shaped like the target's, the target's embedding, a truncated head.

A draft is a transformers ``LlamaForCausalLM`` whose ``lm_head`` has one row for each id of
`Draft.output_ids` instead of one for each id of the vocabulary. The input embedding stays full
(any id the target emits can come next) and frozen: its rows are the target's own, so a draft is
stored without them.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from dfvg_hw.errors import ModelError

__all__ = ["Draft", "llama_from_config", "macs_per_token", "make_draft"]


@dataclass
class Draft:
    """A draft in floating point.

    Attributes
    ----------
    model: ``LlamaForCausalLM``; ``model(ids).logits`` is (batch, length, head rows).
    output_ids: (head rows,) int64, ascending; the token id of each head row.
    """

    model: Any
    output_ids: torch.Tensor

    @property
    def config(self) -> Any:
        """The transformers ``LlamaConfig``; ``vocab_size`` is the embedding's, not the head's."""
        return self.model.config

    def trained(self) -> dict[str, torch.Tensor]:
        """Return every tensor of the draft but the embedding, by its transformers name."""
        state = self.model.state_dict()
        return {name: value for name, value in state.items() if "embed_tokens" not in name}


def llama_from_config(config: Any, embedding: torch.Tensor, output_ids: torch.Tensor) -> Draft:
    """Build an uninitialised draft around ``embedding`` (vocabulary, hidden), shared, frozen."""
    from transformers import LlamaForCausalLM

    small = copy.deepcopy(config)
    small.vocab_size, small.tie_word_embeddings = 8, False  # never materialise the big tables
    model = LlamaForCausalLM(small)
    table = nn.Embedding.from_pretrained(embedding.float(), freeze=True)
    model.set_input_embeddings(table)
    model.lm_head = nn.Linear(config.hidden_size, len(output_ids), bias=False)
    model.config.vocab_size = model.vocab_size = embedding.shape[0]
    return Draft(model.float(), output_ids)


def _check_target(target: Any, layers: list[int] | None, count: int) -> None:
    config = target.config
    if config.model_type != "llama":
        raise ModelError(f"a draft can be made for llama targets, not for {config.model_type!r}")
    for layer in layers or []:
        if not 0 <= layer < config.num_hidden_layers:
            raise ModelError(
                f"layer {layer} is not one of the target's 0 to {config.num_hidden_layers - 1}"
            )
    if count < 1:
        raise ModelError(f"a draft needs at least one layer, not {count}")


def make_draft(
    target: Any,
    output_ids: torch.Tensor,
    layers: list[int] | None = None,
    fresh_layers: int = 2,
    seed: int = 1,
) -> Draft:
    """Make an untrained draft for ``target``.

    Parameters
    ----------
    target: transformers ``LlamaForCausalLM``.
    output_ids: (rows,) int64 ids of the truncated head.
    layers: target layers that the draft's layers start as, in order; None starts from random
        weights with ``fresh_layers`` layers.
    seed: of random weights.

    Returns
    -------
    Draft
        In fp32, with the target's embedding, final norm and head rows.

    Raises
    ------
    ModelError
        The target is no LLaMA, a layer does not exist, or an id is outside the vocabulary.
    """
    count = fresh_layers if layers is None else len(layers)
    _check_target(target, layers, count)
    config = copy.deepcopy(target.config)
    config.num_hidden_layers, config.dtype = count, torch.float32
    embedding = target.get_input_embeddings().weight.detach()
    if len(output_ids) == 0 or int(output_ids.max()) >= embedding.shape[0]:
        raise ModelError(
            f"head ids must be 1 or more ids below the vocabulary size {embedding.shape[0]}"
        )
    torch.manual_seed(seed)
    draft = llama_from_config(config, embedding, output_ids)
    with torch.no_grad():
        draft.model.lm_head.weight.copy_(target.get_output_embeddings().weight[output_ids])
        draft.model.model.norm.load_state_dict(target.model.norm.state_dict())
        for index, layer in enumerate(layers or []):
            state = target.model.layers[layer].state_dict()
            draft.model.model.layers[index].load_state_dict(state)
    return draft


def macs_per_token(draft: Draft) -> int:
    """Multiply-accumulates of one token through all weight matrices, the head included."""
    return sum(v.numel() for name, v in draft.trained().items() if v.ndim == 2)
