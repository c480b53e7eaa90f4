"""Tables and records of the tree unit, shaped as the hardware holds them.

**Tree slots.** M slots hold the nodes that have, or are about to get, KV: the roots and every
expanded node. Slots 0 to ``max_seqs - 1`` are the sequences' *home slots*, reserved for a root that
has not run yet (a prompt's last token, a miss, a leaf); growth uses the others. A root that was
expanded before it was committed keeps its slot.

**Children.** Slot s owns the K entries of row s of the child table, in order of rank. A child is a
candidate until it gets a slot of its own. Freeing a slot frees its children with it, so the
candidate table never needs a search, a free list or a rule for being full.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from ..messages import DraftLimits
from ..messages.line import HASH_START
from .pages import PageTable

__all__ = [
    "ChildEntry",
    "Phase",
    "Row",
    "RowKind",
    "RunningRow",
    "Sequence",
    "Slot",
]


class RowKind(enum.IntEnum):
    """What a row of a pass is for."""

    PREFILL = 0
    CATCHUP = 1
    GROWTH = 2


class Phase(enum.IntEnum):
    """State of a sequence slot."""

    CLOSED = 0
    OPEN = 1
    FULL = 2
    """The context doesn't fit the device; verdicts are followed, nothing is drafted."""
    LOST = 3
    """A verdict didn't fit; nothing happens until RESYNC, OPEN or CLOSE."""


@dataclass
class ChildEntry:
    """One entry of the child table."""

    token: int
    score: int
    slot: int | None = None
    stop: bool = False


@dataclass
class Slot:
    """One tree slot.

    Parameters
    ----------
    seq, node_id, token, position : int
        The node. The position counts from 0.
    score : int
        Sum of the edge scores from the sequence's root, 1/256 log2.
    ancestors : int
        Map over tree slots: the node's ancestors up to the root, and the node itself.
    page, offset : int
        KV slot, meaningful once `has_kv`.
    has_kv : bool
        A row of this node has begun.
    ready : bool
        Its row has ended: the children are known.
    row : int or None
        Row of the running pass.
    first_child : int
        Id of the child of rank 0; the others follow.
    children : list of ChildEntry
        In order of rank, at most K.
    next : int
        Rank of the first child that may still be expanded.
    """

    seq: int
    node_id: int
    token: int
    position: int
    score: int
    ancestors: int
    page: int = 0
    offset: int = 0
    has_kv: bool = False
    ready: bool = False
    row: int | None = None
    first_child: int = 0
    children: list[ChildEntry] = field(default_factory=list)
    next: int = 0


@dataclass
class Sequence:
    """One sequence slot.

    Parameters
    ----------
    tokens : list of int
        Committed tokens.
    done : int
        Tokens whose row has begun; the others are *pending*.
    prompt : int
        Tokens that came with OPEN or RESYNC; rows before this position count as prefill.
    context_hash, epoch, next_id : int
        Rolling hash, last epoch seen, id of the next candidate.
    root : int
        Tree slot of the root.
    """

    phase: Phase = Phase.CLOSED
    tokens: list[int] = field(default_factory=list)
    done: int = 0
    prompt: int = 0
    context_hash: int = HASH_START
    epoch: int = 0
    next_id: int = 1
    root: int = 0
    limits: DraftLimits = field(default_factory=DraftLimits)
    stops: tuple[int, ...] = ()
    pages: PageTable = field(default_factory=PageTable)

    @property
    def length(self) -> int:
        """Committed tokens."""
        return len(self.tokens)

    @property
    def pending(self) -> int:
        """Committed tokens whose row has not begun."""
        return self.length - self.done


@dataclass(frozen=True)
class Row:
    """Descriptor of one row of a pass.

    Parameters
    ----------
    index : int
        Row number in the pass.
    kind : RowKind
    seq, token, position : int
    page, phys, offset : int
        KV slot: index in the sequence's page table, that page in the pool, token in the page.
    slot : int or None
        Tree slot; None for pending tokens before the root.
    parent, rank : int or None
        Where a growth row comes from: tree slot of the parent and rank among its children.
    want_children : bool
        The head must find the row's best next tokens.
    visible : tuple of int
        For every page of the sequence, the map of tokens that the row attends to.
    """

    index: int
    kind: RowKind
    seq: int
    token: int
    position: int
    page: int
    phys: int
    offset: int
    slot: int | None
    parent: int | None
    rank: int | None
    want_children: bool
    visible: tuple[int, ...]


@dataclass
class RunningRow:
    """A row of the running pass and what is still wanted from it."""

    row: Row
    keep_kv: bool = True
    keep_children: bool = True

    @property
    def alive(self) -> bool:
        """Whether anything of the row is still of use."""
        return self.keep_kv or (self.keep_children and self.row.want_children)
