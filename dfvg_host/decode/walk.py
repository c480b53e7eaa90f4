"""The agree rule: down the tree along the target's own draws."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from dfvg_host.verify import Draw, Sampler

__all__ = ["Tree", "walk"]


@dataclass(frozen=True)
class Tree:
    """Nodes chosen for one verify pass.

    Attributes
    ----------
    tokens: token of each node, parents before children; siblings differ.
    parents: index of the parent, -1 for the root.
    probabilities: chance, by the draft, that the target's text passes through the node.
    """

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    probabilities: tuple[float, ...] = ()

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def depth(self) -> int:
        """Levels below the root."""
        depths = [0]
        for parent in self.parents:
            depths.append(depths[parent + 1] + 1)
        return max(depths)

    def head(self, nodes: int) -> Tree:
        """Return the first ``nodes`` nodes; parents come first, so they're a tree."""
        if nodes >= len(self):
            return self
        return Tree(self.tokens[:nodes], self.parents[:nodes], self.probabilities[:nodes])


def walk(
    logits: torch.Tensor,
    tree: Tree,
    sampler: Sampler,
    index: int,
    commit: Callable[[Draw, torch.Tensor], bool],
) -> list[int]:
    """Draw at the root and on, as long as a child carries the token drawn.

    Parameters
    ----------
    logits: [1 + nodes, V], row 0 for the root.
    tree: the nodes of the other rows.
    sampler: the request's own.
    index: output index of the first draw.
    commit: called with each draw and its row of logits; True ends the walk (the output is full).

    Returns
    -------
    list of int
        Nodes passed through, top down. Every one of them carries a committed token, and one more
        token than nodes is committed unless the output ended on a node.
    """
    edges = zip(tree.parents, tree.tokens, strict=True)
    children = {edge: node for node, edge in enumerate(edges)}
    path: list[int] = []
    at: int | None = -1
    while at is not None:
        row = logits[at + 1]
        draw = sampler.draw(row, index)
        index += 1
        ended = commit(draw, row)
        at = children.get((at, draw.token))
        if at is not None:
            path.append(at)
        if ended:
            break
    return path
