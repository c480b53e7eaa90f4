"""Training text: the target writes it, and its most likely ids at every step are kept.

Keeping the top logits while the text is written makes them free; training then never runs the
target. Work is cut into blocks, each a function of (seed, block number) alone: an interrupted
run redoes only its open block, any number of processes can share one folder, and the result is
the same. (Same thread count and torch build assumed: sums of floats may differ otherwise.)
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import random
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dfvg_host.models.cache import progress
from dfvg_host.models.chat import in_template
from dfvg_hw.errors import ModelError

from .prompts import Prompt, draw_prompt, usable_turn
from .shards import ANSWER, GIVEN, SOURCES, TURN, Shard, write_shard
from .slots import SlotModel

__all__ = ["Chat", "GenerateConfig", "generate_block", "generate_blocks"]

_MARK = "@@user turn@@"


@dataclass(frozen=True)
class GenerateConfig:
    """What decides the text of a block. Stored in the folder; a folder never mixes two.

    Attributes
    ----------
    seed: of prompts and sampling.
    texts: texts started in a block (some are dropped, see `prompts.usable_turn`).
    rows: texts written side by side.
    turn_tokens, answer_tokens: longest user turn and answer, in tokens.
    kept: logits kept per position.
    self_share, plain_share: shares of prompts, see `prompts.draw_prompt`.
    """

    seed: int = 1
    texts: int = 512
    rows: int = 128
    turn_tokens: int = 64
    answer_tokens: int = 200
    kept: int = 64
    self_share: float = 0.5
    plain_share: float = 0.12


@dataclass
class _Row:
    """One text being written; tokens beyond ``fed`` are known but not yet given to the target."""

    prompt: Prompt
    tokens: list[int]
    kinds: list[int]
    phase: int
    left: int
    fed: int = 0
    turn_start: int = 0

    def extend(self, tokens: list[int], kind: int) -> None:
        self.tokens += tokens
        self.kinds += [kind] * len(tokens)


class Chat:
    """The token pieces of a chat template around a user turn.

    Attributes
    ----------
    before, after: ids before the user turn, and from its end to where the answer starts; empty
        if the tokenizer has no template.
    end: id that ends a turn.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer, self.end = tokenizer, tokenizer.eos_token_id
        if self.end is None:
            raise ModelError("the target's tokenizer has no end-of-text token")
        self.before: list[int] = []
        self.after: list[int] = []
        if tokenizer.chat_template:
            parts = in_template(tokenizer, _MARK, "the target").split(_MARK)
            if len(parts) != 2:
                raise ModelError(
                    "the target's chat template shows the user's message "
                    f"{len(parts) - 1} times: expected once, unchanged"
                )
            before, after = parts
            self.before, self.after = self.encode(before), self.encode(after)

    def encode(self, text: str) -> list[int]:
        """Return the ids of ``text``, nothing added; chat markers in it become single ids."""
        return list(self.tokenizer(text, add_special_tokens=False).input_ids)


class _Block:
    """The state of one block: a pool of rows over a `SlotModel`."""

    def __init__(self, slots: SlotModel, chat: Chat, config: GenerateConfig, block: int) -> None:
        self.slots, self.chat, self.config = slots, chat, config
        seed = config.seed * 1_000_003 + block
        self.rng = random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.left = config.texts
        self.rows: list[_Row] = []
        shape = (config.rows, slots.capacity, config.kept)
        self.top_ids = torch.zeros(shape, dtype=torch.int32)
        self.top_logp = torch.zeros(shape, dtype=torch.float16)
        self.done: list[tuple[_Row, np.ndarray, np.ndarray]] = []
        self.dropped = 0

    def _new_row(self) -> _Row:
        config, chat, before = self.config, self.chat, self.chat.before
        shares = (config.self_share, config.plain_share) if before else (0.0, 1.0)
        prompt = draw_prompt(self.rng, *shares)
        if prompt.kind == "plain":
            row = _Row(prompt, [], [], ANSWER, config.answer_tokens)
            row.extend(chat.encode(prompt.text), GIVEN)
            return row
        row = _Row(prompt, list(before), [GIVEN] * len(before), TURN, config.turn_tokens)
        row.fed = row.turn_start = len(before)
        if prompt.kind == "template":
            row.extend(chat.encode(prompt.text) + chat.after, GIVEN)
            row.phase, row.left = ANSWER, config.answer_tokens
        else:
            row.fed -= 1  # the prefix's last token again: the target is to go on from it
        return row

    def fill(self) -> None:
        """Start new texts in free rows."""
        while self.left and len(self.rows) < self.config.rows:
            self.left -= 1
            index = len(self.rows)
            self.rows.append(self._new_row())
            self.slots.start(index)
            self.top_logp[index].fill_(float("-inf"))

    def _choose(self, values: torch.Tensor, ids: torch.Tensor) -> list[int]:
        """Draw one id per row among the kept logits; temperature 0 takes the first."""
        heat = [
            row.prompt.turn_temperature if row.phase == TURN else row.prompt.temperature
            for row in self.rows
        ]
        noise = torch.empty_like(values).exponential_(generator=self.generator).log_().neg_()
        score = values + noise * torch.tensor(heat)[:, None]
        return list(ids.gather(1, score.argmax(1, keepdim=True))[:, 0].tolist())

    def step(self) -> None:
        """Feed one token to every row, keep the top logits, finish rows that ended."""
        rows = self.rows
        positions = torch.tensor([row.fed for row in rows])
        tokens = torch.tensor([row.tokens[row.fed] for row in rows])
        logits = self.slots.step(tokens, positions)
        values, ids = logits.topk(min(self.config.kept, logits.shape[-1]))
        index = torch.arange(len(rows))
        self.top_ids[index, positions] = ids.int()
        self.top_logp[index, positions] = (values - logits.logsumexp(-1, keepdim=True)).half()
        chosen = self._choose(values, ids)
        for i in range(len(rows) - 1, -1, -1):
            rows[i].fed += 1
            if rows[i].fed == len(rows[i].tokens):
                self._append(i, chosen[i])

    def _append(self, index: int, token: int) -> None:
        row, chat = self.rows[index], self.chat
        row.extend([token], row.phase)
        row.left -= 1
        if row.phase == TURN and token == chat.end:
            text = chat.tokenizer.decode(row.tokens[row.turn_start : -1])
            if not usable_turn(text):
                self._close(index, keep=False)
                return
            row.extend(chat.after[1:] if chat.after[:1] == [token] else chat.after, GIVEN)
            row.phase, row.left = ANSWER, self.config.answer_tokens
        elif token == chat.end or not row.left or len(row.tokens) >= self.slots.capacity:
            self._close(index, keep=row.phase == ANSWER)

    def _close(self, index: int, keep: bool) -> None:
        """Take row ``index`` out and put the last row in its place."""
        row, last = self.rows[index], len(self.rows) - 1
        if keep:
            length = len(row.tokens)
            pair = self.top_ids[index, :length].numpy(), self.top_logp[index, :length].numpy()
            self.done.append((row, pair[0].copy(), pair[1].copy()))
        else:
            self.dropped += 1
        if index != last:
            self.rows[index] = self.rows[last]
            self.slots.move(last, index)
            self.top_ids[index] = self.top_ids[last]
            self.top_logp[index] = self.top_logp[last]
        self.rows.pop()

    def shard(self, vocabulary: int) -> Shard:
        """Return the finished texts as arrays."""
        kind = np.uint16 if vocabulary <= 1 << 16 else np.uint32
        lengths = [len(row.tokens) for row, _, _ in self.done]
        return Shard(
            tokens=np.concatenate([np.array(row.tokens, kind) for row, _, _ in self.done]),
            starts=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
            kinds=np.concatenate([np.array(row.kinds, np.uint8) for row, _, _ in self.done]),
            top_ids=np.concatenate([ids.astype(kind) for _, ids, _ in self.done]),
            top_logp=np.concatenate([logp for _, _, logp in self.done]),
            sources=np.array([SOURCES.index(row.prompt.kind) for row, _, _ in self.done], np.uint8),
        )


def generate_block(slots: SlotModel, tokenizer: Any, config: GenerateConfig, block: int) -> Shard:
    """Write block number ``block`` (a pure function of its arguments).

    Raises
    ------
    ModelError
        No text of the block was usable, or the tokenizer has no end token.
    """
    chat = Chat(tokenizer)
    if chat.before:
        slots.set_prefix(chat.before)
    state = _Block(slots, chat, config, block)
    state.fill()
    while state.rows:
        state.step()
        state.fill()
    if not state.done:
        raise ModelError(f"block {block}: the target wrote no usable text")
    return state.shard(slots.model.config.vocab_size)


@contextlib.contextmanager
def _claim(path: Path) -> Iterator[bool]:
    """Try to own a block; the claim ends with the process, however it ends."""
    with open(path, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def _check_folder(folder: Path, config: GenerateConfig, target_digest: str) -> None:
    """Create the folder's record, or refuse a folder made with other settings."""
    record = {"target": target_digest, **asdict(config)}
    path = folder / "generate.json"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(record, indent=1) + "\n")
    found = json.loads(path.read_text())
    different = sorted(key for key in record if found.get(key) != record[key])
    if different:
        key = different[0]
        raise ModelError(
            f"{folder} holds text made with {key} {found.get(key)}, not {record[key]}: "
            "use another folder"
        )


def generate_blocks(
    target: Any, folder: Path, blocks: int, config: GenerateConfig | None = None
) -> None:
    """Write blocks 0 to ``blocks`` - 1 into ``folder``, skipping those that exist.

    Parameters
    ----------
    target: a `LoadedTarget`; bf16 is about twice as fast as fp32 and its text as good.
    folder: receives ``block-00000.npz`` and so on; several processes may share it.
    blocks: how many blocks the folder is to hold in the end.
    config: see `GenerateConfig`.

    Raises
    ------
    ModelError
        The folder was made with other settings or another target.
    """
    config = config or GenerateConfig()
    _check_folder(folder, config, target.digest)
    capacity = config.turn_tokens + config.answer_tokens + 128
    slots = SlotModel(target.model, config.rows, capacity)
    for block in range(blocks):
        path = folder / f"block-{block:05d}.npz"
        if path.exists():
            continue
        with _claim(folder / f"block-{block:05d}.lock") as mine:
            if not mine or path.exists():
                continue
            start = time.monotonic()
            shard = generate_block(slots, target.tokenizer, config, block)
            write_shard(path, shard)
            rate = len(shard.tokens) / (time.monotonic() - start)
            progress(
                f"block {block + 1} of {blocks}: {shard.texts} texts, {len(shard.tokens)} tokens, "
                f"{rate:.0f} tokens/s, about {(blocks - block - 1) * len(shard.tokens) / rate:.0f} "
                "s left in this process"
            )
