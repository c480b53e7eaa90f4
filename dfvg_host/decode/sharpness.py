"""How sharply the draft's probabilities predict the target's tokens, learned as a run goes on.

The draft says how likely the target's *distribution* makes a token. The text is drawn at some
temperature, greedily for instance, and the draft may be as good as the target or much worse. One
exponent covers both: probabilities p of siblings become ``p**e``, normalised. It's the exponent
under which the tokens seen so far are most likely (temperature scaling), with a mild preference for
1. A request starts without memory of others, so its statistics depend on nothing but itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from dfvg_hw.messages import LOGPROB_ONE

__all__ = ["EXPONENTS", "Sharpness", "sharpened"]

EXPONENTS = (1.0, 0.7, 1.4, 2.0, 2.8, 4.0)
"""Exponents to choose from; the first wins ties."""


def sharpened(scores: Sequence[int], exponent: float) -> tuple[list[float], float]:
    """Apply an exponent to the children of a node.

    Parameters
    ----------
    scores: edge scores of the children, 1/256 log2, at most 0.
    exponent: above 0. Everything that isn't among the children counts as one more child.

    Returns
    -------
    list of float, float
        log2 of each child's probability, at most 0; and of the remainder's (-inf if there's none).
    """
    edges = [score / LOGPROB_ONE for score in scores]
    rest = max(0.0, 1.0 - sum(2.0**edge for edge in edges))
    if exponent == 1:
        return edges, math.log2(rest) if rest else -math.inf
    mass = rest**exponent
    total = math.log2(sum(2.0 ** (exponent * edge) for edge in edges) + mass)
    remainder = math.log2(mass) - total if mass else -math.inf
    return [min(0.0, exponent * edge - total) for edge in edges], remainder


class Sharpness:
    """Learns the exponent of one request.

    Attributes
    ----------
    observed: tokens that it has been learned from.
    """

    # A token outside of all that was drafted says little about siblings; bounded so that
    # rounding in a sum of probabilities near 1 can't decide everything.
    _LEAST = -20.0

    def __init__(self) -> None:
        # One octave away from 1 costs half a bit: a few clear observations are enough.
        self._likelihood = [-0.5 * math.log2(exponent) ** 2 for exponent in EXPONENTS]
        self.observed = 0

    @property
    def exponent(self) -> float:
        """The most likely exponent."""
        best = max(range(len(EXPONENTS)), key=lambda index: self._likelihood[index])
        return EXPONENTS[best]

    def observe(self, scores: Sequence[int], hit: int | None) -> None:
        """Learn from a committed token whose node's children were known.

        Parameters
        ----------
        scores: edge scores of the children, 1/256 log2.
        hit: the child that carries the token, None if none does.
        """
        self.observed += 1
        for index, exponent in enumerate(EXPONENTS):
            edges, rest = sharpened(scores, exponent)
            self._likelihood[index] += max(self._LEAST, rest if hit is None else edges[hit])
