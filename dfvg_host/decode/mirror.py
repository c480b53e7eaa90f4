"""The host's mirror of one sequence's draft tree.

The mirror is fed with NODES records and re-rooted by the device's own rule (``docs/tree.md``) when
a verdict is *sent*, so choosing what to verify never waits for the device. Everything that comes in
is checked; a record that no working device would send raises `ProtocolError`, upon which the caller
gives the device up.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from dfvg_hw.errors import ProtocolError
from dfvg_hw.messages import (
    CHILDREN_PER_LINE,
    ROOT_ID_FLAG,
    HitClass,
    Nodes,
    NodesFlag,
    VerdictAck,
)

from .sharpness import sharpened

__all__ = ["MirrorNode", "TreeMirror"]

_RANK_MASK = 15


@dataclass(eq=False)
class MirrorNode:
    """One node of the mirror.

    Attributes
    ----------
    id : int or None
        The device's name for it; None for a root that only the acknowledgement will name.
    token : int or None
        Token id; None for the first root, whose token the mirror has no use for.
    parent : MirrorNode or None
        None for the root.
    rank : int
        Place among its siblings, 0 for the most likely.
    logprob, score : int
        Edge log-probability and calibrated edge score, 1/256 log2, at most 0.
    total : int
        Sum of the scores on its path since OPEN; only differences mean something.
    level : int
        Its depth counted from the first root; likewise.
    children : list of MirrorNode or None
        In order of rank; None while the node isn't expanded.
    edges : tuple of float, list of float
        An exponent, and log2 of the children's probabilities under it.
    """

    id: int | None
    token: int | None
    parent: MirrorNode | None = None
    rank: int = 0
    logprob: int = 0
    score: int = 0
    total: int = 0
    level: int = 0
    children: list[MirrorNode] | None = None
    more: bool = field(default=False, repr=False)
    edges: tuple[float, list[float]] = field(default=(0.0, []), repr=False)

    def child(self, token: int) -> MirrorNode | None:
        """Return the child that carries the token, if there is one."""
        return next((c for c in self.children or () if c.token == token), None)

    def below(self) -> Iterator[MirrorNode]:
        """Yield the node and everything under it."""
        stack = [self]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children or ())


class TreeMirror:
    """Mirror of a sequence that was opened with `length` tokens.

    Parameters
    ----------
    length : int
        Committed tokens.
    vocabulary : int or None
        Token ids that the verifier knows; candidates outside raise. None checks nothing.
    stops : iterable of int
        Tokens below which nothing is offered for verification.

    Attributes
    ----------
    root : MirrorNode
    length : int
        Committed tokens, those of a verdict under way included.
    exponent : float
        Sharpness of the draft's probabilities, see `dfvg_host.decode.sharpness`: it decides which
        nodes are offered first. The device knows nothing of it.
    """

    def __init__(
        self, length: int, vocabulary: int | None = None, stops: Iterable[int] = ()
    ) -> None:
        if length < 1:
            raise ProtocolError(f"context has {length} tokens: at least 1")
        self.length = length
        self.exponent = 1.0
        self.root = MirrorNode(ROOT_ID_FLAG | length, None)
        self._vocabulary = vocabulary
        self._stops = frozenset(stops)
        self._by_id: dict[int, MirrorNode] = {ROOT_ID_FLAG | length: self.root}
        self._next_id = 1
        self._awaited: HitClass | None = None
        self._limbo: list[Nodes] = []

    def __len__(self) -> int:
        """Number of candidates and expanded nodes below the root."""
        return sum(1 for _ in self.root.below()) - 1

    # Reading -------------------------------------------------------------------------------

    @property
    def expanded(self) -> bool:
        """Whether the root's children are known."""
        return self.root.children is not None

    def depth(self, node: MirrorNode) -> int:
        """Return the node's depth below the root (its children have depth 1)."""
        return node.level - self.root.level

    def path_score(self, node: MirrorNode) -> int:
        """Return the sum of edge scores from the root to the node, 1/256 log2."""
        return node.total - self.root.total

    def probability(self, node: MirrorNode) -> float:
        """Return the probability, by draft and exponent, that the text passes through the node."""
        log2, child = 0.0, node
        while child is not self.root:
            assert child.parent is not None
            log2 += self._edges(child.parent)[child.rank]
            child = child.parent
        return float(2.0**log2)

    def _edges(self, node: MirrorNode) -> list[float]:
        """Return log2 of the probabilities of a node's children."""
        exponent, edges = node.edges
        if exponent != self.exponent or len(edges) != len(node.children or ()):
            edges, _ = sharpened([child.score for child in node.children or ()], self.exponent)
            node.edges = self.exponent, edges
        return edges

    def outcomes(self, tokens: Sequence[int]) -> Iterator[tuple[list[int], int | None]]:
        """Yield what tokens to be committed say about the draft, as far as the tree is known.

        For each token whose node is expanded: the children's edge scores, and which child it is.
        """
        node: MirrorNode | None = self.root
        for token in tokens:
            if node is None or not node.children or node.more:
                return
            found = node.child(token)
            yield [child.score for child in node.children], None if found is None else found.rank
            node = found

    def children(self, node: MirrorNode) -> Sequence[MirrorNode]:
        """Return the node's children in order of rank; none if it isn't expanded."""
        return tuple(node.children or ())

    def best(self, count: int, max_depth: int | None = None) -> list[MirrorNode]:
        """Return the `count` most probable nodes below the root, best first.

        Ties go to the lower id. Parents come before their children, so every prefix is a tree.
        Nothing below a stop token or deeper than `max_depth` is offered.
        """
        return self._ranked(count, max_depth, candidates_only=False)

    def frontier(self, count: int, max_depth: int | None = None) -> list[MirrorNode]:
        """Return the `count` most probable candidates (nodes not expanded), best first."""
        return self._ranked(count, max_depth, candidates_only=True)

    def _ranked(self, count: int, max_depth: int | None, candidates_only: bool) -> list[MirrorNode]:
        # Probabilities never rise along a path and ids do, so the heap yields a total order.
        heap: list[tuple[float, int, MirrorNode]] = []

        def offer(node: MirrorNode, unlikely: float) -> None:
            if node.children and (max_depth is None or self.depth(node) < max_depth):
                for child, edge in zip(node.children, self._edges(node), strict=True):
                    assert child.id is not None
                    heapq.heappush(heap, (unlikely - edge, child.id, child))

        found: list[MirrorNode] = []
        offer(self.root, 0.0)
        while heap and len(found) < count:
            unlikely, _, node = heapq.heappop(heap)
            stop = node.token in self._stops
            if not candidates_only or (node.children is None and not stop):
                found.append(node)
            if not stop:
                offer(node, unlikely)
        return found

    # Re-rooting ----------------------------------------------------------------------------

    def reroot(self, tokens: Sequence[int]) -> HitClass:
        """Move the root along committed tokens, at the moment their verdict is sent.

        Returns
        -------
        HitClass
            What the mirror has for the new root. A device that had found more by the time the
            verdict arrived answers with a better class.

        Raises
        ------
        ProtocolError
            If the verdict before hasn't been acknowledged.
        """
        if self._awaited is not None:
            raise ProtocolError("verdict sent while the one before is unacknowledged")
        node: MirrorNode | None = self.root
        for token in tokens:
            node = None if node is None else node.child(token)
        self.length += len(tokens)
        if node is None:
            # Its id is the device's to say: it may know this node already.
            node = MirrorNode(None, tokens[-1])
            self._awaited = HitClass.MISS
        else:
            self._awaited = HitClass.LEAF if node.children is None else HitClass.EXPANDED
        node.parent = None
        self.root = node
        self._by_id = {n.id: n for n in node.below() if n.id is not None}
        return self._awaited

    def acknowledge(self, ack: VerdictAck) -> None:
        """Take in the acknowledgement of the verdict under way.

        Raises
        ------
        ProtocolError
            If none is under way, or the device's tree is not the one mirrored here.
        """
        expected = self._awaited
        if expected is None:
            raise ProtocolError(f"acknowledgement of epoch {ack.epoch}: no verdict is under way")
        if ack.length != self.length:
            raise ProtocolError(f"device has {ack.length} committed tokens: expected {self.length}")
        # A device can't know less than it has told.
        if not 0 <= ack.hit <= expected:
            raise ProtocolError(f"device reports hit class {ack.hit}: expected {int(expected)}")
        if self.root.id is not None and ack.root_id != self.root.id:
            raise ProtocolError(f"device's root is {ack.root_id}: expected {self.root.id}")
        missed = ROOT_ID_FLAG | self.length
        if (ack.hit == HitClass.MISS and ack.root_id != missed) or (
            ack.root_id & ROOT_ID_FLAG and ack.root_id != missed and self.root.id is None
        ):
            raise ProtocolError(f"device's root is {ack.root_id}: a missed root is {missed}")
        self.root.id = ack.root_id
        self._by_id[ack.root_id] = self.root
        self._awaited = None
        limbo, self._limbo = self._limbo, []
        for nodes in limbo:
            if nodes.parent in self._by_id:
                self._attach(nodes)

    # Growing -------------------------------------------------------------------------------

    def apply(self, nodes: Nodes) -> None:
        """Take in a record of candidates; it's kept iff its parent lives here.

        While a verdict is under way, records of unknown parents are held back until the
        acknowledgement names the root: they may belong below it.

        Raises
        ------
        ProtocolError
            If the record is garbage: numbers out of range, lost or repeated ids, a parent that
            never was, children it has already, or twice the same token.
        """
        self._check(nodes)
        self._next_id = nodes.first_id + len(nodes.children)
        if nodes.parent in self._by_id:
            self._attach(nodes)
        elif self._awaited is None:
            raise ProtocolError(f"candidates of node {nodes.parent}: no such node is alive")
        else:
            self._limbo.append(nodes)

    def _check(self, nodes: Nodes) -> None:
        count = len(nodes.children)
        if not 1 <= count <= CHILDREN_PER_LINE or nodes.count != count:
            raise ProtocolError(f"record has {count} children: 1 to {CHILDREN_PER_LINE}")
        if nodes.first_id != self._next_id or nodes.first_id + count > ROOT_ID_FLAG:
            raise ProtocolError(f"candidates start at id {nodes.first_id}: next is {self._next_id}")
        for child in nodes.children:
            if child.token < 0 or (
                self._vocabulary is not None and child.token >= self._vocabulary
            ):
                raise ProtocolError(
                    f"candidate token {child.token} is outside the vocabulary of {self._vocabulary}"
                )
            if child.logprob > 0 or child.score > 0:
                raise ProtocolError(
                    f"candidate has log-probability {max(child.logprob, child.score)}: at most 0"
                )

    def _attach(self, nodes: Nodes) -> None:
        parent = self._by_id[nodes.parent]
        rank = nodes.flags & _RANK_MASK
        known = len(parent.children or ())
        if rank != known or (parent.children is not None and not parent.more):
            raise ProtocolError(
                f"candidates of node {nodes.parent} start at rank {rank} of {known}"
            )
        siblings = parent.children if parent.children is not None else []
        for offset, child in enumerate(nodes.children):
            if any(child.token == sibling.token for sibling in siblings):
                raise ProtocolError(
                    f"node {nodes.parent} has two children with token {child.token}"
                )
            node = MirrorNode(
                id=nodes.first_id + offset,
                token=child.token,
                parent=parent,
                rank=rank + offset,
                logprob=child.logprob,
                score=child.score,
                total=parent.total + child.score,
                level=parent.level + 1,
            )
            siblings.append(node)
            self._by_id[nodes.first_id + offset] = node
        parent.children = siblings
        parent.more = bool(nodes.flags & NodesFlag.MORE)
