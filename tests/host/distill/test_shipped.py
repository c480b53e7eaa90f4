"""The shipped draft: what the files promise, and (slow) that it still drafts."""

from __future__ import annotations

import json
import subprocess

import pytest
import torch
from safetensors.torch import load_file

from dfvg_host.distill.checkpoint import load_draft, quantize_rows, shipped_draft
from dfvg_host.distill.heldout import KINDS, eval_prompts

FOLDER = shipped_draft()


def test_size_and_shape() -> None:
    tensors = load_file(FOLDER / "model.safetensors")
    config = json.loads((FOLDER / "config.json").read_text())
    assert (FOLDER / "model.safetensors").stat().st_size <= 14e6
    matrices = {name: value for name, value in tensors.items() if value.ndim == 2}
    assert all(value.dtype == torch.int8 for value in matrices.values())
    assert all(side % 64 == 0 for value in matrices.values() for side in value.shape)
    macs = sum(value.numel() for value in matrices.values())
    assert 8e6 <= macs <= 13e6
    assert macs == config["dfvg"]["macs_per_token"]
    assert not [name for name in tensors if "embed_tokens" in name]
    assert {0, 1, 2} <= set(config["draft_vocab"])  # end of text and chat markers
    assert len(config["draft_vocab"]) == tensors["lm_head.weight"].shape[0]
    assert config["vocab_size"] == 49152


def test_integers_survive_requantising() -> None:
    """A compiler that quantises the float weights by the same rule gets the same integers."""
    tensors = load_file(FOLDER / "model.safetensors")
    for name in ("lm_head.weight", "model.layers.0.mlp.down_proj.weight"):
        weight = tensors[name].float() * tensors[name + ".scale"][:, None]
        assert torch.equal(quantize_rows(weight)[0], tensors[name])


def test_notice_and_records_are_there() -> None:
    assert "Apache License" in (FOLDER / "NOTICE").read_text()
    report = json.loads((FOLDER / "evaluation.json").read_text())["held-out"]
    assert set(report["kinds"]) == set(KINDS)
    assert report["texts"] == len(eval_prompts())
    log = (FOLDER / "training-loss.csv").read_text().splitlines()
    assert log[0] == "run,step,tokens,block,rate,loss,tokens_per_second"
    losses = [float(line.split(",")[5]) for line in log[1:]]
    assert sum(losses[-20:]) < 0.5 * sum(losses[:20])


def test_weights_are_tracked_by_git() -> None:
    """`*.safetensors` is ignored elsewhere; a clone must hold this one."""
    listed = subprocess.run(
        ["git", "ls-files", "--error-unmatch", "model.safetensors"],
        cwd=FOLDER,
        capture_output=True,
        check=False,
    )
    if b"not a git repository" in listed.stderr:
        pytest.skip("not a git checkout")
    assert listed.returncode == 0


@pytest.mark.slow
def test_it_still_drafts() -> None:
    """A few held-out prompts, short: well above plain decoding, near what is recorded."""
    from dfvg_host.distill.evaluate import evaluate, target_texts
    from dfvg_host.models import load_target

    target = load_target()
    draft = load_draft(FOLDER, target.model)
    assert draft.record["target_digest"] == target.digest
    report = evaluate(draft, target_texts(target, eval_prompts()[::8], 48))
    recorded = json.loads((FOLDER / "evaluation.json").read_text())["held-out"]["mean"]
    assert report.mean > 0.8 * recorded
