"""Host-to-device messages as the host thinks of them: whole token lists, not lines.

A transport turns them into lines with `lines`; devices in the same process take them as they are.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import ProtocolError
from .kinds import (
    NO_TOKEN,
    STOP_TOKENS,
    TOKENS_PER_LINE,
    CloseLine,
    ContextLine,
    Message,
    OpenLine,
    ResyncLine,
    RetuneLine,
    VerdictFlag,
    VerdictLine,
)

__all__ = ["Close", "Command", "DraftLimits", "Open", "Resync", "Retune", "Verdict"]

MIN_THRESHOLD = -(1 << 31)


@dataclass(frozen=True)
class DraftLimits:
    """How far the device may draft for one sequence.

    Parameters
    ----------
    threshold : int
        Least path score of a node worth expanding, 1/256 log2 (-2560 is a probability of 2^-10).
    max_depth : int
        Deepest level below the root that is expanded; its children are candidates one level lower.
        0 expands the root alone.
    max_slots : int
        Tree slots that the sequence may hold besides its root's.
    topk : int
        Children kept per node.
    """

    threshold: int = -2560
    max_depth: int = 0xFFFF
    max_slots: int = 0xFFFF
    topk: int = 16

    def __post_init__(self) -> None:
        for name, low, high in (
            ("threshold", MIN_THRESHOLD, 0),
            ("max_depth", 0, 0xFFFF),
            ("max_slots", 0, 0xFFFF),
            ("topk", 1, 16),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise ProtocolError(f"draft limit {name} is {value}: {low} to {high}")


@dataclass(frozen=True)
class Open:
    """Open sequence slot `seq` with a context of at least one token.

    The last token becomes the root. `epoch` starts the sequence's epoch count. Tokens in `stops`
    (at most four) are offered as candidates but never expanded.
    """

    seq: int
    tokens: tuple[int, ...]
    epoch: int = 0
    limits: DraftLimits = DraftLimits()
    stops: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.tokens:
            raise ProtocolError("context has 0 tokens: at least 1")
        if len(self.stops) > STOP_TOKENS:
            raise ProtocolError(f"{len(self.stops)} stop tokens: at most {STOP_TOKENS}")

    def line(self, address: int, context_hash: int) -> ContextLine:
        """Return the line for the command ring; the tokens lie at bus address `address`."""
        line = ResyncLine if isinstance(self, Resync) else OpenLine
        stops = self.stops + (NO_TOKEN,) * (STOP_TOKENS - len(self.stops))
        limits = self.limits
        return line(
            seq=self.seq,
            topk=limits.topk,
            epoch=self.epoch,
            count=len(self.tokens),
            context_hash=context_hash,
            address=address,
            threshold=limits.threshold,
            max_depth=limits.max_depth,
            max_slots=limits.max_slots,
            stops=stops,
        )


@dataclass(frozen=True)
class Resync(Open):
    """Replace the whole context of an open sequence.

    For a hash or length mismatch, or when a graft is so long that its tokens are better fetched by
    DMA. Nothing of the old context is kept.
    """


@dataclass(frozen=True)
class Verdict:
    """The tokens committed since the last root; see :class:`VerdictLine`."""

    seq: int
    epoch: int
    base_length: int
    context_hash: int
    tokens: tuple[int, ...]
    hint: int = 0

    def lines(self) -> list[VerdictLine]:
        """Return the lines for the mailbox or the command ring, in order."""
        chunks = [
            self.tokens[start : start + TOKENS_PER_LINE]
            for start in range(0, max(1, len(self.tokens)), TOKENS_PER_LINE)
        ]
        result = []
        for index, chunk in enumerate(chunks):
            flags = VerdictFlag(0)
            if index == 0:
                flags |= VerdictFlag.FIRST
            if index == len(chunks) - 1:
                flags |= VerdictFlag.LAST
            result.append(
                VerdictLine(
                    seq=self.seq,
                    count=len(chunk),
                    flags=int(flags),
                    epoch=self.epoch,
                    base_length=self.base_length,
                    context_hash=self.context_hash,
                    total=len(self.tokens),
                    hint=self.hint,
                    tokens=chunk,
                )
            )
        return result

    @classmethod
    def from_lines(cls, lines: list[VerdictLine]) -> Verdict:
        """Inverse of :meth:`lines`.

        Raises
        ------
        ProtocolError
            If lines are missing, out of order or of different verdicts.
        """
        if not lines:
            raise ProtocolError("verdict has 0 lines: at least 1")
        head = lines[0]
        key = (head.seq, head.epoch, head.base_length, head.context_hash, head.total)
        for index, line in enumerate(lines):
            same = key == (line.seq, line.epoch, line.base_length, line.context_hash, line.total)
            first, last = index == 0, index == len(lines) - 1
            flags = bool(line.flags & VerdictFlag.FIRST), bool(line.flags & VerdictFlag.LAST)
            if not same or flags != (first, last):
                raise ProtocolError(f"verdict line {index} does not continue epoch {head.epoch}")
        tokens = tuple(token for line in lines for token in line.tokens)
        if len(tokens) != head.total:
            raise ProtocolError(
                f"verdict has {len(tokens)} tokens: its lines announce {head.total}"
            )
        return cls(head.seq, head.epoch, head.base_length, head.context_hash, tokens, head.hint)


@dataclass(frozen=True)
class Close:
    """End sequence slot `seq`."""

    seq: int
    epoch: int = 0

    def lines(self) -> list[Message]:
        """Return the one line for the mailbox or the command ring."""
        return [CloseLine(seq=self.seq, epoch=self.epoch)]


@dataclass(frozen=True)
class Retune:
    """Change the limits of sequence slot `seq` from the next pass on."""

    seq: int
    limits: DraftLimits
    window: int = 0

    def lines(self) -> list[Message]:
        """Return the one line for the mailbox or the command ring."""
        limits = self.limits
        return [
            RetuneLine(
                seq=self.seq,
                topk=limits.topk,
                window=self.window,
                threshold=limits.threshold,
                max_depth=limits.max_depth,
                max_slots=limits.max_slots,
            )
        ]


Command = Open | Resync | Verdict | Close | Retune
"""Everything that `DraftDevice.send` takes."""
