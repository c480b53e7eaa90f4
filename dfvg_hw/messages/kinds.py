"""Every message between host and device: meaning, layout and limits.

Directions: *command* messages go through the host-to-device command ring, *mailbox* messages are
posted writes into the sequence's mailbox, *device* messages fill the device-to-host ring.

Log-probabilities are in units of 1/256 log2 (-256 means probability 1/2) and never positive.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from .layout import Record, records, s16, s32, u8, u16, u32, u32s, u64

__all__ = [
    "ABI_VERSION",
    "CHILDREN_PER_LINE",
    "IMAGE_VERSION",
    "LOGPROB_ONE",
    "MESSAGE_TYPES",
    "MESSAGE_VERSION",
    "NO_TOKEN",
    "ROOT_ID_FLAG",
    "STOP_TOKENS",
    "TOKENS_PER_LINE",
    "Capability",
    "Child",
    "CloseLine",
    "ContextLine",
    "Event",
    "EventCode",
    "HitClass",
    "LoadLine",
    "Message",
    "MessageType",
    "Nodes",
    "NodesFlag",
    "NodesTopk",
    "OpenLine",
    "Opened",
    "PassDone",
    "PassKind",
    "ResyncLine",
    "RetuneLine",
    "Stats",
    "TopkEntry",
    "VerdictAck",
    "VerdictFlag",
    "VerdictLine",
]

ABI_VERSION = 1
"""Version of the register map and of the rings."""
IMAGE_VERSION = 1
"""Version of compiled draft images and of the instruction set they hold."""
MESSAGE_VERSION = 1
"""Version of the layouts in this module."""

LOGPROB_ONE = 256
"""Units of a log-probability per factor of two."""
TOKENS_PER_LINE = 8
CHILDREN_PER_LINE = 5
TOPK_PER_LINE = 5
STOP_TOKENS = 4
NO_TOKEN = 0xFFFFFFFF
"""Fills unused token fields."""
ROOT_ID_FLAG = 0x8000_0000
"""Set in the id of a root that was never a candidate; the other bits are the committed length."""


class Capability(enum.IntFlag):
    """Capability word, read when a device is opened."""

    RING = 1 << 0  # messages travel in rings of 64-byte lines
    VIRTUAL_TIME = 1 << 1  # passes run on demand, see DraftDevice.run_pass
    TRUNCATED_HEAD = 1 << 2  # output ids are mapped to token ids on the device
    CALIBRATION = 1 << 3  # edge scores come from a calibration table
    SAMPLED_GROUPS = 1 << 4  # NODES_TOPK is sent


class MessageType(enum.IntEnum):
    """First byte of every message; host-to-device types have bit 7 set."""

    NODES = 0x01
    NODES_TOPK = 0x02
    VERDICT_ACK = 0x03
    PASS_DONE = 0x04
    EVENT = 0x05
    STATS = 0x06
    OPENED = 0x07
    LOAD = 0x81
    OPEN = 0x82
    RESYNC = 0x83
    VERDICT = 0x84
    CLOSE = 0x85
    RETUNE = 0x86


class HitClass(enum.IntEnum):
    """What the device had for the new root when a verdict arrived."""

    EXPANDED = 0  # its KV is there and its children are known
    LEAF = 1  # it's a candidate, or its row is in the running pass
    MISS = 2  # it was never drafted


class PassKind(enum.IntEnum):
    """What a pass was for: the first of these that any of its rows was for."""

    PREFILL = 0
    CATCHUP = 1
    GROWTH = 2
    ABORTED = 3


class EventCode(enum.IntEnum):
    """Why the device speaks up."""

    CONTEXT_FULL = 1  # info0: committed length; no more drafting for the sequence
    HASH_MISMATCH = 2  # info0: own hash, info1: hash received; drafting stops until RESYNC
    LENGTH_MISMATCH = 3  # info0: own length, info1: length received; likewise
    UNKNOWN_SEQUENCE = 4  # a message for a sequence that isn't open; ignored
    BAD_MESSAGE = 5  # info0: type byte; a message with values out of range; ignored
    BAD_LINE = 6  # info0: expected tag; CRC error in the command ring or mailbox
    MEMORY_ERROR = 7  # info0: error register, info1: program counter; the pass was aborted
    WATCHDOG = 8  # info0: program counter, info1: register dump_busy; the pass was aborted
    LOAD_DONE = 9  # info0: command id
    LOAD_ERROR = 10  # info0: command id, info1: CRC found


class NodesFlag(enum.IntFlag):
    """Flags of a NODES record."""

    MORE = 1 << 4  # another record with children of the same parent follows
    # bits 0-3: rank of the first child in this record


class VerdictFlag(enum.IntFlag):
    """Flags of a VERDICT line."""

    FIRST = 1 << 0
    LAST = 1 << 1


class Message(Record):
    """A record that fills one line; `TYPE` is its first byte."""

    TYPE: MessageType


@dataclass(frozen=True)
class Child(Record):
    """One candidate: a child of an expanded node."""

    token: int = u32(0, "token id, of the target's vocabulary")
    logprob: int = s16(4, "edge log-probability under the draft, 1/256 log2")
    score: int = s16(6, "calibrated edge log-probability, 1/256 log2")


@dataclass(frozen=True, kw_only=True)
class Nodes(Message):
    """Candidates found by one expanded node, in descending order of probability.

    Child `i` of the record has the id ``first_id + i`` and the rank ``(flags & 15) + i``. More
    than five children take several records. The host multiplies along the path from the current
    root; it keeps a record iff the parent lives in its mirror of the tree.
    """

    TYPE = MessageType.NODES

    seq: int = u8(0x01, "sequence slot")
    count: int = u8(0x02, "children in this record, 1 to 5")
    flags: int = u8(0x03, "bits 0-3: rank of the first child; bit 4: more records follow")
    parent: int = u32(0x04, "id of the expanded node")
    first_id: int = u32(0x08, "id of the first child; the others follow consecutively")
    epoch: int = u16(0x0C, "low bits of the epoch of the last verdict applied; for diagnosis")
    pass_number: int = u16(0x0E, "low bits of the pass that found them; for diagnosis")
    children: tuple[Child, ...] = records(Child, 0x10, CHILDREN_PER_LINE, "the children")


@dataclass(frozen=True)
class TopkEntry(Record):
    """One entry of a sampled group's distribution."""

    token: int = u32(0, "token id")
    weight: int = u32(4, "integer weight it was drawn with")


@dataclass(frozen=True, kw_only=True)
class NodesTopk(Message):
    """The weights that a sampled sibling group was really drawn from (ratio rule only)."""

    TYPE = MessageType.NODES_TOPK

    seq: int = u8(0x01, "sequence slot")
    count: int = u8(0x02, "entries in this record, 1 to 5")
    flags: int = u8(0x03, "bits 0-3: index of the first entry; bit 4: more records follow")
    parent: int = u32(0x04, "id of the expanded node")
    total: int = u32(0x08, "sum of all weights of the group")
    epoch: int = u16(0x0C, "as in NODES")
    pass_number: int = u16(0x0E, "as in NODES")
    entries: tuple[TopkEntry, ...] = records(TopkEntry, 0x10, TOPK_PER_LINE, "the entries")


@dataclass(frozen=True, kw_only=True)
class VerdictAck(Message):
    """A verdict was applied; all later NODES records belong to the new tree."""

    TYPE = MessageType.VERDICT_ACK

    seq: int = u8(0x01, "sequence slot")
    hit: int = u8(0x02, "hit class: 0 expanded, 1 leaf, 2 miss")
    flags: int = u8(0x03, "bit 0: it arrived during a pass; bit 1: that pass was aborted", 0)
    epoch: int = u32(0x04, "epoch of the verdict")
    root_id: int = u32(0x08, "id of the new root; bit 31 is set if it never was a candidate")
    length: int = u32(0x0C, "committed tokens now")
    context_hash: int = u32(0x10, "hash of the committed tokens now")
    expanded: int = u16(0x14, "nodes below the new root that kept their KV")
    candidates: int = u16(0x16, "candidates that survived")
    pending: int = u32(0x18, "committed tokens that have no KV yet")
    cycles: int = u32(0x1C, "clock cycles from the last token to the re-rooted tree", 0)


@dataclass(frozen=True, kw_only=True)
class PassDone(Message):
    """A pass ended and all of its records are in the ring."""

    TYPE = MessageType.PASS_DONE

    kind: int = u8(0x01, "0 prefill, 1 catch-up, 2 growth, 3 aborted")
    rows: int = u8(0x02, "rows that ran")
    dropped: int = u8(0x03, "rows whose children a verdict made useless during the pass", 0)
    number: int = u32(0x04, "pass number, counting from 1")
    children: int = u16(0x08, "candidates found")
    sequences: int = u16(0x0A, "bit mask of the sequences with rows in the pass")
    prefill_rows: int = u8(0x0C, "rows of the opening prompt", 0)
    catchup_rows: int = u8(0x0D, "rows of committed tokens without KV", 0)
    growth_rows: int = u8(0x0E, "rows of candidates", 0)
    free_slots: int = u8(0x0F, "free tree slots", 0)
    cycles: int = u64(0x10, "clock cycles from the start of the pass to its end")
    ideal: int = u64(0x18, "sum over operators of max(bytes/BUS, MACs/array); 0: not counted")
    ideal_bytes: int = u64(0x20, "bytes of weights and live KV / BUS, in cycles; 0: not counted")
    idle: int = u64(0x28, "cycles before the pass in which there was no work", 0)


@dataclass(frozen=True, kw_only=True)
class Event(Message):
    """Something that the host should know or act on."""

    TYPE = MessageType.EVENT

    code: int = u8(0x01, "event code")
    seq: int = u8(0x02, "sequence slot, 255 if none", 255)
    epoch: int = u32(0x04, "epoch of the message concerned", 0)
    info0: int = u32(0x08, "depends on the code", 0)
    info1: int = u32(0x0C, "depends on the code", 0)


@dataclass(frozen=True, kw_only=True)
class Stats(Message):
    """Counters since reset, sent on request (register `control`, bit `stats`)."""

    TYPE = MessageType.STATS

    passes: int = u32(0x04, "passes that finished", 0)
    aborted: int = u32(0x08, "passes that were aborted", 0)
    verdicts: int = u32(0x0C, "verdicts applied", 0)
    rows: int = u32(0x10, "rows run", 0)
    candidates: int = u32(0x14, "candidates found", 0)
    cycles: int = u64(0x18, "clock cycles", 0)
    busy: int = u64(0x20, "clock cycles inside passes", 0)
    words: int = u64(0x28, "memory words read", 0)


@dataclass(frozen=True, kw_only=True)
class Opened(Message):
    """OPEN or RESYNC was carried out; all later messages of the slot belong to the new context.

    The host ignores whatever it receives for the slot before this, because it may be left over
    from the context before.
    """

    TYPE = MessageType.OPENED

    seq: int = u8(0x01, "sequence slot")
    epoch: int = u32(0x04, "epoch of the OPEN or RESYNC")
    length: int = u32(0x08, "committed tokens")
    context_hash: int = u32(0x0C, "their hash")


@dataclass(frozen=True, kw_only=True)
class ContextLine(Message):
    """Base of OPEN and RESYNC: a context by DMA and the limits for drafting on it."""

    seq: int = u8(0x01, "sequence slot")
    topk: int = u8(0x02, "children kept per node, 1 to the device's topk")
    epoch: int = u32(0x04, "starts the epoch count of the sequence; verdicts go on from it")
    count: int = u32(0x08, "tokens of the context, at least 1")
    context_hash: int = u32(0x0C, "hash of those tokens")
    address: int = u64(0x10, "bus address of the tokens, u32 each, 64-byte aligned")
    threshold: int = s32(0x18, "least path score of a node worth expanding, 1/256 log2")
    max_depth: int = u16(0x1C, "deepest level below the root that is expanded")
    max_slots: int = u16(0x1E, "tree slots the sequence may hold besides its root's")
    stops: tuple[int, ...] = u32s(
        0x20, STOP_TOKENS, "tokens that are never expanded, 0xFFFFFFFF if unused", fixed=True
    )


@dataclass(frozen=True, kw_only=True)
class OpenLine(ContextLine):
    """Open a sequence: everything is prefilled, the last token becomes the root."""

    TYPE = MessageType.OPEN


@dataclass(frozen=True, kw_only=True)
class ResyncLine(ContextLine):
    """Replace the context of an open sequence; its tree, KV and node ids start anew."""

    TYPE = MessageType.RESYNC


@dataclass(frozen=True, kw_only=True)
class VerdictLine(Message):
    """Tokens committed since the last root, at most eight a line.

    A verdict of several lines sends them back to back; only the first has the FIRST flag and only
    the last the LAST flag. `base_length` and `context_hash` describe the context *before* these
    tokens and must equal the device's own.
    """

    TYPE = MessageType.VERDICT

    seq: int = u8(0x01, "sequence slot")
    count: int = u8(0x02, "tokens in this line, 0 to 8")
    flags: int = u8(0x03, "bit 0: first line; bit 1: last line")
    epoch: int = u32(0x04, "number of this verdict")
    base_length: int = u32(0x08, "committed tokens before this verdict")
    context_hash: int = u32(0x0C, "context hash before this verdict")
    total: int = u32(0x10, "tokens in all lines of this verdict")
    hint: int = u32(0x14, "id the host expects for the new root, 0 if none; only for diagnosis", 0)
    tokens: tuple[int, ...] = u32s(0x18, TOKENS_PER_LINE, "the tokens", ())


@dataclass(frozen=True, kw_only=True)
class CloseLine(Message):
    """End a sequence: its rows are dropped and its pages freed at once."""

    TYPE = MessageType.CLOSE

    seq: int = u8(0x01, "sequence slot")
    epoch: int = u32(0x04, "number of this message", 0)


@dataclass(frozen=True, kw_only=True)
class RetuneLine(Message):
    """Change the limits for drafting on a sequence, from the next pass on."""

    TYPE = MessageType.RETUNE

    seq: int = u8(0x01, "sequence slot")
    topk: int = u8(0x02, "children kept per node, 1 to the device's topk")
    window: int = u32(0x04, "expected cycles of one verification, 0 if unknown", 0)
    threshold: int = s32(0x18, "least path score of a node worth expanding, 1/256 log2")
    max_depth: int = u16(0x1C, "deepest level below the root that is expanded")
    max_slots: int = u16(0x1E, "tree slots the sequence may hold besides its root's")


@dataclass(frozen=True, kw_only=True)
class LoadLine(Message):
    """Copy a block from host memory to device memory: weights, tables or the program."""

    TYPE = MessageType.LOAD

    command: int = u32(0x04, "number given back in LOAD_DONE")
    address: int = u64(0x08, "bus address of the block, 64-byte aligned")
    dest: int = u64(0x10, "device-memory address, 64-byte aligned")
    size: int = u32(0x18, "bytes, a multiple of 64, at most 2 MiB")
    crc: int = u32(0x1C, "CRC32C of the block")


MESSAGE_TYPES: dict[int, type[Message]] = {
    int(cls.TYPE): cls
    for cls in (
        OpenLine, ResyncLine, VerdictLine, CloseLine, RetuneLine, LoadLine,
        Nodes, NodesTopk, VerdictAck, PassDone, Event, Stats, Opened,
    )
}  # fmt: skip
"""Message class by first byte."""
