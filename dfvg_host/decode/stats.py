"""What a run counts while it goes on."""

from __future__ import annotations

from dataclasses import dataclass, field

from dfvg_hw.messages import HitClass, PassDone, PassKind

from .walk import Tree

__all__ = ["DeviceCounters", "StepCounters"]

_PASS_NAMES = {
    PassKind.PREFILL: "prefill",
    PassKind.CATCHUP: "catchup",
    PassKind.GROWTH: "growth",
    PassKind.ABORTED: "aborted",
}
_HIT_NAMES = {HitClass.EXPANDED: "expanded", HitClass.LEAF: "leaf", HitClass.MISS: "miss"}


@dataclass
class DeviceCounters:
    """What the draft device did.

    Attributes
    ----------
    passes: draft passes by kind.
    hits: verdicts by what the tree held for the new root.
    nodes_run: candidates expanded.
    candidates: children found.
    cycles, ideal, ideal_bytes: growth and catch-up passes only, by the cycle model.
    idle: cycles of virtual time in which the device had nothing to do.
    """

    passes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_PASS_NAMES.values(), 0))
    hits: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_HIT_NAMES.values(), 0))
    nodes_run: int = 0
    candidates: int = 0
    cycles: int = 0
    ideal: int = 0
    ideal_bytes: int = 0
    idle: int = 0

    def count_pass(self, done: PassDone, cycles: int) -> None:
        """Count a pass that took ``cycles`` by the cycle model."""
        kind = PassKind(done.kind)
        self.passes[_PASS_NAMES[kind]] += 1
        self.nodes_run += done.growth_rows
        self.candidates += done.children
        if kind in (PassKind.CATCHUP, PassKind.GROWTH):
            self.cycles += cycles
            self.ideal += done.ideal
            self.ideal_bytes += done.ideal_bytes

    def count_hit(self, hit: HitClass) -> None:
        """Count a verdict."""
        self.hits[_HIT_NAMES[hit]] += 1


@dataclass
class StepCounters:
    """What the verifier did.

    Attributes
    ----------
    trees: (nodes, depth) of each verify pass after the prompt's.
    accepted: committed nodes of each of those passes.
    prefilled: whether the prompt's pass made a token.
    """

    trees: list[tuple[int, int]] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    prefilled: bool = False

    def count(self, tree: Tree, accepted: int) -> None:
        """Count a verify pass of which ``accepted`` nodes were committed."""
        self.trees.append((len(tree), tree.depth))
        self.accepted.append(accepted)

    @property
    def steps(self) -> int:
        """Verify steps; the prompt's pass is one, with one token."""
        return len(self.trees) + self.prefilled

    @property
    def nodes(self) -> int:
        """Tree nodes verified."""
        return sum(nodes for nodes, _ in self.trees)

    def per_depth(self) -> list[float]:
        """Entry d-1: share of the passes with nodes that committed a node at depth d."""
        paths = [path for path, (nodes, _) in zip(self.accepted, self.trees, strict=True) if nodes]
        return [
            sum(path >= depth for path in paths) / len(paths)
            for depth in range(1, max(paths, default=0) + 1)
        ]
