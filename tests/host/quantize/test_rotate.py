"""Rotation changes the numbers that are quantised, not the function."""

import copy

import pytest
import torch

from dfvg_host.compile.source import float_model
from dfvg_host.device.compute import IntegerCompute
from dfvg_host.quantize import quantize_model, rotate
from dfvg_host.quantize.fidelity import integer_logits
from dfvg_host.quantize.rotate import orthonormal
from tests.host.small_drafts import SHAPES, llama, tiny


@pytest.mark.parametrize("n", [1, 3, 20, 64, 72, 576])
def test_orthonormal(n):
    matrix = orthonormal(n)
    assert (matrix @ matrix.T - torch.eye(n)).abs().max() < 1e-12
    assert matrix.abs().max() <= 1.42 / (n**0.5)  # every basis vector is spread out


def _model_of(description, model):
    """A transformers model with a description's weights."""
    made = copy.deepcopy(model)
    for index, block in enumerate(made.model.layers):
        layer = description.layer(index)
        block.input_layernorm.weight.data = layer.norm_in
        block.post_attention_layernorm.weight.data = layer.norm_post
        for part in "qkvo":
            getattr(block.self_attn, f"{part}_proj").weight.data = getattr(layer, part)
        for part in ("gate", "up", "down"):
            getattr(block.mlp, f"{part}_proj").weight.data = getattr(layer, part)
    made.model.norm.weight.data = description.norm_final
    made.lm_head.weight = torch.nn.Parameter(description.head, requires_grad=False)
    made.model.embed_tokens.weight = torch.nn.Parameter(description.embedding, requires_grad=False)
    return made


@pytest.mark.parametrize("shape", SHAPES)
def test_the_function_stays(shape):
    model = llama(**SHAPES[shape])
    ids = torch.arange(60)[None]
    other = _model_of(rotate(float_model(model)), model)
    assert (model(ids).logits - other(ids).logits).abs().max() < 1e-4
    assert not torch.allclose(model.model.embed_tokens.weight, other.model.embed_tokens.weight)


def test_outlier_channels_cost_less():
    """A residual channel 100 times larger than the rest, as real models have."""
    model = llama(hidden_size=128)
    model.model.embed_tokens.weight.data[:, 5] *= 100
    for block in model.model.layers:
        block.input_layernorm.weight.data[5] *= 0.02
        block.post_attention_layernorm.weight.data[5] *= 0.02
    model.model.norm.weight.data[5] *= 0.02
    ids = list(range(80))
    reference = model(torch.tensor([ids])).logits[0].double().log_softmax(1)

    def divergence(description):
        compute = IntegerCompute(quantize_model(description, 320), tiny())
        ours = torch.from_numpy(integer_logits(compute, ids)).log_softmax(1)
        return float((reference.exp() * (reference - ours)).sum(1).mean())

    assert divergence(rotate(float_model(model))) < 0.7 * divergence(float_model(model))
