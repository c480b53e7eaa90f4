"""The device's integers on a real model: a datapath mistake anywhere would show here."""

import json
from pathlib import Path

import pytest

import dfvg_host
from dfvg_hw.config import PAGE, get_config

PROMPTS = Path(dfvg_host.__file__).parent / "data" / "eval_prompts.jsonl"


@pytest.mark.slow
def test_smollm2_keeps_its_choices():
    from dfvg_host.compile.source import float_model
    from dfvg_host.models import load_target
    from dfvg_host.quantize import quantize_model, rotate
    from dfvg_host.quantize.fidelity import greedy_texts, measure

    target = load_target("smollm2-135m-instruct")
    prompts = [json.loads(line)["prompt"] for line in PROMPTS.read_text().splitlines()][::26]
    texts = greedy_texts(target, prompts, 64)
    config = get_config("sim")
    integers = quantize_model(rotate(float_model(target.model)), config.seq_pages * PAGE)
    result = measure(target.model, integers, texts, config)
    # 0.955 and 0.0094 over 1,457 positions (docs/numerics.md); room for three standard errors.
    assert result.positions > 250
    assert result.kl < 0.0125
    assert result.top1 > 0.955 - 3 * result.top1_error
