"""Training text: what a shard holds, and that interruption and sharing change nothing."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path

import numpy as np
import pytest
import torch

from dfvg_host.distill import generate as module
from dfvg_host.distill.generate import Chat, GenerateConfig, generate_block, generate_blocks
from dfvg_host.distill.shards import ANSWER, GIVEN, SOURCES, TURN, Shard, read_shard, write_shard
from dfvg_host.distill.slots import SlotModel
from dfvg_hw.errors import ModelError
from tests.host.distill.tiny import tiny_target, tiny_tokenizer

CONFIG = GenerateConfig(texts=12, rows=5, turn_tokens=10, answer_tokens=20, kept=8)


@pytest.fixture(autouse=True)
def accept_every_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A random target writes noise; its turns are kept so that they can be looked at."""
    monkeypatch.setattr(module, "usable_turn", lambda text: True)


def block(number: int = 0, config: GenerateConfig = CONFIG, seed: int = 1) -> Shard:
    target = tiny_target(seed)
    return generate_block(
        SlotModel(target.model, config.rows, 400), target.tokenizer, config, number
    )


def same(one: Shard, two: Shard) -> bool:
    return all(
        np.array_equal(a, b) for a, b in zip(vars(one).values(), vars(two).values(), strict=True)
    )


def plain_logits(text: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return tiny_target().model(torch.tensor([text])).logits[0]


def test_stored_probabilities_are_the_targets() -> None:
    shard = block()
    for text in range(shard.texts):
        span = shard.span(text)
        known = shard.top_logp[span, 0] > -np.inf
        want = plain_logits(shard.tokens[span].tolist()).log_softmax(-1)
        got = torch.from_numpy(shard.top_logp[span].astype(np.float32))
        ids = torch.from_numpy(shard.top_ids[span].astype(np.int64))
        assert known[:-1].sum() > 0
        assert not known[-1]  # the last token was never given to the target
        for at in np.flatnonzero(known):
            assert (want[at][ids[at]] - got[at]).abs().max() < 2e-2  # float16
            assert abs(float(got[at][0] - want[at].max())) < 2e-2


def test_greedy_answers_are_what_the_target_alone_writes() -> None:
    shard, greedy = block(config=GenerateConfig(texts=24, rows=5, answer_tokens=20, kept=8)), 0
    for text in range(shard.texts):
        span = shard.span(text)
        tokens = shard.tokens[span]
        answer = np.flatnonzero(shard.kinds[span] == ANSWER)
        best = plain_logits(tokens.tolist()).argmax(-1).numpy()
        greedy += bool((best[answer - 1] == tokens[answer]).all())
    assert 5 <= greedy <= 20  # half of the texts are greedy


def test_layout_of_texts() -> None:
    shard = block()
    chat = Chat(tiny_target().tokenizer)
    seen = set()
    for text in range(shard.texts):
        tokens, kinds = shard.tokens[shard.span(text)].tolist(), shard.kinds[shard.span(text)]
        source = SOURCES[shard.sources[text]]
        seen.add(source)
        if source == "plain":
            assert TURN not in kinds
            continue
        assert tokens[: len(chat.before)] == chat.before
        assert (kinds[: len(chat.before)] == GIVEN).all()
        start = int(np.argmax(kinds == ANSWER))
        assert tokens[start - len(chat.after) + 1 : start] == chat.after[1:]
        assert (kinds[start:] == ANSWER).all()
        assert (source == "self") == (TURN in kinds)
    assert {"template", "plain"} <= seen


def test_without_chat_template_all_is_plain() -> None:
    target = tiny_target(chat=False)
    slots = SlotModel(target.model, CONFIG.rows, 400)
    shard = generate_block(slots, target.tokenizer, CONFIG, 0)
    assert {SOURCES[s] for s in shard.sources} == {"plain"}


def test_self_written_turns_are_filtered(monkeypatch: pytest.MonkeyPatch) -> None:
    config = GenerateConfig(texts=40, rows=8, turn_tokens=200, answer_tokens=4, kept=260)
    with_turns = block(config=config)
    assert "self" in {SOURCES[s] for s in with_turns.sources}
    monkeypatch.setattr(module, "usable_turn", lambda text: False)
    assert "self" not in {SOURCES[s] for s in block(config=config).sources}


def test_blocks_are_functions_of_seed_and_number() -> None:
    assert same(block(3), block(3))
    assert not np.array_equal(block(3).tokens, block(4).tokens)
    other = GenerateConfig(seed=2, texts=12, rows=5, turn_tokens=10, answer_tokens=20, kept=8)
    assert not np.array_equal(block(3).tokens, block(3, other).tokens)


def test_interrupted_run_ends_like_an_uninterrupted_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generate_blocks(tiny_target(), tmp_path / "whole", 3, CONFIG)
    real, calls = module.generate_block, []

    def dies_in_second(*args: object) -> Shard:
        calls.append(args)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "generate_block", dies_in_second)
    with pytest.raises(KeyboardInterrupt):
        generate_blocks(tiny_target(), tmp_path / "cut", 3, CONFIG)
    assert len(list((tmp_path / "cut").glob("*.npz"))) == 1
    generate_blocks(tiny_target(), tmp_path / "cut", 3, CONFIG)
    assert len(calls) == 4  # the finished block was not made again
    for number in range(3):
        name = f"block-{number:05d}.npz"
        assert same(read_shard(tmp_path / "whole" / name), read_shard(tmp_path / "cut" / name))


def _work(folder: Path) -> None:
    module.usable_turn = lambda text: True
    generate_blocks(tiny_target(), folder, 4, CONFIG)


def test_two_processes_share_a_folder(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    jobs = [context.Process(target=_work, args=(tmp_path / "shared",)) for _ in range(2)]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
    generate_blocks(tiny_target(), tmp_path / "alone", 4, CONFIG)
    for number in range(4):
        name = f"block-{number:05d}.npz"
        assert same(read_shard(tmp_path / "shared" / name), read_shard(tmp_path / "alone" / name))
    assert not list((tmp_path / "shared").glob("*.tmp"))


def test_folder_refuses_other_settings(tmp_path: Path) -> None:
    generate_blocks(tiny_target(), tmp_path, 1, CONFIG)
    assert json.loads((tmp_path / "generate.json").read_text())["kept"] == 8
    other = GenerateConfig(texts=12, rows=5, turn_tokens=10, answer_tokens=20, kept=4)
    with pytest.raises(ModelError, match="made with kept 8, not 4: use another folder"):
        generate_blocks(tiny_target(), tmp_path, 1, other)
    with pytest.raises(ModelError, match="made with target tiny-1, not tiny-2"):
        generate_blocks(tiny_target(2), tmp_path, 1, CONFIG)


def test_damaged_shard_is_named(tmp_path: Path) -> None:
    path = tmp_path / "block-00000.npz"
    write_shard(path, block())
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ModelError, match=r"block-00000\.npz is not a usable training shard"):
        read_shard(path)


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{% for m in messages %}", "the chat template of the target fails: TemplateSyntaxError"),
        ("{{ messages[0].content | upper }}", "shows the user's message 0 times: expected once"),
        ("{{ messages[0].content * 2 }}", "shows the user's message 2 times: expected once"),
    ],
)
def test_chat_templates_that_cannot_be_used(template: str, text: str) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template
    with pytest.raises(ModelError, match=text):
        Chat(tokenizer)
