"""Narrower FFNs and other heads keep what they keep."""

from __future__ import annotations

import pytest
import torch

from dfvg_host.distill.dataset import Batch
from dfvg_host.distill.draft import make_draft
from dfvg_host.distill.reshape import narrow_ffn, with_head
from dfvg_hw.errors import ModelError
from tests.host.distill.tiny import tiny_llama

IDS = torch.arange(0, 128, 2)


def batch() -> Batch:
    tokens = torch.randint(3, 260, (4, 40), generator=torch.Generator().manual_seed(4))
    empty = torch.zeros(0)
    return Batch(tokens, empty, empty, empty)


def test_full_width_changes_nothing() -> None:
    draft, tokens = make_draft(tiny_llama(), IDS, [0, 2]), batch().tokens
    same = narrow_ffn(draft, [batch()], 128)
    assert torch.allclose(same.model(tokens).logits, draft.model(tokens).logits, atol=1e-5)


def test_dead_neurons_go_first() -> None:
    draft, tokens = make_draft(tiny_llama(), IDS, [0, 2]), batch().tokens
    with torch.no_grad():
        for layer in draft.model.model.layers:
            layer.mlp.down_proj.weight[:, 1::2] = 0
    small = narrow_ffn(draft, [batch()], 64)
    assert small.config.intermediate_size == 64
    assert small.model.model.layers[1].mlp.up_proj.weight.shape == (64, 64)
    assert torch.allclose(small.model(tokens).logits, draft.model(tokens).logits, atol=1e-5)
    assert draft.config.intermediate_size == 128


def test_unusable_width() -> None:
    draft = make_draft(tiny_llama(), IDS, [0])
    for width in (0, 100, 192):
        with pytest.raises(ModelError, match=f"multiple of 64 up to 128, not {width}"):
            narrow_ffn(draft, [batch()], width)


def test_new_head_keeps_old_rows() -> None:
    target = tiny_llama()
    draft = make_draft(target, IDS, [0, 2])
    with torch.no_grad():
        draft.model.lm_head.weight += 0.25
    wide = with_head(draft, target.lm_head.weight, torch.arange(0, 192))
    tokens = batch().tokens
    old, new = draft.model(tokens).logits, wide.model(tokens).logits
    assert new.shape[-1] == 192
    assert torch.allclose(new[..., IDS], old, atol=1e-4)
    # An id that is new gets the target's row and the same shift.
    want = target.lm_head.weight[1] + 0.25
    assert torch.allclose(wide.model.lm_head.weight[1], want, atol=1e-5)
