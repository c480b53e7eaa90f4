import math

import numpy as np
import pytest
import torch

from dfvg_host.verify import Sampler, SamplingParams, uniform
from dfvg_hw.errors import ModelError, UsageError


def reference_support(logits, temperature, top_k, top_p):
    """Temperature, top-k, top-p by one full sort, in the order (probability, id)."""
    scaled = np.asarray(logits, np.float64) / temperature
    order = sorted(range(len(scaled)), key=lambda token: (-scaled[token], token))
    if top_k:
        order = order[:top_k]
    weights = np.exp(scaled[order] - scaled[order[0]])
    mass = np.cumsum(weights) / weights.sum()
    count = int(np.searchsorted(mass, top_p, side="left")) + 1 if top_p < 1 else len(order)
    return sorted(order[:count])


@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.7])
@pytest.mark.parametrize("top_k", [0, 1, 7, 500])
@pytest.mark.parametrize("top_p", [1e-9, 0.5, 0.9, 0.999, 1.0])
def test_support_equals_a_full_sort(temperature, top_k, top_p):
    generator = torch.Generator().manual_seed(3)
    for scale in (0.1, 2.0, 8.0):
        logits = torch.randn(400, generator=generator) * scale
        logits[50:60] = logits[50]  # ties, some of them across the border
        ids, weights = Sampler(SamplingParams(temperature, top_k, top_p)).support(logits)
        assert ids.tolist() == reference_support(logits, temperature, top_k, top_p)
        assert (weights > 0).all()


def test_draws_follow_the_distribution():
    logits = torch.tensor([0.0, 1.0, -math.inf, 2.0, 0.5])
    sampler = Sampler(SamplingParams(temperature=0.8, seed=5))
    count = 20000
    drawn = np.bincount([sampler.draw(logits, index).token for index in range(count)], minlength=5)
    expected = torch.softmax(logits.double() / 0.8, 0).numpy() * count
    assert drawn[2] == 0
    chi2 = ((drawn - expected) ** 2 / np.maximum(expected, 1e-9))[expected > 0].sum()
    assert chi2 < 18.5  # 3 degrees of freedom, p = 0.0004


def test_draw_inverts_the_distribution_function_in_id_order():
    logits = torch.log(torch.tensor([0.1, 0.4, 0.2, 0.3], dtype=torch.float64))
    sampler = Sampler(SamplingParams(temperature=1.0, seed=9))
    edges = np.cumsum([0.1, 0.4, 0.2, 0.3])
    for index in range(200):
        u = uniform(9, 0, index)
        draw = sampler.draw(logits, index)
        assert draw.token == int((edges <= u).sum())
        inner = edges[:3]
        assert draw.margin == pytest.approx(
            min(
                abs(u - edge)
                for edge in inner
                if edge in (inner[max(0, draw.token - 1)], inner[min(2, draw.token)])
            ),
            abs=1e-12,
        )


def test_a_draw_depends_on_seed_sample_and_index_only():
    logits = torch.zeros(1000)
    draws = [
        [
            Sampler(SamplingParams(1.0, seed=seed, sample=sample)).draw(logits, i).token
            for i in range(20)
        ]
        for seed, sample in ((0, 0), (0, 0), (1, 0), (0, 1))
    ]
    assert draws[0] == draws[1]
    assert draws[0] != draws[2]
    assert draws[0] != draws[3]
    assert draws[0] != draws[0][1:] + draws[0][:1]


def test_near_ties_that_swap_ranks_move_no_interval():
    sampler = Sampler(SamplingParams(temperature=1.0, seed=2))
    one, other = torch.zeros(50), torch.zeros(50)
    one[10], other[40] = 1e-6, 1e-6
    assert all(
        sampler.draw(one, index).token == sampler.draw(other, index).token for index in range(500)
    )


@pytest.mark.parametrize("temperature", [0.0, 1e-6, 9.9e-6])
def test_cold_is_greedy_with_the_lowest_id_first(temperature):
    sampler = Sampler(SamplingParams(temperature=temperature, top_k=3, top_p=0.5))
    logits = torch.tensor([1e30, 3e30, 3e30, -math.inf])
    draw = sampler.draw(logits, 12)
    assert (draw.token, draw.margin) == (1, 0.0)
    assert sampler.draw(torch.tensor([1.0, 4.0, 3.5]), 0).margin == pytest.approx(0.5)


def test_single_choice_has_no_edge():
    draw = Sampler(SamplingParams(temperature=1.0, top_k=1)).draw(torch.arange(5.0), 0)
    assert (draw.token, draw.margin) == (4, math.inf)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_broken_logits_are_an_error(temperature):
    sampler = Sampler(SamplingParams(temperature))
    with pytest.raises(ModelError, match="NaN or no finite"):
        sampler.draw(torch.tensor([0.0, math.nan]), 0)
    with pytest.raises(ModelError, match="NaN or no finite"):
        sampler.draw(torch.full((4,), -math.inf), 0)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"temperature": -0.1}, "temperature is -0.1: expected a number, 0 or more"),
        ({"temperature": math.nan}, "temperature"),
        ({"temperature": math.inf}, "temperature"),
        ({"top_k": -1}, "top_k is -1"),
        ({"top_p": 0.0}, "top_p is 0.0: expected a number above 0"),
        ({"top_p": 1.01}, "top_p"),
        ({"seed": -1}, "seed"),
        ({"seed": 1 << 64}, "seed"),
        ({"sample": -1}, "sample"),
    ],
)
def test_parameter_ranges(arguments, text):
    with pytest.raises(UsageError, match=text):
        SamplingParams(**arguments)
