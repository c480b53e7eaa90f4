"""Where weights come from: transformers LLaMA models and draft folders, as a `FloatModel`."""

from __future__ import annotations

from typing import Any

import torch

from dfvg_host.quantize.integer import ModelDims
from dfvg_host.quantize.llama import FloatLayer, FloatModel
from dfvg_hw.errors import ModelError

__all__ = ["float_model"]

# Scaling rules whose table doesn't depend on how long the text has become.
_STATIC_ROPE = ("default", "linear", "llama3", "yarn")


def _rope_type(config: Any) -> str:
    parameters = getattr(config, "rope_parameters", None) or {}
    parameters = parameters or getattr(config, "rope_scaling", None) or {}
    return str(parameters.get("rope_type", parameters.get("type", "default")))


def _check(config: Any, name: str) -> None:
    """Refuse, in one line, whatever the device can't compute."""
    if config.model_type != "llama":
        raise ModelError(
            f"{name} is a {config.model_type!r} model: drafts must be of the 'llama' architecture"
        )
    for flag in ("attention_bias", "mlp_bias"):
        if getattr(config, flag, False):
            raise ModelError(f"{name} has {flag} set: accepted are models without biases")
    if config.hidden_act != "silu":
        raise ModelError(f"{name} has activation {config.hidden_act!r}: accepted is 'silu'")
    rope = _rope_type(config)
    if rope not in _STATIC_ROPE:
        raise ModelError(
            f"{name} has rotary scaling {rope!r}: accepted are {', '.join(_STATIC_ROPE)}"
        )
    if config.num_attention_heads % config.num_key_value_heads:
        raise ModelError(
            f"{name} has {config.num_attention_heads} heads for {config.num_key_value_heads} KV "
            "heads: accepted are multiples"
        )


def _rotary(model: Any, head_dim: int) -> Any:
    """Cosines and sines by transformers' own module, so every scaling rule is its own."""

    def table(positions: int) -> tuple[torch.Tensor, torch.Tensor]:
        probe = torch.zeros(1, 1, dtype=torch.float32, device=model.device)
        index = torch.arange(positions, device=model.device)[None]
        with torch.no_grad():
            cos, sin = model.model.rotary_emb(probe, index)
        if cos.shape[-1] != head_dim:
            raise ModelError(
                f"rotary embedding covers {cos.shape[-1]} of {head_dim} head elements: accepted "
                "are models that rotate all of them"
            )
        half = head_dim // 2  # transformers repeats the table for both halves of a head
        return cos[0, :, :half].cpu(), sin[0, :, :half].cpu()

    return table


def float_model(
    model: Any, output_ids: torch.Tensor | None = None, name: str = "model"
) -> FloatModel:
    """Describe a transformers ``LlamaForCausalLM`` for quantisation; nothing is copied yet.

    Parameters
    ----------
    model : LlamaForCausalLM
        Head tied or not; its ``lm_head`` may have fewer rows than the embedding.
    output_ids : torch.Tensor, optional
        Token id of each head row; needed if the head is truncated.
    name : str
        For error lines.

    Raises
    ------
    ModelError
        If the model is no LLaMA or has a feature that the device doesn't compute.
    """
    config = model.config
    _check(config, name)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    head = model.get_output_embeddings().weight.detach()
    embedding = model.get_input_embeddings().weight.detach()
    if output_ids is None:
        output_ids = torch.arange(head.shape[0])
    if len(output_ids) != head.shape[0] or head.shape[0] > embedding.shape[0]:
        raise ModelError(
            f"{name} has {head.shape[0]} head rows, {len(output_ids)} output ids and "
            f"{embedding.shape[0]} embedding rows: the first two must agree, the third be no less"
        )

    def layer(index: int) -> FloatLayer:
        block = model.model.layers[index]
        attention, mlp = block.self_attn, block.mlp
        weights = {
            "norm_in": block.input_layernorm,
            "q": attention.q_proj,
            "k": attention.k_proj,
            "v": attention.v_proj,
            "o": attention.o_proj,
            "norm_post": block.post_attention_layernorm,
            "gate": mlp.gate_proj,
            "up": mlp.up_proj,
            "down": mlp.down_proj,
        }
        return FloatLayer(**{k: m.weight.detach().float().cpu() for k, m in weights.items()})

    return FloatModel(
        dims=ModelDims(
            hidden=config.hidden_size,
            layers=config.num_hidden_layers,
            heads=config.num_attention_heads,
            kv_heads=config.num_key_value_heads,
            head_dim=head_dim,
            ffn=config.intermediate_size,
            vocab=embedding.shape[0],
            out_vocab=head.shape[0],
        ),
        eps=config.rms_norm_eps,
        layer=layer,
        norm_final=model.model.norm.weight.detach().float().cpu(),
        head=head.cpu(),
        embedding=embedding.cpu(),
        rotary=_rotary(model, head_dim),
        output_ids=output_ids,
    )
