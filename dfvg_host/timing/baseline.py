"""What the same text would have cost without a separate drafter, by the same profile."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .profile import VerifierProfile

__all__ = ["Baseline", "baseline"]


@dataclass(frozen=True)
class Baseline:
    """Tokens per second of the two rivals, from profile figures alone.

    Attributes
    ----------
    plain: one target pass per token.
    same_device_draft: the very trees of this run, drafted on the verifier itself and verified
        there, one after the other: one draft pass per level of each tree. This favours the rival:
        it is given every tree, also those that only grew because the card drafts all the time.
    """

    plain: float
    same_device_draft: float

    def to_dict(self) -> dict[str, float]:
        """Return the stats file's object."""
        return {"plain": self.plain, "same_device_draft": self.same_device_draft}


def baseline(
    profile: VerifierProfile, prompt: int, tokens: int, trees: Iterable[tuple[int, int]]
) -> Baseline | None:
    """Return the rivals' speed for a run, or None if it made no token or took no time.

    Parameters
    ----------
    profile: latencies.
    prompt: tokens of the prompt.
    tokens: tokens committed; the first comes out of the prompt's pass.
    trees: (nodes, depth) of each verify pass after the prompt's.
    """
    prefill = profile.prefill(prompt)
    plain = prefill + (tokens - 1) * profile.verify(0)
    if tokens == 0 or plain == 0:
        return None
    drafted = prefill + sum(depth * profile.draft + profile.verify(n) for n, depth in trees)
    return Baseline(tokens / plain, tokens / drafted)
