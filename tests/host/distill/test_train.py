"""Training: the loss is KL, it falls, and an interrupted run ends like an uninterrupted one."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from dfvg_host.distill import dataset as dataset_module
from dfvg_host.distill import generate as generate_module
from dfvg_host.distill.dataset import TextFolder, choose_head_ids
from dfvg_host.distill.draft import Draft, macs_per_token, make_draft
from dfvg_host.distill.generate import GenerateConfig, generate_blocks
from dfvg_host.distill.shards import ANSWER, read_shard
from dfvg_host.distill.train import TrainConfig, Trainer, distill_loss
from dfvg_hw.errors import ModelError
from tests.host.distill.tiny import tiny_llama, tiny_target

BLOCKS = 3
CONFIG = TrainConfig(epochs=2, batch_tokens=1024, rate=3e-3, bf16=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generate_module, "usable_turn", lambda text: True)
        config = GenerateConfig(texts=24, rows=12, turn_tokens=10, answer_tokens=30, kept=64)
        generate_blocks(tiny_target(), path, BLOCKS, config)
    return path


def texts(folder: Path, evaluation: list[str] | None = None) -> TextFolder:
    return TextFolder(folder, BLOCKS, tiny_target().tokenizer, evaluation or [])


def draft(folder: Path, rows: int = 128, layers: list[int] | None = None) -> Draft:
    ids = choose_head_ids(texts(folder).use_of_ids(BLOCKS), rows, [0, 1, 2])
    return make_draft(tiny_llama(), ids, layers or [0, 2])


def test_loss_is_kl_within_the_head() -> None:
    generator = torch.Generator().manual_seed(5)
    logits = torch.randn(7, 4, generator=generator)
    lookup = torch.tensor([-1, 0, 1, -1, 2, 3])
    top_ids = torch.tensor([[1, 3, 4]] * 7)
    top_p = torch.rand(7, 3, generator=generator) / 3
    got = distill_loss(logits, top_ids, top_p, lookup)
    for row in range(7):
        mass = top_p[row, 0] + top_p[row, 2]
        target = torch.zeros(4)
        target[0], target[2] = top_p[row, 0] / mass, top_p[row, 2] / mass
        kl = torch.nn.functional.kl_div(
            logits[row].log_softmax(-1), target, reduction="sum"
        )  # the part of the target outside the head only scales it
        assert got[row].item() == pytest.approx((mass * kl).item(), abs=1e-5)
    outside = distill_loss(logits, torch.zeros(7, 3, dtype=torch.long), top_p, lookup)
    assert outside.abs().max() == 0


def test_kl_falls(folder: Path, tmp_path: Path) -> None:
    config = TrainConfig(epochs=12, batch_tokens=1024, rate=3e-3, bf16=False)
    Trainer(draft(folder), texts(folder), tmp_path, config).run()
    with open(tmp_path / "loss.csv") as file:
        losses = [float(row["loss"]) for row in csv.DictReader(file)]
    assert sum(losses[-9:]) < 0.7 * sum(losses[:9])


def test_frozen_embedding_and_trained_rest(folder: Path, tmp_path: Path) -> None:
    made = draft(folder)
    before = {name: value.clone() for name, value in made.model.state_dict().items()}
    Trainer(made, texts(folder), tmp_path, CONFIG).run(max_steps=3)
    for name, value in made.model.state_dict().items():
        assert torch.equal(value, before[name]) == ("embed_tokens" in name), name


def test_resumed_run_equals_uninterrupted(folder: Path, tmp_path: Path) -> None:
    whole = Trainer(draft(folder), texts(folder), tmp_path / "whole", CONFIG).run()
    for part in (4, 5, None):  # each time from nothing but the folder
        cut = Trainer(draft(folder), texts(folder), tmp_path / "cut", CONFIG).run(part)
    for name, value in whole.trained().items():
        assert torch.equal(value, cut.trained()[name]), name
    logs = []
    for name in ("whole", "cut"):
        with open(tmp_path / name / "loss.csv") as file:
            logs.append([list(row.values())[:5] for row in csv.DictReader(file)])
    assert logs[0] == logs[1]


def test_crash_after_last_save_repeats_its_steps(folder: Path, tmp_path: Path) -> None:
    """Log lines of steps that were lost with the crash are not kept twice."""
    Trainer(draft(folder), texts(folder), tmp_path, CONFIG).run(3)
    log = tmp_path / "loss.csv"
    log.write_text(log.read_text() + "4,1,0,1e-3,9.0,1\n")
    Trainer(draft(folder), texts(folder), tmp_path, CONFIG).run(2)
    with open(log) as file:
        assert [row["step"] for row in csv.DictReader(file)] == ["1", "2", "3", "4", "5"]
    assert "9.0" not in log.read_text()


def test_run_folder_refuses_other_settings(folder: Path, tmp_path: Path) -> None:
    Trainer(draft(folder), texts(folder), tmp_path, CONFIG).run(1)
    other = TrainConfig(epochs=3, batch_tokens=1024, rate=3e-3, bf16=False)
    with pytest.raises(ModelError, match="a run with epochs 2, not 3: use another folder"):
        Trainer(draft(folder), texts(folder), tmp_path, other)
    with pytest.raises(ModelError, match="a run with layers 2, not 1"):
        Trainer(draft(folder, layers=[0]), texts(folder), tmp_path, CONFIG)


def test_rate_warms_up_and_falls() -> None:
    config = TrainConfig(rate=1.0, warmup=0.1, final=0.02)
    assert config.rate_at(0.05) == pytest.approx(0.5)
    assert config.rate_at(0.1) == pytest.approx(1.0)
    assert config.rate_at(0.55) == pytest.approx(0.51)
    assert config.rate_at(1.0) == pytest.approx(0.02)


def test_batches_hold_every_usable_text_once(folder: Path) -> None:
    source = texts(folder)
    shard = read_shard(folder / "block-00001.npz")
    batches = [make() for make in source.batches(1, 0, 1, 512)]
    rows = sum(len(batch.tokens) for batch in batches)
    assert rows == len(source.usable(1, shard)) > 5
    assert all(batch.tokens.numel() <= 512 for batch in batches)
    full = sum(int((batch.weights == 1).sum()) for batch in batches)
    answers = [
        int((shard.kinds[shard.span(i)][1:] == ANSWER).sum()) for i in source.usable(1, shard)
    ]
    assert full == sum(answers)
    assert all((batch.top_p[batch.weights > 0].sum(-1) > 0.1).all() for batch in batches)


def test_evaluation_text_is_left_out(folder: Path) -> None:
    shard = read_shard(folder / "block-00000.npz")
    tokenizer = tiny_target().tokenizer
    everything = texts(folder).usable(0, shard)
    victim = everything[3]
    text = tokenizer.decode(shard.tokens[shard.span(victim)].tolist(), skip_special_tokens=True)
    kept = texts(folder, [text]).usable(0, shard)
    assert victim not in kept
    assert kept


def test_missing_block(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short = TextFolder(folder, BLOCKS + 1, tiny_target().tokenizer, [])
    with pytest.raises(ModelError, match="lacks block 3 of 0 to 3"):
        short.use_of_ids(BLOCKS + 1)
    waited = []

    def arrive(seconds: float) -> None:
        waited.append(seconds)
        source = folder / "block-00000.npz"
        (folder / "block-00003.npz").write_bytes(source.read_bytes())

    monkeypatch.setattr(dataset_module.time, "sleep", arrive)
    patient = TextFolder(folder, BLOCKS + 1, tiny_target().tokenizer, [], wait=True)
    try:
        assert patient.batches(3, 0, 1, 512) == []  # the copy repeats block 0: all left out
    finally:
        (folder / "block-00003.npz").unlink()
    assert len(waited) == 1


def test_use_of_ids(folder: Path) -> None:
    want = torch.zeros(260, dtype=torch.float64)
    for block in range(2):
        shard = read_shard(folder / f"block-{block:05d}.npz")
        for text in texts(folder).usable(block, shard):
            span, one = shard.span(text), torch.zeros(260, dtype=torch.float64)
            for at in range(span.start, span.stop - 1):
                if shard.kinds[at + 1] == ANSWER:
                    for token, logp in zip(shard.top_ids[at], shard.top_logp[at], strict=True):
                        one[int(token)] += math.exp(logp)
            want += one.sqrt()
    got = torch.from_numpy(texts(folder).use_of_ids(2))
    assert torch.allclose(got, want[: len(got)])
    assert (got > 0).sum() > 100


def test_head_ids() -> None:
    use = np.append(np.zeros(3), 1000.0 - np.arange(3, 200))
    ids = choose_head_ids(use, 64, [0, 1, 2])
    assert ids.tolist() == list(range(64))
    assert choose_head_ids(use, 64, [199]).tolist()[-1] == 199
    with pytest.raises(ModelError, match="multiple of 64, not 100"):
        choose_head_ids(use, 100, [])
    with pytest.raises(ModelError, match="only 197 distinct ids, 256 head rows"):
        choose_head_ids(use, 256, [])


def test_draft_shape_and_start() -> None:
    target, ids = tiny_llama(), torch.arange(0, 128, 2)
    made = make_draft(target, ids, [2, 0])
    assert macs_per_token(made) == 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128) + 64 * 64
    assert torch.equal(made.model.lm_head.weight, target.lm_head.weight[ids])
    ours, theirs = made.model.model.layers, target.model.layers
    assert torch.equal(ours[0].mlp.up_proj.weight, theirs[2].mlp.up_proj.weight)
    assert made.model(torch.tensor([[1, 2, 259]])).logits.shape == (1, 3, 64)
    every = make_draft(target, torch.arange(260), [0, 1, 2])
    tokens = torch.arange(3, 30)[None]
    assert torch.allclose(every.model(tokens).logits, target(tokens).logits, atol=1e-5)


def test_unusable_drafts() -> None:
    ids = torch.arange(64)
    with pytest.raises(ModelError, match="layer 3 is not one of the target's 0 to 2"):
        make_draft(tiny_llama(), ids, [0, 3])
    with pytest.raises(ModelError, match="needs at least one layer, not 0"):
        make_draft(tiny_llama(), ids, [])
    with pytest.raises(ModelError, match="ids below the vocabulary size 260"):
        make_draft(tiny_llama(), torch.tensor([260]), [0])
