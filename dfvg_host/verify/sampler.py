"""The target's own sampler: one draw from one row of logits at one output position.

The agree rule needs nothing else: plain decoding and the walk down a drafted tree call the same
function with the same logits and the same output index, so they draw the same token.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from dfvg_host.cli.values import check
from dfvg_hw.errors import ModelError

from .philox import uniform

__all__ = ["Draw", "Sampler", "SamplingParams"]

# Temperatures below this are greedy: dividing logits by them would only overflow.
GREEDY_BELOW = 1e-5


@dataclass(frozen=True)
class SamplingParams:
    """How the target picks a token.

    Attributes
    ----------
    temperature: 0 (greedy) and up; below 1e-5 counts as 0.
    top_k: keep the k most likely tokens; 0 keeps all.
    top_p: keep the shortest list of most likely tokens with at least this mass, (0, 1].
    seed: 0 .. 2**64-1.
    sample: number of this sample of the prompt, from 0; samples are independent of each other.

    Raises
    ------
    UsageError
        A value outside its range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    sample: int = 0

    def __post_init__(self) -> None:
        for name in ("temperature", "top_k", "top_p", "seed"):
            object.__setattr__(self, name, check(name, getattr(self, name)))
        uniform(self.seed, self.sample, 0)  # checks the range of the sample number

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature < GREEDY_BELOW


@dataclass(frozen=True)
class Draw:
    """A drawn token and how close the draw was.

    Attributes
    ----------
    token: the id.
    margin: greedy: logit of the token minus the runner-up's. Sampled: distance of u from the
        nearer edge of the token's interval of the distribution function, 0 .. 1. infinity if no
        other token could be drawn.
    """

    token: int
    margin: float


class Sampler:
    """Draws tokens; holds no state, so any position can be drawn again.

    Order: temperature, top-k, top-p, all in fp64 on the CPU. Equal logits are ranked by id. The
    distribution function runs over the kept ids in ascending order, not by probability: two
    near-equal tokens that swap ranks through rounding then move no interval.
    """

    def __init__(self, params: SamplingParams) -> None:
        self.params = params

    def draw(self, logits: torch.Tensor, index: int) -> Draw:
        """Draw output token ``index`` (0 is the first after the prompt) from logits [V].

        Raises
        ------
        ModelError
            The logits hold NaN, or no finite value.
        """
        if self.params.greedy:
            return _argmax(logits)
        ids, weights = self.support(logits)
        edges = torch.cumsum(weights, 0)
        point = uniform(self.params.seed, self.params.sample, index) * edges[-1].item()
        place = int(torch.searchsorted(edges, point, right=True))
        if place == len(ids):  # u·total rounded up to the last edge
            place = int(weights.nonzero()[-1])
        total = edges[-1].item()
        below = [] if place == 0 else [point - edges[place - 1].item()]
        above = [] if place == len(ids) - 1 else [edges[place].item() - point]
        margin = min(below + above, default=math.inf) / total
        return Draw(int(ids[place]), margin)

    def support(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the ids that can be drawn, ascending, and their fp64 weights (not normalised)."""
        scaled = logits.detach().to("cpu", torch.float64) / self.params.temperature
        peak = scaled.max().item()
        if not math.isfinite(peak):
            raise ModelError("the target's logits hold NaN or no finite value")
        kept = torch.arange(len(scaled))
        if 0 < self.params.top_k < len(scaled):
            kept = _top_k(scaled, self.params.top_k)
        weights = torch.exp(scaled[kept] - peak)
        if self.params.top_p < 1:
            inside = _top_p(weights, self.params.top_p)
            kept, weights = kept[inside], weights[inside]
        return kept, weights


def _argmax(logits: torch.Tensor) -> Draw:
    """Most likely token, the lowest id among equals (torch.argmax leaves that open)."""
    best = logits.max()
    if not bool(torch.isfinite(best)):
        raise ModelError("the target's logits hold NaN or no finite value")
    token = int((logits == best).nonzero()[0])
    if len(logits) == 1:
        return Draw(token, math.inf)
    top = torch.topk(logits.float(), 2).values
    return Draw(token, (top[0] - top[1]).item())


def _top_k(scaled: torch.Tensor, k: int) -> torch.Tensor:
    """Ids of the k largest values, ascending; of values equal to the k-th the lowest ids."""
    border = torch.topk(scaled, k).values[-1]
    above = (scaled > border).nonzero().flatten()
    equal = (scaled == border).nonzero().flatten()[: k - len(above)]
    return torch.cat([above, equal]).sort().values


def _top_p(weights: torch.Tensor, top_p: float) -> torch.Tensor:
    """Indices (ascending) of the shortest head of the ranking with mass ≥ ``top_p``."""
    total = weights.sum()
    # Everything below (1 - p)/n of the mass adds up to less than 1 - p, so the head is found
    # without sorting a whole vocabulary; half of that leaves room for rounding.
    likely = (weights >= 0.5 * (1 - top_p) / len(weights) * total).nonzero().flatten()
    order = torch.sort(weights[likely], descending=True, stable=True).indices
    mass = torch.cumsum(weights[likely][order], 0)
    count = int((mass < top_p * total).sum()) + 1
    return likely[order[:count]].sort().values
