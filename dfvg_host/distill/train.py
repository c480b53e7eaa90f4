"""Training a draft on stored target probabilities; the target itself is not run.

Loss: KL from the target's distribution to the draft's, over the ids of the truncated head. The
target's mass outside the head is left out of the target (not renormalised), so a position where
the target would mostly say what the head cannot say counts less, in proportion.
"""

from __future__ import annotations

import csv
import json
import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from dfvg_host.models.cache import progress
from dfvg_hw.errors import ModelError

from .dataset import Batch, TextFolder
from .draft import Draft

__all__ = ["TrainConfig", "Trainer", "distill_loss"]


@dataclass(frozen=True)
class TrainConfig:
    """What decides a training run.

    Attributes
    ----------
    seed: of the order of batches.
    epochs: passes over the blocks.
    batch_tokens: most tokens of a batch, padding included.
    rate: highest learning rate; warm-up is linear over ``warmup`` of the run, then a cosine
        down to ``final`` of it.
    decay: weight decay of matrices. clip: largest gradient norm.
    sharpen: exponent on the target's probabilities (1 = plain KL).
    bf16: run matrix products in bfloat16 (weights and optimiser stay fp32).
    save_seconds: how often the state is written.
    """

    seed: int = 1
    epochs: int = 1
    batch_tokens: int = 4096
    rate: float = 1e-3
    warmup: float = 0.02
    final: float = 0.02
    decay: float = 0.05
    clip: float = 1.0
    sharpen: float = 1.0
    bf16: bool = True
    save_seconds: float = 300.0

    def rate_at(self, done: float) -> float:
        """Return the learning rate when ``done`` (0 to 1) of the run is over."""
        if done < self.warmup:
            return self.rate * max(done / self.warmup, 0.01)
        turn = (done - self.warmup) / max(1 - self.warmup, 1e-9)
        return self.rate * (self.final + (1 - self.final) * 0.5 * (1 + math.cos(math.pi * turn)))


def distill_loss(
    logits: torch.Tensor, top_ids: torch.Tensor, top_p: torch.Tensor, lookup: torch.Tensor
) -> torch.Tensor:
    """KL per position from the target's kept probabilities to the draft.

    Parameters
    ----------
    logits: (positions, rows) of the draft's head.
    top_ids, top_p: (positions, kept) ids and probabilities of the target.
    lookup: (vocabulary,) head row of each id, -1 where the head has none.

    Returns
    -------
    (positions,) fp32: sum over the head's ids of p (log p/mass - log q), mass their sum.
    """
    logits = logits.float()
    rows = lookup[top_ids]
    p = torch.where(rows >= 0, top_p, 0.0)
    mass = p.sum(-1)
    chosen = logits.gather(1, rows.clamp_min(0))
    own = (p * (p.clamp_min(1e-30).log() - mass.clamp_min(1e-30).log()[:, None])).sum(-1)
    return own - (p * chosen).sum(-1) + mass * logits.logsumexp(-1)


class Trainer:
    """One resumable training run in a folder.

    The folder holds ``train.json`` (settings), ``state.pt`` (weights, optimiser, place in the
    data), ``loss.csv`` (step, tokens, block, rate, loss, tokens a second). A run that was
    interrupted and resumed ends with the same weights as one that was not.

    Parameters
    ----------
    draft: freshly made or loaded; trained in place.
    texts: the training texts.
    folder: of the run.
    config: a folder made with other settings is refused.
    """

    def __init__(
        self, draft: Draft, texts: TextFolder, folder: Path, config: TrainConfig | None = None
    ) -> None:
        self.draft, self.texts, self.folder = draft, texts, folder
        self.config = config or TrainConfig()
        model = draft.model.train()
        model.requires_grad_(True)
        model.get_input_embeddings().requires_grad_(False)
        named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
        groups = [
            {"params": [p for _, p in named if p.ndim == 2], "weight_decay": self.config.decay},
            {"params": [p for _, p in named if p.ndim != 2], "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=self.config.rate, betas=(0.9, 0.95))
        self.lookup = torch.full((draft.config.vocab_size,), -1, dtype=torch.long)
        self.lookup[draft.output_ids] = torch.arange(len(draft.output_ids))
        self.place = {"epoch": 0, "block": 0, "batch": 0, "step": 0, "tokens": 0}
        self._recent: deque[float] = deque(maxlen=50)
        self._open()

    def _open(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / "train.json"
        record = {**asdict(self.config), "blocks": self.texts.blocks}
        record |= {
            "layers": self.draft.config.num_hidden_layers,
            "head": len(self.draft.output_ids),
            "ffn": self.draft.config.intermediate_size,
        }
        if not path.exists():
            path.write_text(json.dumps(record, indent=1) + "\n")
        found = json.loads(path.read_text())
        for key in record:
            if found.get(key) != record[key] and key != "save_seconds":
                raise ModelError(
                    f"{self.folder} holds a run with {key} {found.get(key)}, not {record[key]}: "
                    "use another folder"
                )
        state_path = self.folder / "state.pt"
        if state_path.exists():
            state = torch.load(state_path, weights_only=True)
            self.draft.model.load_state_dict(state["model"], strict=False)
            self.optimizer.load_state_dict(state["optimizer"])
            self.place = state["place"]
            progress(f"resuming at step {self.place['step']}, block {self.place['block']}")
            self._cut_log()

    def _cut_log(self) -> None:
        """Drop log lines of steps after the saved state: they will be made again."""
        path = self.folder / "loss.csv"
        if path.exists():
            head, *lines = path.read_text().splitlines(keepends=True)
            kept = [line for line in lines if int(line.split(",")[0]) <= self.place["step"]]
            path.write_text("".join([head, *kept]))

    def save(self) -> None:
        """Write the state, whole or not at all."""
        temporary = self.folder / "state.tmp"
        state = {
            "model": self.draft.trained(),
            "optimizer": self.optimizer.state_dict(),
            "place": self.place,
        }
        torch.save(state, temporary)
        os.replace(temporary, self.folder / "state.pt")

    def step(self, batch: Batch, rate: float) -> float:
        """Train on one batch; returns its mean KL, weighted by who wrote the tokens."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        model = self.draft.model
        use = batch.weights > 0
        weights = batch.weights[use]
        with torch.autocast("cpu", torch.bfloat16, enabled=self.config.bf16):
            hidden = model.model(input_ids=batch.tokens, use_cache=False).last_hidden_state
            logits = model.lm_head(hidden[use])
        top_p = batch.top_p[use]
        if self.config.sharpen != 1.0:
            top_p = top_p**self.config.sharpen
            top_p = top_p / top_p.sum(-1, keepdim=True)
        loss = distill_loss(logits, batch.top_ids[use], top_p, self.lookup)
        mean = (loss * weights).sum() / weights.sum()
        mean.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), self.config.clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return float(mean.detach())

    def _batches(self) -> Iterator[tuple[float, Callable[[], Batch]]]:
        """Yield (part of the run that is over, batch) from the present place to the end.

        The place moves on after each batch was used, so a state saved between two batches
        resumes with the next one.
        """
        place, config = self.place, self.config
        blocks = self.texts.blocks
        while place["epoch"] < config.epochs:
            batches = self.texts.batches(
                place["block"], place["epoch"], config.seed, config.batch_tokens
            )
            while place["batch"] < len(batches):
                over = place["epoch"] * blocks + place["block"] + place["batch"] / len(batches)
                yield over / (config.epochs * blocks), batches[place["batch"]]
                place["batch"] += 1
            place["batch"], place["block"] = 0, place["block"] + 1
            if place["block"] == blocks:
                place["block"], place["epoch"] = 0, place["epoch"] + 1

    def run(self, max_steps: int | None = None) -> Draft:
        """Train to the end, or for ``max_steps`` more steps, saving on the way and at the end."""
        path = self.folder / "loss.csv"
        new = not path.exists()
        started = saved = time.monotonic()
        first, steps = None, 0
        with open(path, "a", newline="") as file:
            log = csv.writer(file)
            if new:
                log.writerow(["step", "tokens", "block", "rate", "loss", "tokens_per_second"])
            for part, make in self._batches():
                if steps == max_steps:
                    break
                if time.monotonic() - saved > self.config.save_seconds:
                    file.flush()
                    self.save()
                    saved = time.monotonic()
                first = part if first is None else first
                line = self._one(make(), part)
                log.writerow(line)
                steps += 1
                self._report(float(line[-1]), part, time.monotonic() - started, first)
        self.save()
        return self.draft

    def _one(self, batch: Batch, part: float) -> list[str]:
        """Train on one batch and return its line of the log."""
        clock, rate = time.monotonic(), self.config.rate_at(part)
        loss = self.step(batch, rate)
        count = int((batch.weights > 0).sum())
        self.place["step"] += 1
        self.place["tokens"] += count
        self._recent.append(loss)
        speed = count / (time.monotonic() - clock)
        place = [str(self.place[key]) for key in ("step", "tokens", "block")]
        return [*place, f"{rate:.3e}", f"{loss:.4f}", f"{speed:.0f}"]

    def _report(self, speed: float, part: float, spent: float, first: float) -> None:
        if self.place["step"] % 20 and self.place["step"] != 1:
            return
        left = f"about {spent / (part - first) * (1 - part):.0f} s left" if part > first else ""
        progress(
            f"step {self.place['step']}: {self.place['tokens']} tokens, "
            f"KL {sum(self._recent) / len(self._recent):.3f}, {speed:.0f} tokens/s, "
            f"{100 * part:.1f} % done, {left}".rstrip(", ")
        )
