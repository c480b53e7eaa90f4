"""Acceptance of a draft on held-out prompts, with its uncertainty and by kind of prompt."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dfvg_host.models.cache import progress
from dfvg_hw.errors import ModelError

from .draft import Draft
from .generate import Chat
from .heldout import EvalPrompt
from .slots import SlotModel
from .tree_sim import Outcome, Text, TreeSettings, simulate

__all__ = ["Report", "evaluate", "target_texts"]

_RESAMPLES = 2000


@dataclass
class Report:
    """Acceptance length (committed tokens a verify step) over texts.

    Attributes
    ----------
    mean: of the texts' acceptance lengths. low, high: its 95 % bootstrap interval over texts.
    pooled: all tokens over all steps. pooled_low: lower end of its 95 % interval.
    kinds: mean by kind of prompt.
    texts, tokens: how many were decoded.
    alpha: share of rounds whose first token was among the verified candidates.
    """

    mean: float
    low: float
    high: float
    pooled: float
    pooled_low: float
    kinds: dict[str, float]
    texts: int
    tokens: int
    alpha: float

    def lines(self) -> list[str]:
        """Return the report for a terminal."""
        head = (
            f"acceptance length {self.mean:.3f} (95 % interval {self.low:.3f} to {self.high:.3f}), "
            f"pooled {self.pooled:.3f} (at least {self.pooled_low:.3f}), "
            f"{self.texts} prompts, {self.tokens} tokens"
        )
        return [head, *(f"  {kind:<14}{value:.3f}" for kind, value in self.kinds.items())]


def target_texts(
    target: Any, prompts: list[EvalPrompt], tokens: int, cache: Path | None = None
) -> list[Text]:
    """Let the target answer the prompts greedily, all side by side.

    Parameters
    ----------
    target: a `LoadedTarget`. The chat template is used if the tokenizer has one.
    prompts: at least one.
    tokens: longest answer.
    cache: JSON file to keep the answers in; one made for other prompts, another target or
        another length is ignored and replaced.

    Returns
    -------
    One `Text` a prompt.
    """
    key = [target.digest, target.dtype, tokens, [p.text for p in prompts]]
    if cache is not None and cache.exists():
        found = json.loads(cache.read_text())
        if found["key"] == key:
            return [Text(**item) for item in found["texts"]]
    chat = Chat(target.tokenizer)
    texts = [Text(p.kind, chat.before + chat.encode(p.text) + chat.after, []) for p in prompts]
    if not all(text.prompt for text in texts):
        raise ModelError("an evaluation prompt has no tokens")
    longest = max(len(text.prompt) for text in texts)
    slots = SlotModel(target.model, len(texts), longest + tokens)
    progress(f"the target answers {len(texts)} prompts")
    _answer(slots, texts, tokens, chat.end)
    if cache is not None:
        cache.write_text(json.dumps({"key": key, "texts": [vars(text) for text in texts]}))
    return texts


def _answer(slots: SlotModel, texts: list[Text], tokens: int, end: int) -> None:
    rows = list(texts)
    fed = 0
    while rows:
        step = [(row.prompt + row.answer)[fed] for row in rows]
        logits = slots.step(torch.tensor(step), torch.full((len(rows),), fed))
        fed += 1
        best = logits.argmax(-1).tolist()
        for i in range(len(rows) - 1, -1, -1):
            row = rows[i]
            if fed < len(row.prompt):
                continue
            row.answer.append(best[i])
            if best[i] == end or len(row.answer) == tokens:
                rows[i] = rows[-1]
                slots.move(len(rows) - 1, i)
                rows.pop()


def _interval(
    outcomes: list[Outcome], seed: int
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Bootstrap 95 % intervals of the mean of ratios and of the ratio of sums."""
    rng, means, pools = random.Random(seed), [], []
    for _ in range(_RESAMPLES):
        sample = rng.choices(outcomes, k=len(outcomes))
        means.append(sum(o.acceptance_length for o in sample) / len(sample))
        pools.append(sum(o.tokens for o in sample) / sum(o.steps for o in sample))
    low, high = int(0.025 * _RESAMPLES), int(0.975 * _RESAMPLES)
    means.sort()
    pools.sort()
    return (means[low], means[high]), (pools[low], pools[high])


def evaluate(
    draft: Draft, texts: list[Text], settings: TreeSettings | None = None, seed: int = 1
) -> Report:
    """Measure a draft on texts of the target.

    Parameters
    ----------
    draft: see `simulate`.
    texts: from `target_texts`.
    settings: lockstep, 8 passes of 8 rows, budget 16 by default.
    seed: of the bootstrap.
    """
    if not texts:
        raise ModelError("there are no texts to evaluate on")
    outcomes = simulate(draft, texts, settings or TreeSettings())
    kinds: dict[str, list[float]] = defaultdict(list)
    for text, outcome in zip(texts, outcomes, strict=True):
        kinds[text.kind].append(outcome.acceptance_length)
    interval, pooled = _interval(outcomes, seed)
    rounds = [count > 0 for outcome in outcomes for count in outcome.accepted]
    return Report(
        mean=sum(o.acceptance_length for o in outcomes) / len(outcomes),
        low=interval[0],
        high=interval[1],
        pooled=sum(o.tokens for o in outcomes) / sum(o.steps for o in outcomes),
        pooled_low=pooled[0],
        kinds={kind: sum(values) / len(values) for kind, values in kinds.items()},
        texts=len(texts),
        tokens=sum(o.tokens for o in outcomes),
        alpha=sum(rounds) / max(len(rounds), 1),
    )
