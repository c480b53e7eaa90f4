"""What a caller may ask of one decoding run."""

from __future__ import annotations

from dataclasses import dataclass, field

from dfvg_host.cli.values import check
from dfvg_host.files import is_text
from dfvg_host.verify import SamplingParams
from dfvg_hw.errors import UsageError

__all__ = ["DecodeParams"]


@dataclass(frozen=True)
class DecodeParams:
    """One request.

    Attributes
    ----------
    max_new_tokens: most tokens to write; 0 writes none and succeeds.
    sampling: how the target picks tokens.
    stop: texts that end the output; they're not part of it.
    stop_tokens: ids that end the output and are its last token; None takes the model's own
        end-of-text ids.
    tree_budget: most tree nodes in one verify pass; 0 is plain decoding.
    passes_per_round: most draft passes that find candidates between two verdicts; None takes what
        the verifier profile leaves time for.
    schedule: ``overlap`` (the device drafts while the target verifies) or ``lockstep``.
    check: compare every token with a target-only run of its own cache.
    exact: replay accepted tokens one by one, so that even rounding equals plain decoding.

    Raises
    ------
    UsageError
        A value outside its range.
    """

    max_new_tokens: int = 128
    sampling: SamplingParams = field(default_factory=SamplingParams)
    stop: tuple[str, ...] = ()
    stop_tokens: tuple[int, ...] | None = None
    tree_budget: int = 16
    passes_per_round: int | None = None
    schedule: str = "overlap"
    check: bool = False
    exact: bool = False

    def __post_init__(self) -> None:
        for name in ("max_new_tokens", "tree_budget", "schedule"):
            object.__setattr__(self, name, check(name, getattr(self, name)))
        if self.passes_per_round is not None:
            passes = check("passes_per_round", self.passes_per_round)
            object.__setattr__(self, "passes_per_round", passes)
        if isinstance(self.stop, str) or not all(isinstance(t, str) and t for t in self.stop):
            raise UsageError(f"stop is {self.stop!r}: expected texts that are not empty")
        for token in self.stop_tokens or ():
            if not isinstance(token, int) or isinstance(token, bool) or token < 0:
                raise UsageError(f"stop_tokens holds {token!r}: expected token ids")
        if any(not is_text(stop) for stop in self.stop):
            raise UsageError(
                f"stop is {self.stop!r}: expected texts, which hold no lone surrogates"
            )
