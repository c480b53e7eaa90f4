"""The estimator of tree decoding against a plain, one-text, one-row-at-a-time model of it."""

from __future__ import annotations

import heapq
from pathlib import Path
from typing import Any

import pytest
import torch

from dfvg_host.distill.draft import Draft, make_draft
from dfvg_host.distill.evaluate import evaluate, target_texts
from dfvg_host.distill.heldout import EvalPrompt
from dfvg_host.distill.tree_sim import Outcome, Text, TreeSettings, simulate
from dfvg_hw.errors import ModelError
from tests.host.distill.tiny import tiny_llama, tiny_target

PROMPTS = [EvalPrompt("a", "hello"), EvalPrompt("a", "tell me more"), EvalPrompt("b", "x" * 30)]


def answers(tokens: int = 40) -> list[Text]:
    return target_texts(tiny_target(), PROMPTS, tokens)


def whole() -> Draft:
    return make_draft(tiny_llama(), torch.arange(260), [0, 1, 2])


def weak() -> Draft:
    return make_draft(tiny_llama(), torch.arange(0, 260), [0, 2])


def test_texts_are_the_targets_greedy_text() -> None:
    target = tiny_target()
    for text, prompt in zip(answers(), PROMPTS, strict=True):
        rendered = target.tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt.text}], tokenize=False, add_generation_prompt=True
        )
        assert text.prompt == target.tokenizer(rendered, add_special_tokens=False).input_ids
        ids = list(text.prompt)
        for token in text.answer:
            assert token == int(target.model(torch.tensor([ids])).logits[0, -1].argmax())
            ids.append(token)
        assert len(text.answer) == 40 or text.answer[-1] == 2


def test_text_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = target_texts(tiny_target(), PROMPTS, 10, tmp_path / "c.json")
    monkeypatch.setattr("dfvg_host.distill.evaluate._answer", None)  # would fail if called
    assert target_texts(tiny_target(), PROMPTS, 10, tmp_path / "c.json") == first
    with pytest.raises(TypeError):
        target_texts(tiny_target(), PROMPTS, 11, tmp_path / "c.json")


def test_draft_that_is_the_target_accepts_all() -> None:
    """A chain as deep as the passes allow is accepted whole: 1 + passes tokens a round."""
    texts = [Text("a", text.prompt, text.answer[:37]) for text in answers()]
    settings = TreeSettings(passes=3, rows=1, budget=8, children=1)
    for outcome in simulate(whole(), texts, settings):
        assert outcome == Outcome(37, 1 + 9, [3] * 9)
    report = evaluate(whole(), texts, settings)
    for value in (report.mean, report.low, report.high, report.pooled):
        assert value == pytest.approx(3.7)
    assert report.kinds == {"a": pytest.approx(3.7)}
    assert report.alpha == 1


def test_no_budget_is_plain_decoding() -> None:
    report = evaluate(whole(), answers(), TreeSettings(budget=0))
    assert report.mean == report.pooled == 1
    assert report.tokens == sum(len(text.answer) for text in answers())


def slow_outcome(draft: Draft, text: Text, settings: TreeSettings) -> Outcome:
    """The same rules with a heap, whole-context forward passes and no cache."""

    def children(path: list[int], root: list[int]) -> list[tuple[float, int]]:
        logits = draft.model(torch.tensor([root + path])).logits[0, -1]
        values, rows = logits.log_softmax(-1).topk(settings.children)
        return list(zip(values.tolist(), draft.output_ids[rows].tolist(), strict=True))

    outcome, done = Outcome(1, 1), 1
    while done < len(text.answer):
        root = text.prompt + text.answer[:done]
        found: list[tuple[float, tuple[int, ...]]] = []
        heap: list[tuple[float, tuple[int, ...]]] = []

        def add(
            score: float,
            path: tuple[int, ...],
            root: Any = root,
            found: Any = found,
            heap: Any = heap,
        ) -> None:
            for logp, token in children(list(path), root):
                found.append((score + logp, (*path, token)))
                heapq.heappush(heap, (-(score + logp), (*path, token)))

        add(0.0, ())
        for _ in range(settings.passes - 1):
            taken = [heapq.heappop(heap) for _ in range(min(settings.rows, len(heap)))]
            for negative, path in taken:
                add(-negative, path)
        best = {path for _, path in sorted(found, reverse=True)[: settings.budget]}
        count = 0
        while tuple(text.answer[done : done + count + 1]) in best and done + count < len(
            text.answer
        ):
            count += 1
        left = len(text.answer) - done
        outcome.accepted.append(min(count, left))
        outcome.tokens += min(count + 1, left)
        outcome.steps += 1
        done += count + 1
    return outcome


@pytest.mark.parametrize(
    "settings",
    [
        TreeSettings(passes=4, rows=3, budget=6, children=4),
        TreeSettings(passes=1, rows=8, budget=2, children=3),
        TreeSettings(passes=5, rows=2, budget=16, children=2),
    ],
)
@pytest.mark.parametrize("make", [whole, weak])
def test_batched_estimate_equals_the_plain_model(make: object, settings: TreeSettings) -> None:
    texts = answers(24)
    texts[1].answer = texts[1].answer[:1]  # nothing left to draft
    got = simulate(make(), texts, settings)  # type: ignore[operator]
    with torch.inference_mode():
        draft = make()  # type: ignore[operator]
        assert got == [slow_outcome(draft, text, settings) for text in texts]


def test_interval_covers_the_mean_and_reproduces() -> None:
    report = evaluate(weak(), answers(), TreeSettings(passes=3, rows=2, budget=4, children=4))
    again = evaluate(weak(), answers(), TreeSettings(passes=3, rows=2, budget=4, children=4))
    assert report == again
    assert 1 <= report.low <= report.mean <= report.high
    assert set(report.kinds) == {"a", "b"}
    assert "3 prompts" in report.lines()[0]


def test_no_texts() -> None:
    with pytest.raises(ModelError, match="no texts to evaluate on"):
        evaluate(whole(), [])
