"""Quantisation: scales, folding and padding, judged by the integer forward pass itself."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from dfvg_host.compile.source import float_model
from dfvg_host.device.compute import IntegerCompute
from dfvg_host.quantize import Kind, quantize_model
from dfvg_host.quantize.fidelity import integer_logits, measure
from dfvg_host.quantize.scales import encode_sf16, matmul_pre, requant_for
from dfvg_hw.errors import ModelError
from dfvg_hw.numerics import ops
from tests.host.small_drafts import SHAPES, llama, tiny, truncated

POSITIONS = 320


def _divergence(reference: torch.Tensor, ours: np.ndarray) -> tuple[float, float]:
    """Mean KL in nats, and the slope of our logits over the reference's."""
    p = reference.double().log_softmax(1)
    q = torch.from_numpy(ours).log_softmax(1)
    a, b = reference.double().flatten(), torch.from_numpy(ours).flatten()
    return float((p.exp() * (p - q)).sum(1).mean()), float((a * b).sum() / (a * a).sum())


@pytest.mark.parametrize("shape", SHAPES)
def test_integer_forward_is_close_to_float(shape):
    model = llama(**SHAPES[shape])
    ids = torch.randint(0, 200, (1, 96), generator=torch.Generator().manual_seed(5))
    reference = model(ids).logits[0]
    compute = IntegerCompute(quantize_model(float_model(model), POSITIONS), tiny())
    kl, slope = _divergence(reference, integer_logits(compute, ids[0].tolist(), 32))
    spread = float(reference.std(1).mean())
    assert spread > 0.5, "the reference must have something to lose"
    assert kl < 0.004 * spread**2
    assert 0.98 < slope < 1.02  # a wrong folded factor shows as a slope


def test_a_wrong_fold_would_be_noticed():
    model = llama()
    ids = list(range(64))
    integers = quantize_model(float_model(model), POSITIONS)
    down = integers.requant[Kind.DOWN]
    integers.requant[Kind.DOWN] = dataclasses.replace(down, sbase=down.sbase + 1)
    kl, _ = _divergence(
        model(torch.tensor([ids])).logits[0], integer_logits(IntegerCompute(integers, tiny()), ids)
    )
    assert kl > 0.01


def test_truncated_head_keeps_its_rows_and_ids():
    model = llama()
    full = quantize_model(float_model(model), POSITIONS)
    part = quantize_model(truncated(model), POSITIONS)
    ids = part.output_ids
    assert ids.tolist() == [5 * i + 3 for i in range(40)]
    assert (part.head.weight == full.head.weight[torch.from_numpy(ids).long()]).all()
    assert part.dims.vocab == 224
    assert part.dims.out_vocab == 40


def test_rotary_table_is_the_models_own():
    model = llama(**SHAPES["llama3"])
    plain = quantize_model(float_model(llama()), POSITIONS)
    integers = quantize_model(float_model(model), POSITIONS)
    position = torch.arange(POSITIONS)[None]
    cos, sin = model.model.rotary_emb(torch.zeros(1, 1), position)
    assert np.abs(integers.cos[:, :16] / 16384 - cos[0, :, :16].numpy()).max() < 1 / 16384
    assert np.abs(integers.sin[:, :16] / 16384 - sin[0, :, :16].numpy()).max() < 1 / 16384
    assert (integers.cos != plain.cos).any()


def test_quantising_int8_weights_gives_the_same_integers():
    model = llama()
    first = quantize_model(float_model(model), POSITIONS)
    weight = model.model.layers[1].mlp.down_proj.weight
    matrix = first.layers[1].matrices[Kind.DOWN]
    scale = weight.abs().amax(1, keepdim=True) / 127
    weight.data = matrix.weight.float() * scale
    again = quantize_model(float_model(model), POSITIONS)
    assert (again.layers[1].matrices[Kind.DOWN].weight == matrix.weight).all()


def test_zero_rows_and_norms_survive():
    model = llama()
    model.model.layers[0].mlp.gate_proj.weight.data[3:9] = 0
    model.model.layers[0].self_attn.v_proj.weight.data[:] = 0
    model.model.layers[1].input_layernorm.weight.data[:] = 0
    model.model.embed_tokens.weight.data[7] = 0
    ids = [7, 3, 7, 100]
    compute = IntegerCompute(quantize_model(float_model(model), POSITIONS), tiny())
    kl, _ = _divergence(model(torch.tensor([ids])).logits[0], integer_logits(compute, ids))
    assert kl < 0.01


def test_sf16_is_within_half_a_unit_of_the_mantissa():
    factor = np.exp(np.random.default_rng(1).uniform(-20, 2, 4000))
    shifts = requant_for([factor], 9, "matrix")
    code, lost = encode_sf16(factor, shifts.pre + 16 + shifts.sbase)
    mantissa, exponent = ops.decode_sf16(code)
    value = mantissa * np.exp2(exponent.astype(float) - shifts.pre - 16 - shifts.sbase)
    kept = ~lost
    assert kept.mean() > 0.9
    assert np.abs(value[kept] / factor[kept] - 1).max() <= 2.0**-12 + 1e-12
    assert exponent.max() == 31
    top = np.array([2.0**5 * (1 - 2.0**-14)])
    shifts = requant_for([top], 1, "matrix")
    assert encode_sf16(top, shifts.pre + 16 + shifts.sbase)[0][0] < 1 << 16


def test_pre_shift_is_the_smallest_that_holds_every_sum():
    for groups in (1, 2, 9, 24, 1023):
        largest = groups * 64 * 127 * 127 << 15
        pre = matmul_pre(groups)
        assert largest >> pre < 1 << 31
        assert pre == 0 or largest >> (pre - 1) >= 1 << 31


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"attention_bias": True}, "attention_bias"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"hidden_act": "gelu"}, "activation 'gelu': accepted is 'silu'"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "rotary scaling 'dynamic'"),
    ],
)
def test_unsupported_features_are_named(change, message):
    with pytest.raises(ModelError, match=message) as caught:
        float_model(llama(**change))
    assert "\n" not in str(caught.value)


def test_other_architectures_are_refused():
    from tests.host import tiny_models

    with pytest.raises(ModelError, match="'qwen2' model: drafts must be of the 'llama'"):
        float_model(tiny_models.model("qwen2"))


def test_huge_embedding_is_refused():
    model = llama()
    model.model.embed_tokens.weight.data[0, 0] = 40
    with pytest.raises(ModelError, match="accepted is up to 32"):
        quantize_model(float_model(model), POSITIONS)


def test_measure_reports_agreement_with_itself():
    model = llama()
    ids = torch.randint(0, 200, (60,), generator=torch.Generator().manual_seed(2)).tolist()
    result = measure(model, quantize_model(float_model(model), POSITIONS), [(ids, 10)], tiny())
    assert result.positions == 50
    assert result.top1 > 0.8
    assert 0 <= result.kl < 0.02
    assert math.isclose(result.depth8, sum(result.top1**d for d in range(1, 9)))


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize(
    "name",
    [
        "model.embed_tokens.weight",
        "model.layers.0.self_attn.k_proj.weight",
        "model.layers.1.mlp.down_proj.weight",
        "model.layers.1.input_layernorm.weight",
        "model.norm.weight",
        "lm_head.weight",
    ],
)
def test_weights_that_are_not_finite_are_refused(name, value):
    model = llama()
    model.get_parameter(name).view(-1)[-1] = value
    with pytest.raises(ModelError, match="of the draft holds values that are not finite"):
        quantize_model(float_model(model), POSITIONS)


def test_an_embedding_of_zeros_is_refused():
    model = llama()
    model.model.embed_tokens.weight.zero_()
    with pytest.raises(ModelError, match="embedding of the draft is zero everywhere"):
        quantize_model(float_model(model), POSITIONS)
