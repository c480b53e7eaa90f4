"""Changing the shape of a draft while keeping what it has learned: narrower FFN, other head."""

from __future__ import annotations

import copy

import torch

from dfvg_hw.errors import ModelError

from .dataset import Batch
from .draft import Draft, llama_from_config

__all__ = ["narrow_ffn", "with_head"]


@torch.no_grad()
def _importance(draft: Draft, batches: list[Batch]) -> list[torch.Tensor]:
    """Return for each layer (FFN width,) root mean square activation × norm of its column."""
    layers = draft.model.model.layers
    squares = [torch.zeros(draft.config.intermediate_size) for _ in layers]
    hooks = []
    for total, layer in zip(squares, layers, strict=True):

        def add(_: object, given: tuple[torch.Tensor], total: torch.Tensor = total) -> None:
            total += given[0].float().square().sum((0, 1))

        hooks.append(layer.mlp.down_proj.register_forward_pre_hook(add))
    for batch in batches:
        draft.model.model(input_ids=batch.tokens, use_cache=False)
    for hook in hooks:
        hook.remove()
    norms = [layer.mlp.down_proj.weight.norm(dim=0) for layer in layers]
    return [total.sqrt() * norm for total, norm in zip(squares, norms, strict=True)]


def narrow_ffn(draft: Draft, batches: list[Batch], width: int) -> Draft:
    """Keep the ``width`` most important FFN neurons of each layer.

    Parameters
    ----------
    draft: in floating point; not changed.
    batches: text to measure activations on; a few thousand tokens do.
    width: a multiple of 64 (matrix tiles of the device), at most the draft's own.

    Raises
    ------
    ModelError
        The width does not fit.
    """
    own = draft.config.intermediate_size
    if width % 64 or not 0 < width <= own:
        raise ModelError(f"the FFN width must be a multiple of 64 up to {own}, not {width}")
    state = dict(draft.trained())
    for index, scores in enumerate(_importance(draft, batches)):
        kept = scores.topk(width).indices.sort().values
        name = f"model.layers.{index}.mlp."
        for part in ("gate_proj.weight", "up_proj.weight"):
            state[name + part] = state[name + part][kept]
        state[name + "down_proj.weight"] = state[name + "down_proj.weight"][:, kept]
    config = copy.deepcopy(draft.config)
    config.intermediate_size = width
    table = draft.model.get_input_embeddings().weight.detach()
    small = llama_from_config(config, table, draft.output_ids)
    small.model.load_state_dict(state, strict=False)
    return small


def with_head(draft: Draft, head: torch.Tensor, output_ids: torch.Tensor) -> Draft:
    """Give the draft a head for other ids.

    Rows of ids that it had are kept. A new id's row is the target's, moved by the mean of what
    training did to the rows that were kept.

    Parameters
    ----------
    draft: in floating point; not changed.
    head: (vocabulary, hidden) output embedding of the target.
    output_ids: (rows,) int64, ascending.
    """
    old = draft.model.lm_head.weight.detach()
    rows = head.detach()[output_ids].float() + (old - head[draft.output_ids]).mean(0)
    place = {token: row for row, token in enumerate(draft.output_ids.tolist())}
    for row, token in enumerate(output_ids.tolist()):
        if token in place:
            rows[row] = old[place[token]]
    table = draft.model.get_input_embeddings().weight.detach()
    other = llama_from_config(draft.config, table, output_ids)
    other.model.load_state_dict({**draft.trained(), "lm_head.weight": rows}, strict=False)
    return other
