"""The messages between host and draft device, each laid out once.

`kinds` declares the lines, `commands` what the host sends as it thinks of it, `line` the 64-byte
envelope, `codec` the way between them. ``docs/protocol.md`` is generated from these tables.
"""

from .codec import decode, encode
from .commands import Close, Command, DraftLimits, Open, Resync, Retune, Verdict
from .kinds import (
    ABI_VERSION,
    CHILDREN_PER_LINE,
    IMAGE_VERSION,
    LOGPROB_ONE,
    MESSAGE_TYPES,
    MESSAGE_VERSION,
    NO_TOKEN,
    ROOT_ID_FLAG,
    STOP_TOKENS,
    TOKENS_PER_LINE,
    Capability,
    Child,
    CloseLine,
    ContextLine,
    Event,
    EventCode,
    HitClass,
    LoadLine,
    Message,
    MessageType,
    Nodes,
    NodesFlag,
    NodesTopk,
    Opened,
    OpenLine,
    PassDone,
    PassKind,
    ResyncLine,
    RetuneLine,
    Stats,
    TopkEntry,
    VerdictAck,
    VerdictFlag,
    VerdictLine,
)
from .layout import PAYLOAD_BYTES, struct_layout
from .line import (
    CRC_OFFSET,
    HASH_START,
    LINE_BYTES,
    TAG_OFFSET,
    context_hash,
    crc32c,
    next_tag,
    open_line,
    seal_line,
)

__all__ = [
    "ABI_VERSION", "CHILDREN_PER_LINE", "CRC_OFFSET", "HASH_START", "IMAGE_VERSION", "LINE_BYTES",
    "LOGPROB_ONE", "MESSAGE_TYPES", "MESSAGE_VERSION", "NO_TOKEN", "PAYLOAD_BYTES",
    "ROOT_ID_FLAG", "STOP_TOKENS", "TAG_OFFSET", "TOKENS_PER_LINE", "Capability", "Child", "Close",
    "CloseLine", "Command", "ContextLine", "DraftLimits", "Event", "EventCode", "HitClass",
    "LoadLine", "Message", "MessageType", "Nodes", "NodesFlag", "NodesTopk", "Open", "OpenLine",
    "Opened", "PassDone", "PassKind", "Resync", "ResyncLine", "Retune", "RetuneLine", "Stats",
    "TopkEntry", "Verdict", "VerdictAck", "VerdictFlag", "VerdictLine", "context_hash", "crc32c",
    "decode", "encode", "next_tag", "open_line", "seal_line", "struct_layout",
]  # fmt: skip
