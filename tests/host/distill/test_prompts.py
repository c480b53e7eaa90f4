"""Training prompts keep away from the evaluation's kinds and texts."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from dfvg_host.distill import prompts
from dfvg_host.distill.dedupe import Deduper, word_ngrams
from dfvg_host.distill.heldout import (
    KINDS,
    demo_prompts,
    eval_prompts,
    looks_held_out,
    read_prompts,
)
from dfvg_host.distill.prompts import draw_prompt, usable_turn
from dfvg_hw.errors import ModelError


def test_evaluation_has_enough_prompts_of_every_kind() -> None:
    counts = Counter(prompt.kind for prompt in eval_prompts())
    assert set(counts) == set(KINDS)
    assert len(counts) >= 10
    assert sum(counts.values()) >= 120
    assert min(counts.values()) == max(counts.values())
    texts = [prompt.text for prompt in eval_prompts()]
    assert len(set(texts)) == len(texts)
    assert len(demo_prompts()) == 8


def test_no_template_or_word_is_of_a_held_out_kind() -> None:
    parts = [*prompts._TEMPLATES, *prompts._OPENINGS, *prompts.lists.STYLES]
    parts += [word for words in prompts._WORDS.values() for word in words]
    harmless = ["the periodic table"]  # "table" is there for databases
    assert [part for part in parts if looks_held_out(part)] == harmless


def test_the_filter_knows_its_kinds() -> None:
    """Nearly every evaluation prompt would have been refused as a training prompt."""
    missed = [prompt.text for prompt in eval_prompts() if not looks_held_out(prompt.text)]
    assert len(missed) <= 0.1 * len(eval_prompts()), missed
    assert not looks_held_out("Explain how a battery stores energy.")


def test_drawn_prompts_share_nothing_with_the_evaluation() -> None:
    dedupe = Deduper(prompt.text for prompt in eval_prompts() + demo_prompts())
    rng = random.Random(7)
    drawn = [draw_prompt(rng) for _ in range(5000)]
    assert not [p.text for p in drawn if p.text and dedupe.overlaps(p.text)]
    assert 0.45 < sum(p.temperature == 0 for p in drawn) / len(drawn) < 0.55
    assert 0.45 < sum(p.kind == "self" for p in drawn) / len(drawn) < 0.55
    assert all(0.6 <= p.temperature <= 1 for p in drawn if p.temperature)
    again = random.Random(7)
    assert drawn[:50] == [draw_prompt(again) for _ in range(50)]
    assert len({p.text for p in drawn}) > 2000


@pytest.mark.parametrize(
    ("text", "usable"),
    [
        ("How do magnets attract iron?", True),
        ("Hi there", False),
        ("12 + 33 * 4 = ? 1/7 $%& 88", False),
        ("the same the same the same the same the same the same the same", False),
        ("Give me a recipe for apple pie.", False),
        ("Plan a trip to the mountains for us.", False),
    ],
)
def test_usable_turns(text: str, usable: bool) -> None:
    assert usable_turn(text) is usable


def test_dedupe_refuses_overlap_and_repetition() -> None:
    dedupe = Deduper(["Write a poem about the old red house by the sea", "What am I?"])
    assert dedupe.accept("A fresh text about nothing.")
    assert not dedupe.accept("a FRESH text, about nothing")
    assert not dedupe.accept("He said: write a poem about the old red house, and left.")
    assert dedupe.accept("He said: write a poem about the old red horse, and left.")
    assert not dedupe.accept("Guess: what am I? A clock.")
    assert (dedupe.overlapping, dedupe.repeated) == (2, 1)


def test_word_ngrams() -> None:
    assert word_ngrams("One, two THREE", 2) == {("one", "two"), ("two", "three")}
    assert word_ngrams("one", 2) == {("one",)}
    assert word_ngrams("?!", 2) == set()


def test_bad_prompt_line_is_named() -> None:
    good = '{"kind": "x", "prompt": "y"}\n'
    assert read_prompts(good + "\n" + good, "p.jsonl")[1].text == "y"
    with pytest.raises(ModelError, match=r"p\.jsonl line 2 is not of the form"):
        read_prompts(good + '{"kind": "x"}\n', "p.jsonl")
    with pytest.raises(ModelError, match=r"p\.jsonl line 1 is not of the form"):
        read_prompts("hello", "p.jsonl")
