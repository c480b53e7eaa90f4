"""How many of the best candidates one verify pass takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from dfvg_host.timing import VerifierProfile

__all__ = ["Budget", "FixedBudget"]


class Budget(Protocol):
    """Chooses the node count of a verify pass."""

    @property
    def most(self) -> int:
        """Upper limit of every choice."""
        ...

    def choose(self, probabilities: Sequence[float], profile: VerifierProfile) -> int:
        """Return how many nodes to verify.

        Parameters
        ----------
        probabilities: path probabilities of the candidates, best first, at most `most` of them.
        profile: latency of a pass by node count.
        """
        ...


class FixedBudget:
    """Takes what there is, up to a fixed number of nodes; 0 is plain decoding."""

    def __init__(self, nodes: int) -> None:
        self._nodes = nodes

    @property
    def most(self) -> int:
        """The fixed number."""
        return self._nodes

    def choose(self, probabilities: Sequence[float], profile: VerifierProfile) -> int:
        """Return the number of candidates, at most the fixed number."""
        return min(len(probabilities), self._nodes)
