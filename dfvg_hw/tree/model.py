"""Reference model of the tree unit: the golden model of the RTL and the emulator's tree.

Plain integers and lists, one method per thing that can happen to the tree. Everything that the
hardware decides is decided here, to the last tie-break; ``docs/tree.md`` states the rules.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

from ..config import DeviceConfig
from ..messages import (
    CHILDREN_PER_LINE,
    ROOT_ID_FLAG,
    Child,
    Close,
    Command,
    Event,
    EventCode,
    HitClass,
    Message,
    MessageType,
    Nodes,
    NodesFlag,
    Open,
    Opened,
    PassKind,
    Resync,
    Retune,
    Verdict,
    VerdictAck,
    context_hash,
)
from .planner import Plan
from .state import ChildEntry, Phase, Row, RowKind
from .tables import TreeTables

__all__ = ["PassSummary", "TreeModel"]

LOGPROB_MIN = -(1 << 15)


@dataclass(frozen=True)
class PassSummary:
    """What PASS_DONE reports of the tree; cycles come from elsewhere."""

    number: int
    kind: PassKind
    rows: int
    dropped: int
    children: int
    sequences: int
    prefill_rows: int
    catchup_rows: int
    growth_rows: int
    free_slots: int


_TYPES = {
    Open: MessageType.OPEN,
    Resync: MessageType.RESYNC,
    Verdict: MessageType.VERDICT,
    Close: MessageType.CLOSE,
    Retune: MessageType.RETUNE,
}


class TreeModel(TreeTables):
    """Trees of all sequences of one device.

    Parameters
    ----------
    config : DeviceConfig
    vocabulary : int
        Tokens that the draft can embed; larger ids in commands are refused.

    Notes
    -----
    Commands may be applied at any time, also while a pass is running. The caller alternates
    `begin_pass` and `end_pass`, and fetches messages with `take_messages`.
    """

    def __init__(self, config: DeviceConfig, vocabulary: int) -> None:
        super().__init__(config)
        self.vocabulary = vocabulary
        self.pass_number = 0
        self._plan: Plan | None = None
        self._messages: list[Message] = []

    def take_messages(self) -> list[Message]:
        """Return the messages since the last call, in order."""
        messages, self._messages = self._messages, []
        return messages

    # Commands ------------------------------------------------------------------------------

    def apply(self, command: Command) -> None:
        """Apply a command; anything wrong with it becomes an EVENT, never an exception."""
        self._plan = None
        if not 0 <= command.seq < self.config.max_seqs:
            self._event(EventCode.BAD_MESSAGE, command)
        elif isinstance(command, Open):
            self._open(command)
        elif self.sequences[command.seq].phase == Phase.CLOSED:
            self._event(EventCode.UNKNOWN_SEQUENCE, command)
        elif isinstance(command, Verdict):
            self._verdict(command)
        elif isinstance(command, Retune):
            self.sequences[command.seq].limits = command.limits
        else:
            self.close(command.seq)

    def _event(self, code: EventCode, command: Command, info0: int = 0, info1: int = 0) -> None:
        if code == EventCode.BAD_MESSAGE:
            info0 = int(_TYPES[type(command)])
        epoch = getattr(command, "epoch", 0)
        self._messages.append(
            Event(code=int(code), seq=command.seq & 0xFF, epoch=epoch, info0=info0, info1=info1)
        )

    def _open(self, command: Open) -> None:
        if isinstance(command, Resync) and self.sequences[command.seq].phase == Phase.CLOSED:
            self._event(EventCode.UNKNOWN_SEQUENCE, command)
            return
        self.close(command.seq)
        if any(token >= self.vocabulary for token in command.tokens):
            self._event(EventCode.BAD_MESSAGE, command)
            return
        sequence = self.sequences[command.seq]
        sequence.phase = Phase.OPEN
        sequence.tokens = list(command.tokens)
        sequence.prompt = sequence.length
        sequence.context_hash = context_hash(command.tokens)
        sequence.epoch = command.epoch
        sequence.limits = command.limits
        sequence.stops = command.stops
        self._messages.append(
            Opened(
                seq=command.seq,
                epoch=command.epoch,
                length=sequence.length,
                context_hash=sequence.context_hash,
            )
        )
        if sequence.length > self.config.max_ctx:
            self._fill_up(command)
        else:
            self.plant(command.seq, ROOT_ID_FLAG | sequence.length)

    def _fill_up(self, command: Command) -> None:
        sequence = self.sequences[command.seq]
        sequence.phase = Phase.FULL
        sequence.done = sequence.length
        self._event(EventCode.CONTEXT_FULL, command, sequence.length)

    def _verdict(self, command: Verdict) -> None:
        sequence = self.sequences[command.seq]
        refusal = self._refusal(command)
        if refusal is not None:
            # Nothing of the tree can be trusted any more; a pass that's running may still end.
            self.drop_tree(command.seq)
            sequence.phase = Phase.LOST
            self._event(*refusal)
            return
        sequence.epoch = command.epoch
        if sequence.length + len(command.tokens) > self.config.max_ctx:
            self._follow_without_tree(command)
            return
        walk = self.walk(command.seq, command.tokens)
        expanded, candidates = self.re_root(command.seq, walk)
        self._acknowledge(command, walk.hit, walk.root_id, expanded, candidates)

    def _refusal(self, command: Verdict) -> tuple[EventCode, Command, int, int] | None:
        sequence = self.sequences[command.seq]
        if sequence.phase == Phase.LOST or command.base_length != sequence.length:
            return EventCode.LENGTH_MISMATCH, command, sequence.length, command.base_length
        if command.context_hash != sequence.context_hash:
            return EventCode.HASH_MISMATCH, command, sequence.context_hash, command.context_hash
        if any(token >= self.vocabulary for token in command.tokens):
            return EventCode.BAD_MESSAGE, command, 0, 0
        return None

    def _follow_without_tree(self, command: Verdict) -> None:
        sequence = self.sequences[command.seq]
        sequence.tokens.extend(command.tokens)
        sequence.context_hash = context_hash(command.tokens, sequence.context_hash)
        self.drop_tree(command.seq)
        if sequence.phase != Phase.FULL:
            self._fill_up(command)
        self._acknowledge(command, HitClass.MISS, ROOT_ID_FLAG | sequence.length, 0, 0)

    def _acknowledge(
        self, command: Verdict, hit: HitClass, root_id: int, expanded: int, candidates: int
    ) -> None:
        sequence = self.sequences[command.seq]
        during = self.running is not None
        self._messages.append(
            VerdictAck(
                seq=command.seq,
                hit=int(hit),
                flags=during | self.aborted << 1,
                epoch=command.epoch,
                root_id=root_id,
                length=sequence.length,
                context_hash=sequence.context_hash,
                expanded=expanded,
                candidates=candidates,
                pending=sequence.pending,
            )
        )

    # Passes --------------------------------------------------------------------------------

    def next_rows(self) -> tuple[Row, ...]:
        """Return the rows that `begin_pass` would start now; nothing changes."""
        if self._plan is None:
            self._plan = self.plan()
        return self._plan.rows

    def next_tables(self) -> dict[int, list[int]]:
        """Return the physical pages that each sequence with rows in `next_rows` would have."""
        rows = self.next_rows()
        assert self._plan is not None
        return {row.seq: self._plan.tables[row.seq].phys for row in rows}

    def begin_pass(self) -> tuple[Row, ...]:
        """Start a pass and return its rows; without rows there is nothing to do and no pass."""
        assert self.running is None, "a pass is running already"
        rows = self.next_rows()
        if rows:
            assert self._plan is not None
            self.begin(self._plan)
            self._plan = None
            self.pass_number += 1
        return rows

    def end_pass(self, results: Mapping[int, SequenceOf[tuple[int, int]]]) -> PassSummary:
        """End the running pass.

        Parameters
        ----------
        results : mapping of int to sequence of (token, log-probability)
            For each row that wants children, its best tokens in order, at most K; edge
            log-probabilities in 1/256 log2. An aborted pass needs none.
        """
        assert self.running is not None, "no pass is running"
        aborted, running = self.aborted, self.running
        self.running, self._plan = None, None
        found = 0
        for entry in running:
            if entry.keep_children and entry.row.want_children:
                found += self._grow(entry.row, results[entry.row.index])
        kinds = [entry.row.kind for entry in running]
        return PassSummary(
            number=self.pass_number,
            kind=PassKind.ABORTED if aborted else PassKind(min(kinds)),
            rows=len(running),
            dropped=sum(e.row.want_children and not e.keep_children for e in running),
            children=found,
            sequences=sum(1 << seq for seq in {entry.row.seq for entry in running}),
            prefill_rows=kinds.count(RowKind.PREFILL),
            catchup_rows=kinds.count(RowKind.CATCHUP),
            growth_rows=kinds.count(RowKind.GROWTH),
            free_slots=self.free_slots.bit_count(),
        )

    def fail_pass(self) -> PassSummary:
        """End the running pass without results: it was cut off by the watchdog or a soft reset.

        KV that its rows should have written is missing, so its sequences are given up until the
        host opens them anew.
        """
        assert self.running is not None, "no pass is running"
        wanted = not self.aborted
        for seq in sorted({entry.row.seq for entry in self.running}):
            sequence = self.sequences[seq]
            if not wanted or sequence.phase != Phase.OPEN:
                continue
            self.drop_tree(seq)
            sequence.phase = Phase.LOST
            self._messages.append(
                Event(code=int(EventCode.WATCHDOG), seq=seq, epoch=sequence.epoch)
            )
        for entry in self.running:
            entry.keep_kv = entry.keep_children = False
        return self.end_pass({})

    def _grow(self, row: Row, results: SequenceOf[tuple[int, int]]) -> int:
        """Enter a row's children, send their records and return how many there are."""
        assert row.slot is not None
        sequence, slot = self.sequences[row.seq], self.slot(row.slot)
        kept = results[: min(sequence.limits.topk, self.config.topk)]
        slot.row, slot.ready, slot.first_child = None, True, sequence.next_id
        sequence.next_id += len(kept)
        slot.children = [
            ChildEntry(token, self.calibrate(logprob), None, token in sequence.stops)
            for token, logprob in kept
        ]
        for first in range(0, len(kept), CHILDREN_PER_LINE):
            chunk = kept[first : first + CHILDREN_PER_LINE]
            more = NodesFlag.MORE if first + CHILDREN_PER_LINE < len(kept) else 0
            self._messages.append(
                Nodes(
                    seq=row.seq,
                    count=len(chunk),
                    flags=first | more,
                    parent=slot.node_id,
                    first_id=slot.first_child + first,
                    epoch=sequence.epoch & 0xFFFF,
                    pass_number=self.pass_number & 0xFFFF,
                    children=tuple(
                        Child(token, logprob, self.calibrate(logprob)) for token, logprob in chunk
                    ),
                )
            )
        return len(kept)

    @staticmethod
    def calibrate(logprob: int) -> int:
        """Edge score of an edge log-probability; the place of the calibration table."""
        return max(LOGPROB_MIN, min(0, logprob))
