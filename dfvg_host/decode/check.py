"""The reference: the same target, sampler and prefill, one token at a time, in its own cache."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from dfvg_host.verify import Draw, Sampler, TreeVerifier

__all__ = ["Divergence", "Reference"]

# Below these, rounding alone can have decided (design: one flip in some 2e5 fp32 tokens).
TIE_LOGITS = 1e-3
TIE_EDGE = 1e-5


@dataclass(frozen=True)
class Divergence:
    """First output token that differs from target-only decoding.

    Attributes
    ----------
    position: output index, from 0.
    margin: how close the reference's own draw was: gap between its best two logits (greedy), or
        distance of u from the nearer edge of the token's interval (sampled).
    max_logit_diff: largest difference between both rows of logits at that position.
    tie: the margin is so small that rounding explains the difference.
    """

    position: int
    margin: float
    max_logit_diff: float
    tie: bool

    def to_dict(self) -> dict[str, int | float | None]:
        """Return the stats file's object; JSON knows no infinity, so None stands for it."""
        return {
            "position": self.position,
            "margin": _finite(self.margin),
            "max_logit_diff": _finite(self.max_logit_diff),
        }


def _difference(a: torch.Tensor, b: torch.Tensor) -> float:
    """Largest difference; tokens that both rule out with -infinity don't differ."""
    a, b = a.float(), b.float()
    return torch.where(a == b, 0.0, (a - b).abs()).max().item()


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


class Reference:
    """Target-only decoding that follows a run and compares every token with it.

    It goes along token by token instead of afterwards, so both rows of logits are at hand when
    they differ and none has to be stored.

    Parameters
    ----------
    verifier: its own verifier, with the prompt in the cache.
    prompt_logits: [V], behind the prompt.
    sampler: the request's sampler.

    Attributes
    ----------
    divergence: the first difference; comparing ends there.
    compared: tokens found equal.
    """

    def __init__(
        self, verifier: TreeVerifier, prompt_logits: torch.Tensor, sampler: Sampler
    ) -> None:
        self._verifier = verifier
        self._logits = prompt_logits
        self._sampler = sampler
        self._last: int | None = None
        self.divergence: Divergence | None = None
        self.compared = 0

    @property
    def identical(self) -> bool:
        """Whether every token so far was equal."""
        return self.divergence is None

    def observe(self, draw: Draw, row: torch.Tensor) -> None:
        """Compare the run's next token, and the logits [V] it was drawn from."""
        if self.divergence is not None:
            return
        if self._last is not None:
            self._logits = self._verifier.score(self._last)[0]
            self._verifier.commit()
        mine = self._sampler.draw(self._logits, self.compared)
        if mine.token != draw.token:
            limit = TIE_LOGITS if self._sampler.params.greedy else TIE_EDGE
            self.divergence = Divergence(
                position=self.compared,
                margin=mine.margin,
                max_logit_diff=_difference(row, self._logits),
                tie=mine.margin < limit,
            )
            return
        self.compared += 1
        self._last = mine.token
