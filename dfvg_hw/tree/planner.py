"""Choice of the next pass's rows: pure, so that its cost can be known before it runs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..config import DeviceConfig
from .pages import PageTable, lowest_bit
from .state import Phase, Row, RowKind, Sequence, Slot

__all__ = ["Plan", "Planner"]


@dataclass(frozen=True)
class Plan:
    """Rows of a pass, and the allocation state after they have begun."""

    rows: tuple[Row, ...]
    tables: tuple[PageTable, ...]
    free_pages: int
    free_slots: int
    next_ranks: dict[int, int]


class Planner:
    """Builds one plan; the tree's state isn't touched.

    1. Pending tokens: all of the first sequence in turn (as many as there are rows), then all of
       the next, in order of position. The last pending token is the root; it alone wants children,
       and takes its home slot.
    2. Growth: one after another, the candidate with the highest path score among all sequences
       without pending tokens. Ties go to the lower parent slot. Ranks of one parent go in order,
       because scores fall with rank. A sequence with pending tokens has no candidates: its root
       has not run.
    """

    def __init__(
        self,
        config: DeviceConfig,
        sequences: list[Sequence],
        slots: list[Slot | None],
        free_slots: int,
        free_pages: int,
        turn: int,
    ) -> None:
        self._config = config
        self._sequences = sequences
        self._slots = slots
        self._free_slots = free_slots
        self._free_pages = free_pages
        self._turn = turn
        self._tables = [sequence.pages.copy() for sequence in sequences]
        self._next: dict[int, int] = {}
        self._held = [0] * len(sequences)
        for slot in slots:
            if slot is not None:
                self._held[slot.seq] += 1
        self._rows: list[Row] = []

    def plan(self) -> Plan:
        """Return the plan; it has no rows if there is nothing to do."""
        count = len(self._sequences)
        for step in range(count):
            self._take_pending((self._turn + step) % count)
        while len(self._rows) < self._config.rows and self._free_slots:
            best = self._best_candidate()
            if best is None:
                break
            self._take_candidate(*best)
        return Plan(
            tuple(self._padded(row) for row in self._rows),
            tuple(self._tables),
            self._free_pages,
            self._free_slots,
            self._next,
        )

    def _padded(self, row: Row) -> Row:
        """Return the row with a map for every page, also those that later rows added."""
        missing = len(self._tables[row.seq].phys) - len(row.visible)
        return replace(row, visible=row.visible + (0,) * missing)

    def _allocate(self, seq: int) -> tuple[int, int, int]:
        table = self._tables[seq]
        page, offset, self._free_pages = table.allocate(self._free_pages)
        return page, table.phys[page], offset

    def _take_pending(self, seq: int) -> None:
        sequence = self._sequences[seq]
        if sequence.phase != Phase.OPEN:
            return
        room = self._config.rows - len(self._rows)
        table = self._tables[seq]
        for position in range(sequence.done, min(sequence.length, sequence.done + room)):
            page, phys, offset = self._allocate(seq)
            # Later rows of the pass see it, earlier ones have their maps already: causal.
            table.commit(page, offset)
            last = position == sequence.length - 1
            self._rows.append(
                Row(
                    index=len(self._rows),
                    kind=RowKind.PREFILL if position < sequence.prompt else RowKind.CATCHUP,
                    seq=seq,
                    token=sequence.tokens[position],
                    position=position,
                    page=page,
                    phys=phys,
                    offset=offset,
                    slot=seq if last else None,
                    parent=None,
                    rank=None,
                    want_children=last,
                    visible=tuple(table.committed),
                )
            )

    def _head(self, index: int, slot: Slot) -> int | None:
        """Rank of the slot's best child that may be expanded, stop tokens passed over."""
        rank = self._next.get(index, slot.next)
        while rank < len(slot.children) and slot.children[rank].stop:
            rank += 1
        return rank if rank < len(slot.children) else None

    def _best_candidate(self) -> tuple[int, int] | None:
        best, best_score = None, 0
        for index, slot in enumerate(self._slots):
            if slot is None or not slot.ready or not self._may_grow(slot):
                continue
            rank = self._head(index, slot)
            if rank is None:
                continue
            score = slot.score + slot.children[rank].score
            if score < self._sequences[slot.seq].limits.threshold:
                continue
            if best is None or score > best_score:
                best, best_score = (index, rank), score
        return best

    def _may_grow(self, slot: Slot) -> bool:
        """Whether children of the slot's node may get KV."""
        sequence = self._sequences[slot.seq]
        limits = sequence.limits
        depth = slot.position + 1 - (sequence.length - 1)
        return (
            sequence.phase == Phase.OPEN
            and sequence.pending == 0
            and depth <= limits.max_depth
            and slot.position + 1 < self._config.max_ctx
            and self._held[slot.seq] - 1 < limits.max_slots
        )

    def _take_candidate(self, parent: int, rank: int) -> None:
        slot = self._slots[parent]
        assert slot is not None
        seq = slot.seq
        index = lowest_bit(self._free_slots)
        self._free_slots &= ~(1 << index)
        self._next[parent] = rank + 1
        self._held[seq] += 1
        page, phys, offset = self._allocate(seq)
        self._rows.append(
            Row(
                index=len(self._rows),
                kind=RowKind.GROWTH,
                seq=seq,
                token=slot.children[rank].token,
                position=slot.position + 1,
                page=page,
                phys=phys,
                offset=offset,
                slot=index,
                parent=parent,
                rank=rank,
                want_children=True,
                visible=self._visible(seq, slot.ancestors, page, offset),
            )
        )

    def _visible(self, seq: int, ancestors: int, page: int, offset: int) -> tuple[int, ...]:
        maps = self._tables[seq].committed[:]
        maps[page] |= 1 << offset
        while ancestors:
            index = lowest_bit(ancestors)
            ancestors &= ancestors - 1
            slot = self._slots[index]
            assert slot is not None
            maps[slot.page] |= 1 << slot.offset
        return tuple(maps)
