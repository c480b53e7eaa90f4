"""A fast estimate of tree decoding: many prompts side by side, in floating point.

The target's greedy text does not depend on the draft, so it is written once and acceptance is
found by walking drafted trees along it. The draft's keys for the committed text are computed in
one forward pass; only tree rows are run pass by pass. The tree is drafted anew every round
(lockstep, nothing survives a verdict), which makes the estimate slightly pessimistic.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from .draft import Draft
from .slots import use_grouped_attention

__all__ = ["Outcome", "Text", "TreeSettings", "simulate"]

_NEVER = float("-inf")


@dataclass(frozen=True)
class TreeSettings:
    """How trees are drafted and verified.

    Attributes
    ----------
    passes: draft passes a round; the first one runs the root (and the catch-up) alone.
    rows: most nodes expanded by a pass, best cumulative log-probability first.
    budget: candidates verified, best cumulative log-probability first; 0 is plain decoding.
    children: candidates that an expanded node gets.
    """

    passes: int = 8
    rows: int = 8
    budget: int = 16
    children: int = 8


@dataclass
class Text:
    """A prompt and what the target answers to it (greedy, end token included if it came)."""

    kind: str
    prompt: list[int]
    answer: list[int]


@dataclass
class Outcome:
    """What decoding one text took.

    Attributes
    ----------
    tokens: tokens committed. steps: verify steps, the prefill's token counted as one.
    accepted: accepted candidates of each round.
    """

    tokens: int
    steps: int
    accepted: list[int] = field(default_factory=list)

    @property
    def acceptance_length(self) -> float:
        """Committed tokens a verify step."""
        return self.tokens / self.steps


class _TreeCache:
    """Keys and values: committed text at 0 .. length - 1, tree slots behind it."""

    is_compileable = False

    def __init__(self, layers: int, slots: int) -> None:
        self.keys: list[Any] = [None] * layers
        self.values: list[Any] = [None] * layers
        self.slots, self.write_at = slots, 0

    def update(self, key: Any, value: Any, layer: int, *_: Any, **__: Any) -> tuple[Any, Any]:
        if self.keys[layer] is None:
            shape = (*key.shape[:2], key.shape[2] + self.slots, key.shape[3])
            for store, new in ((self.keys, key), (self.values, value)):
                store[layer] = torch.zeros(shape, dtype=new.dtype)
                store[layer][:, :, : new.shape[2]] = new
            return key, value
        part = slice(self.write_at, self.write_at + key.shape[2])
        self.keys[layer][:, :, part] = key
        self.values[layer][:, :, part] = value
        return self.keys[layer][:, :, : part.stop], self.values[layer][:, :, : part.stop]

    def get_seq_length(self, *_: Any) -> int:
        return 0

    def select(self, rows: torch.Tensor) -> None:
        for store in (self.keys, self.values):
            for layer, tensor in enumerate(store):
                store[layer] = tensor[rows]


class _Runner:
    """The draft with its keys of the committed text, for a batch of texts."""

    def __init__(self, draft: Draft, texts: list[Text], settings: TreeSettings) -> None:
        self.draft, self.settings = draft, settings
        use_grouped_attention(draft.model)
        full = [text.prompt + text.answer for text in texts]
        self.length = max(map(len, full))
        self.tokens = torch.zeros(len(texts), self.length, dtype=torch.long)
        for row, ids in enumerate(full):
            self.tokens[row, : len(ids)] = torch.tensor(ids)
        self.slots = settings.rows * (settings.passes - 1)
        self.cache = _TreeCache(draft.config.num_hidden_layers, self.slots)
        mask = torch.ones(1, 1, self.length, self.length, dtype=torch.bool).tril()
        positions = torch.arange(self.length)[None]
        hidden = self._hidden(self.tokens, mask, positions)
        parts = [self._children(part) for part in hidden.split(8)]  # logits take memory
        self.root_ids = torch.cat([ids for ids, _ in parts])
        self.root_logp = torch.cat([logp for _, logp in parts])

    def _hidden(self, ids: torch.Tensor, mask: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        out = self.draft.model.model(
            input_ids=ids, attention_mask=mask, position_ids=at, cache=self.cache
        )
        return out.last_hidden_state

    def _children(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logp = self.draft.model.lm_head(hidden).float().log_softmax(-1)
        values, rows = logp.topk(min(self.settings.children, logp.shape[-1]))
        return self.draft.output_ids[rows], values

    def select(self, rows: torch.Tensor) -> None:
        """Keep only some texts."""
        self.tokens, self.root_ids = self.tokens[rows], self.root_ids[rows]
        self.root_logp = self.root_logp[rows]
        self.cache.select(rows)

    def expand(
        self,
        ids: torch.Tensor,
        depth: torch.Tensor,
        roots: torch.Tensor,
        tree: torch.Tensor,
        first_slot: int,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Run tree rows; returns their children's ids and log-probabilities.

        ids, depth: (texts, rows); roots: (texts,) position of the root; tree: (texts, rows,
        slots used) True for a row's ancestors and itself; rows go to slots from ``first_slot``.
        """
        self.cache.write_at = self.length + first_slot
        text = torch.arange(self.length)[None] <= roots[:, None]
        text = text[:, None].expand(-1, ids.shape[1], -1)
        mask = torch.cat([text, tree], 2)[:, None]
        return self._children(self._hidden(ids, mask, roots[:, None] + depth))


class _Trees:
    """The candidates of one round for a batch of texts, in arrays (texts, candidates)."""

    def __init__(self, runner: _Runner, roots: torch.Tensor) -> None:
        self.runner, self.roots = runner, roots
        self.index = torch.arange(len(roots))
        self.token = runner.root_ids[self.index, roots]
        self.score = runner.root_logp[self.index, roots]
        self.parent = torch.full_like(self.token, -1)  # candidate, -1 the root
        self.slot = torch.full_like(self.token, -1)  # of the parent, -1 the root
        self.depth = torch.ones_like(self.token)
        self.open = self.score.clone()  # score, or -inf once expanded
        self.ancestors = torch.zeros(len(roots), 0, 0, dtype=torch.bool)

    def grow(self) -> None:
        """One pass: expand the best open candidates."""
        _, chosen = self.open.topk(min(self.runner.settings.rows, self.open.shape[1]), 1)
        used, rows = self.ancestors.shape[2], chosen.shape[1]
        tree = torch.zeros(len(self.roots), rows, used + rows, dtype=torch.bool)
        if used:
            slot = self.slot.gather(1, chosen)
            inherited = self.ancestors[self.index[:, None], slot.clamp_min(0)]
            tree[:, :, :used] = inherited & (slot >= 0)[:, :, None]
        tree[:, torch.arange(rows), used + torch.arange(rows)] = True
        self._remember(tree, used)
        depth = self.depth.gather(1, chosen)
        ids, logp = self.runner.expand(self.token.gather(1, chosen), depth, self.roots, tree, used)
        score = self.score.gather(1, chosen)[:, :, None] + logp
        self.open.scatter_(1, chosen, _NEVER)
        slots = torch.arange(used, used + rows)[None].expand(len(self.roots), -1)
        self._append(ids, score, chosen, slots, depth + 1)

    def _remember(self, tree: torch.Tensor, used: int) -> None:
        total = used + tree.shape[1]
        grown = torch.zeros(len(self.roots), total, total, dtype=torch.bool)
        grown[:, :used, :used] = self.ancestors
        grown[:, used:] = tree
        self.ancestors = grown

    def _append(
        self,
        ids: torch.Tensor,
        score: torch.Tensor,
        parent: torch.Tensor,
        slot: torch.Tensor,
        depth: torch.Tensor,
    ) -> None:
        def flat(value: torch.Tensor) -> torch.Tensor:
            return value[:, :, None].expand_as(ids).flatten(1)

        self.token = torch.cat([self.token, ids.flatten(1)], 1)
        self.score = torch.cat([self.score, score.flatten(1)], 1)
        self.open = torch.cat([self.open, score.flatten(1)], 1)
        self.parent = torch.cat([self.parent, flat(parent)], 1)
        self.slot = torch.cat([self.slot, flat(slot)], 1)
        self.depth = torch.cat([self.depth, flat(depth)], 1)

    def accepted(self) -> torch.Tensor:
        """Walk the best ``budget`` candidates along the text; returns (texts,) path lengths."""
        budget = min(self.runner.settings.budget, self.score.shape[1])
        _, best = self.score.topk(budget, 1)
        token, parent = self.token.gather(1, best), self.parent.gather(1, best)
        at, count = torch.full_like(self.roots, -1), torch.zeros_like(self.roots)
        alive = torch.ones_like(self.roots, dtype=torch.bool)
        last = self.runner.tokens.shape[1] - 1
        while budget and alive.any():
            wanted = self.runner.tokens[self.index, (self.roots + count + 1).clamp_max(last)]
            hit = (parent == at[:, None]) & (token == wanted[:, None])
            alive = alive & hit.any(1)
            count += alive
            at = torch.where(alive, best[self.index, hit.int().argmax(1)], at)
        return count


@torch.inference_mode()
def simulate(draft: Draft, texts: list[Text], settings: TreeSettings) -> list[Outcome]:
    """Estimate how many verify steps each text takes.

    Parameters
    ----------
    draft: in any floating-point dtype; its attention implementation is replaced.
    texts: at least one, each with an answer of at least one token.
    settings: see `TreeSettings`.

    Returns
    -------
    One `Outcome` a text.
    """
    runner = _Runner(draft, texts, settings)
    outcomes = [Outcome(1, 1) for _ in texts]  # the prefill's token
    names = [i for i, text in enumerate(texts) if len(text.answer) > 1]
    runner.select(torch.tensor(names, dtype=torch.long))
    roots = torch.tensor([len(texts[i].prompt) for i in names])
    ends = torch.tensor([len(texts[i].prompt) + len(texts[i].answer) - 1 for i in names])
    while names:
        trees = _Trees(runner, roots)
        for _ in range(settings.passes - 1 if settings.budget else 0):
            trees.grow()
        gain = trees.accepted()
        for row, name in enumerate(names):
            left = int(ends[row] - roots[row])
            outcomes[name].accepted.append(min(int(gain[row]), left))
            outcomes[name].tokens += min(int(gain[row]) + 1, left)
            outcomes[name].steps += 1
        roots = roots + gain + 1
        keep = (roots < ends).nonzero()[:, 0]
        if len(keep) < len(names):
            names = [names[i] for i in keep.tolist()]
            roots, ends = roots[keep], ends[keep]
            runner.select(keep)
    return outcomes
