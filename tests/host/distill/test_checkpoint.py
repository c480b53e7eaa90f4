"""The draft folder: int8 there and back, and refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from dfvg_host.distill.checkpoint import load_draft, quantize_rows, save_draft
from dfvg_host.distill.draft import make_draft
from dfvg_hw.errors import ModelError
from tests.host.distill.tiny import tiny_llama

IDS = torch.arange(1, 129, 2)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_draft(tmp_path / "d", make_draft(tiny_llama(), IDS, [0, 2]), {"target": "tiny"})
    return tmp_path / "d"


def change(folder: Path, **values: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **values}))


def test_quantised_rows() -> None:
    weight = torch.randn(5, 40, generator=torch.Generator().manual_seed(2))
    weight[3] = 0
    q, scale = quantize_rows(weight)
    assert q.dtype == torch.int8
    assert (q.abs().amax(1) == torch.tensor([127, 127, 127, 0, 127])).all()
    assert ((q * scale[:, None] - weight).abs() <= scale[:, None] / 2 + 1e-7).all()
    again, scale_again = quantize_rows(q * scale[:, None])
    assert torch.equal(q, again)
    assert torch.allclose(scale, scale_again)


def test_round_trip(folder: Path) -> None:
    made = make_draft(tiny_llama(), IDS, [0, 2])
    read = load_draft(folder, tiny_llama())
    assert torch.equal(read.output_ids, IDS)
    assert read.record["target"] == "tiny"
    assert read.config.num_hidden_layers == 2
    assert read.config.vocab_size == 260
    assert len(read.digest) == 64
    for name, value in made.trained().items():
        got = read.trained()[name]
        if value.ndim == 2:
            q, scale = read.int8[name]
            assert torch.equal(got, q * scale[:, None])
            assert torch.equal(q, quantize_rows(value)[0])
        else:
            assert torch.equal(got, value)
    tokens = torch.arange(3, 30)[None]
    close = (read.model(tokens).logits - made.model(tokens).logits).abs().max()
    assert 0 < close < 0.5
    assert not read.model.training


def test_small_and_without_embedding(folder: Path) -> None:
    size = (folder / "model.safetensors").stat().st_size
    made = make_draft(tiny_llama(), IDS, [0, 2])
    matrices = sum(v.numel() for v in made.trained().values() if v.ndim == 2)
    assert matrices < size < 1.2 * matrices + 8192
    assert (folder / "model.safetensors").stat().st_mode & 0o777 == 0o644
    assert "name_or_path" not in (folder / "config.json").read_text()


def test_embedding_is_the_targets(folder: Path) -> None:
    other = load_draft(folder, tiny_llama(seed=9))
    table = tiny_llama(seed=9).get_input_embeddings().weight
    assert torch.equal(other.model.get_input_embeddings().weight, table)


def test_wrong_target(folder: Path) -> None:
    with pytest.raises(ModelError, match="draft d has vocabulary 260, the target has 300"):
        load_draft(folder, tiny_llama(vocabulary=300))
    with pytest.raises(ModelError, match="draft d has hidden size 64, the target has 128"):
        load_draft(folder, tiny_llama(hidden=128))


def test_damaged_folders(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"is not a draft folder: it has no config\.json"):
        load_draft(tmp_path, tiny_llama())
    change(folder, dfvg={"format": "dfvg-draft", "version": 9})
    with pytest.raises(ModelError, match="has format dfvg-draft 9, read is dfvg-draft 1"):
        load_draft(folder, tiny_llama())
    change(folder, dfvg={"format": "dfvg-draft", "version": 1}, draft_vocab=[5, 3])
    with pytest.raises(ModelError, match="draft_vocab must be ascending ids below vocab_size 260"):
        load_draft(folder, tiny_llama())
    change(folder, draft_vocab=list(range(128)))
    with pytest.raises(ModelError, match=r"lacks a usable tensor lm_head\.weight of shape \(128"):
        load_draft(folder, tiny_llama())
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(ModelError, match=r"model\.safetensors cannot be read"):
        load_draft(folder, tiny_llama())
    (folder / "config.json").write_text("{}")
    with pytest.raises(ModelError, match=r"config\.json is not a draft's config: no usable 'dfvg'"):
        load_draft(folder, tiny_llama())


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"vocab_size": None}, "has the vocab_size None: expected a whole number, 1 or more"),
        ({"hidden_size": "x"}, "has the hidden_size 'x': expected a whole number"),
        ({"num_hidden_layers": 0}, "has the num_hidden_layers 0: expected a whole number"),
        ({"num_attention_heads": 0}, "has the num_attention_heads 0: expected a whole number"),
        ({"max_position_embeddings": "x"}, r"config\.json cannot be used: .*max_position_embedd"),
        ({"draft_vocab": 5}, "draft_vocab must be ascending ids"),
        ({"draft_vocab": [1, "a"]}, "draft_vocab must be ascending ids"),
        ({"draft_vocab": [[1], [2]]}, "draft_vocab must be ascending ids"),
        ({"draft_vocab": [0.5, 2]}, "draft_vocab must be ascending ids"),
        ({"dfvg": [1]}, "is not a draft's config"),
    ],
)
def test_odd_values_in_the_config(folder: Path, changes: dict[str, object], text: str) -> None:
    change(folder, **changes)
    with pytest.raises(ModelError, match=text) as caught:
        load_draft(folder, tiny_llama())
    assert "\n" not in str(caught.value)


def test_scales_of_another_shape(folder: Path) -> None:
    path = folder / "model.safetensors"
    state = load_file(path)
    state["lm_head.weight.scale"] = state["lm_head.weight.scale"][:5].clone()
    save_file(state, path)
    with pytest.raises(ModelError, match=r"lacks a usable tensor lm_head\.weight\.scale of shape"):
        load_draft(folder, tiny_llama())
