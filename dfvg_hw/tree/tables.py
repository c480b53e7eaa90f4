"""The tree unit's tables and what can be done to them: plant, walk, re-root, free."""

from __future__ import annotations

from dataclasses import dataclass

from ..config import DeviceConfig
from ..messages import ROOT_ID_FLAG, HitClass, context_hash
from .planner import Plan, Planner
from .state import Row, RowKind, RunningRow, Sequence, Slot

__all__ = ["TreeTables", "Walk"]


@dataclass(frozen=True)
class Walk:
    """Where a verdict's tokens lead.

    Parameters
    ----------
    last : int
        Last tree slot reached.
    on_tree : bool
        All tokens had a slot: `last` is the new root. Otherwise the new root has yet to run.
    hit : HitClass
    root_id : int
        Id of the new root.
    """

    last: int
    on_tree: bool
    hit: HitClass
    root_id: int


class TreeTables:
    """Sequences, tree slots, child table, KV pages and the rows of the running pass.

    Parameters
    ----------
    config : DeviceConfig
    """

    def __init__(self, config: DeviceConfig) -> None:
        self.config = config
        self.sequences = [Sequence() for _ in range(config.max_seqs)]
        self.slots: list[Slot | None] = [None] * config.m_slots
        # Home slots are never in the free map: they belong to their sequences.
        self.free_slots = (1 << config.m_slots) - (1 << config.max_seqs)
        self.free_pages = (1 << config.pool_pages) - 1
        self.running: list[RunningRow] | None = None
        self.turn = 0

    @property
    def aborted(self) -> bool:
        """Whether a pass is running of which no row is of use any more."""
        return self.running is not None and not any(running.alive for running in self.running)

    def slot(self, index: int) -> Slot:
        """Return a tree slot that is in use."""
        slot = self.slots[index]
        assert slot is not None, f"tree slot {index} is free"
        return slot

    # Passes --------------------------------------------------------------------------------

    def plan(self) -> Plan:
        """Choose the rows of a pass that would begin now."""
        return Planner(
            self.config, self.sequences, self.slots, self.free_slots, self.free_pages, self.turn
        ).plan()

    def begin(self, plan: Plan) -> None:
        """Start the rows of a plan that was made in the current state."""
        self.free_pages, self.free_slots = plan.free_pages, plan.free_slots
        for sequence, table in zip(self.sequences, plan.tables, strict=True):
            sequence.pages = table
        for parent, rank in plan.next_ranks.items():
            self.slot(parent).next = rank
        for row in plan.rows:
            self._start(row)
        if plan.rows[0].kind != RowKind.GROWTH:
            self.turn = (self.turn + 1) % self.config.max_seqs
        self.running = [RunningRow(row) for row in plan.rows]

    def _start(self, row: Row) -> None:
        if row.kind != RowKind.GROWTH:
            self.sequences[row.seq].done += 1
        if row.slot is None:
            return
        if row.parent is not None and row.rank is not None:
            parent = self.slot(row.parent)
            entry = parent.children[row.rank]
            entry.slot = row.slot
            self.slots[row.slot] = Slot(
                seq=row.seq,
                node_id=parent.first_child + row.rank,
                token=row.token,
                position=row.position,
                score=parent.score + entry.score,
                ancestors=parent.ancestors | 1 << row.slot,
            )
        slot = self.slot(row.slot)
        slot.page, slot.offset, slot.has_kv, slot.row = row.page, row.offset, True, row.index

    # Verdicts ------------------------------------------------------------------------------

    def plant(self, seq: int, node_id: int) -> None:
        """Put a root that has not run into the sequence's home slot."""
        sequence = self.sequences[seq]
        sequence.root = seq
        self.slots[seq] = Slot(
            seq=seq,
            node_id=node_id,
            token=sequence.tokens[-1],
            position=sequence.length - 1,
            score=0,
            ancestors=1 << seq,
        )

    def walk(self, seq: int, tokens: tuple[int, ...]) -> Walk:
        """Append committed tokens to a sequence while following them down the tree.

        Tokens with a slot are done; from the first without one on they are pending.
        """
        sequence = self.sequences[seq]
        sequence.context_hash = context_hash(tokens, sequence.context_hash)
        current, on_tree = sequence.root, True
        leaf_id: int | None = None
        for token in tokens:
            sequence.tokens.append(token)
            leaf_id = None
            if not on_tree:
                continue
            slot = self.slot(current)
            rank = next((r for r, c in enumerate(slot.children) if c.token == token), None)
            child = None if rank is None else slot.children[rank].slot
            if child is not None:
                current = child
                sequence.done += 1
                continue
            on_tree = False
            if rank is not None:
                leaf_id = slot.first_child + rank
        if on_tree:
            slot = self.slot(current)
            hit = HitClass.EXPANDED if slot.ready else HitClass.LEAF
            return Walk(current, True, hit, slot.node_id)
        if leaf_id is not None:
            return Walk(current, False, HitClass.LEAF, leaf_id)
        return Walk(current, False, HitClass.MISS, ROOT_ID_FLAG | sequence.length)

    def re_root(self, seq: int, walk: Walk) -> tuple[int, int]:
        """Commit the path that was walked, keep what lies below it, free everything else.

        Returns
        -------
        expanded, candidates : int
            Nodes with KV, and candidates, below the new root.
        """
        sequence = self.sequences[seq]
        target = self.slot(walk.last)
        path, base = target.ancestors, target.score
        removed = path & ~(1 << walk.last)
        expanded = candidates = 0
        for index, slot in enumerate(self.slots):
            if slot is None or slot.seq != seq:
                continue
            on_path = bool(path >> index & 1)
            if on_path and slot.has_kv:
                sequence.pages.commit(slot.page, slot.offset)
            if walk.on_tree and slot.ancestors >> walk.last & 1:
                slot.ancestors &= ~removed
                slot.score -= base
                expanded += index != walk.last
                candidates += len(slot.children)
            else:
                self._free_slot(index, keep_kv=on_path)
        if walk.on_tree:
            sequence.root = walk.last
        else:
            self.plant(seq, walk.root_id)
        return expanded, candidates - expanded

    # Freeing -------------------------------------------------------------------------------

    def _free_slot(self, index: int, keep_kv: bool) -> None:
        """Free a tree slot, its KV too unless `keep_kv`, and drop its row's results."""
        slot = self.slot(index)
        running = None if slot.row is None or self.running is None else self.running[slot.row]
        if slot.has_kv and not keep_kv:
            self.sequences[slot.seq].pages.release(slot.page, slot.offset)
        if running is not None:
            running.keep_kv &= keep_kv
            running.keep_children = False
        self.slots[index] = None
        if index >= self.config.max_seqs:
            self.free_slots |= 1 << index

    def drop_tree(self, seq: int) -> None:
        """Free the whole tree of a sequence; committed KV stays."""
        sequence = self.sequences[seq]
        for index, slot in enumerate(self.slots):
            if slot is not None and slot.seq == seq:
                self._free_slot(index, keep_kv=index == sequence.root)
        sequence.done = sequence.length

    def close(self, seq: int) -> None:
        """End a sequence, open or not: rows, slots and pages are free at once."""
        for running in self.running or ():
            if running.row.seq == seq:
                running.keep_kv = running.keep_children = False
        self.drop_tree(seq)
        for phys in self.sequences[seq].pages.phys:
            self.free_pages |= 1 << phys
        self.sequences[seq] = Sequence()
