"""From shards to batches: texts of similar length side by side, in a seeded order.

The order is a function of (seed, epoch, block) alone, so that a resumed run goes on with the
very batch it would have taken, and training can follow generation block by block.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dfvg_host.models.cache import progress
from dfvg_hw.errors import ModelError

from .dedupe import Deduper
from .shards import ANSWER, GIVEN, TURN, Shard, read_shard

__all__ = ["Batch", "TextFolder", "choose_head_ids"]

_WEIGHTS = {GIVEN: 0.1, TURN: 0.3, ANSWER: 1.0}


@dataclass
class Batch:
    """Texts padded on the right to one length.

    Attributes
    ----------
    tokens: (texts, length) int64.
    top_ids: (texts, length, kept) int64, the target's most likely next ids.
    top_p: (texts, length, kept) fp32, their probabilities; 0 where there is no target.
    weights: (texts, length) fp32 loss weights, by who wrote the *next* token.
    """

    tokens: torch.Tensor
    top_ids: torch.Tensor
    top_p: torch.Tensor
    weights: torch.Tensor


class TextFolder:
    """The blocks of a folder, filtered against evaluation prompts and repetitions.

    Parameters
    ----------
    folder: where `generate_blocks` wrote.
    blocks: how many blocks training uses, numbers 0 to ``blocks`` - 1.
    tokenizer: of the target, to compare texts by words.
    evaluation: prompts to keep out, see `Deduper`.
    wait: wait for a missing block (another process is writing) instead of raising.
    """

    def __init__(
        self, folder: Path, blocks: int, tokenizer: Any, evaluation: list[str], wait: bool = False
    ) -> None:
        self.folder, self.blocks, self.wait = folder, blocks, wait
        self._tokenizer, self._deduper = tokenizer, Deduper(evaluation)
        self._good: dict[int, list[int]] = {}

    def _read(self, block: int) -> Shard:
        path = self.folder / f"block-{block:05d}.npz"
        said = False
        while not path.exists():
            if not self.wait:
                raise ModelError(f"{self.folder} lacks block {block} of 0 to {self.blocks - 1}")
            if not said:
                progress(f"waiting for block {block}")
                said = True
            time.sleep(2)
        return read_shard(path)

    def usable(self, block: int, shard: Shard) -> list[int]:
        """Return the usable texts of a block. Blocks are judged in order, each once."""
        while len(self._good) <= block:
            number = len(self._good)
            self._good[number] = self._judge(shard if number == block else self._read(number))
        return self._good[block]

    def _judge(self, shard: Shard) -> list[int]:
        texts = [
            self._tokenizer.decode(
                shard.tokens[shard.span(i)][shard.top_logp[shard.span(i), 0] > -np.inf].tolist(),
                skip_special_tokens=True,
            )
            for i in range(shard.texts)
        ]
        return [i for i, text in enumerate(texts) if self._deduper.accept(text)]

    def batches(self, block: int, epoch: int, seed: int, size: int) -> list[Callable[[], Batch]]:
        """Return the batches of a block, each built only when called.

        Texts are sorted by length within the block and cut into batches of at most ``size``
        tokens (padding included); the batches are then shuffled.
        """
        shard = self._read(block)
        texts = list(self.usable(block, shard))
        rng = random.Random(f"{seed}/{epoch}/{block}")
        rng.shuffle(texts)
        texts.sort(key=lambda i: int(shard.starts[i + 1] - shard.starts[i]))
        groups: list[list[int]] = []
        for text in texts:
            length = int(shard.starts[text + 1] - shard.starts[text])
            if not groups or (len(groups[-1]) + 1) * length > size:
                groups.append([])
            groups[-1].append(text)
        rng.shuffle(groups)
        return [partial(_pad, shard, group) for group in groups]

    def use_of_ids(self, blocks: int) -> np.ndarray:
        """Estimate how much the target uses each id, from the first ``blocks`` blocks.

        A text counts with the square root of how often the target is expected to say the id in
        its answer. Expectations see more ids than the words that were drawn, and the root keeps
        the names of a few long-winded texts from pushing out words that all texts share. Against
        plain counts this covered about one point more of the text of other kinds of prompts.

        Returns
        -------
        (largest id + 1,) fp64.
        """
        total: np.ndarray = np.zeros(0)
        for block in range(blocks):
            shard = self._read(block)
            total = np.pad(total, (0, max(0, int(shard.top_ids.max()) + 1 - len(total))))
            for text in self.usable(block, shard):
                span = shard.span(text)
                answer = np.append(shard.kinds[span][1:] == ANSWER, False)
                p = np.exp(shard.top_logp[span][answer].astype(np.float64))
                ids = shard.top_ids[span][answer]
                total += np.sqrt(np.bincount(ids.ravel(), p.ravel(), len(total)))
        return total


def _pad(shard: Shard, texts: list[int]) -> Batch:
    length = max(int(shard.starts[i + 1] - shard.starts[i]) for i in texts)
    kept = shard.top_ids.shape[1]
    shape = (len(texts), length)
    tokens: np.ndarray = np.zeros(shape, np.int64)
    top_ids: np.ndarray = np.zeros((*shape, kept), np.int64)
    top_p: np.ndarray = np.zeros((*shape, kept), np.float32)
    weights: np.ndarray = np.zeros(shape, np.float32)
    table = np.array([_WEIGHTS[kind] for kind in (GIVEN, TURN, ANSWER)], np.float32)
    for row, text in enumerate(texts):
        span = shard.span(text)
        count = span.stop - span.start
        tokens[row, :count] = shard.tokens[span]
        top_ids[row, :count] = shard.top_ids[span]
        top_p[row, :count] = np.exp(shard.top_logp[span].astype(np.float32))
        weights[row, : count - 1] = table[shard.kinds[span][1:]]
    weights[top_p[:, :, 0] == 0] = 0
    arrays = (tokens, top_ids, top_p, weights)
    return Batch(*(torch.from_numpy(array) for array in arrays))


def choose_head_ids(
    use: np.ndarray, rows: int, always: list[int], multiple: int = 64
) -> torch.Tensor:
    """Choose the ids of a truncated head: those used most and those in ``always``.

    Parameters
    ----------
    use: (ids,) how much the target uses each id, see `TextFolder.use_of_ids`.
    rows: head rows wanted.
    always: ids that must be in (end of text, chat markers).
    multiple: rows must be a multiple of this (matrix tiles of the device).

    Returns
    -------
    (rows,) int64 ids, ascending.

    Raises
    ------
    ModelError
        ``rows`` is no multiple, or fewer distinct ids were seen than rows asked for.
    """
    if rows % multiple or rows < max(multiple, len(always)):
        raise ModelError(f"head rows must be a multiple of {multiple}, not {rows}")
    ranked = [i for i in np.argsort(-use, kind="stable").tolist() if use[i] > 0]
    chosen = list(dict.fromkeys([*always, *ranked]))[:rows]
    if len(chosen) < rows:
        raise ModelError(
            f"the training text holds only {len(chosen)} distinct ids, {rows} head rows asked for"
        )
    return torch.tensor(sorted(chosen), dtype=torch.long)
