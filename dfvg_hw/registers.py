"""The device's registers (BAR0) and mailbox map (BAR2), each defined once.

The register block in the RTL, the driver and the tables in ``docs/protocol.md`` derive from
`REGISTERS`. Registers are 32 bits wide; 64-bit counters are two registers, and reading the low one
latches the high one. Reads have no side effects besides that.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from .messages.line import LINE_BYTES

__all__ = [
    "BAR0_BYTES",
    "DEVICE_ID",
    "MAILBOX_LINES",
    "REGISTERS",
    "Access",
    "Register",
    "RegisterField",
    "mailbox_offset",
    "register",
]

BAR0_BYTES = 4096
DEVICE_ID = int.from_bytes(b"DFVG", "little")
MAILBOX_LINES = 4
"""Lines of one sequence's mailbox. Line ``tag`` goes to line ``(tag - 1) mod 4``."""


def mailbox_offset(seq: int, tag: int) -> int:
    """BAR2 byte offset of the mailbox line with this tag (counted from 1 in each mailbox).

    A sender has at most `MAILBOX_LINES` unacknowledged lines in a mailbox; longer verdicts go
    through the command ring, which takes the same lines.
    """
    return (seq * MAILBOX_LINES + (tag - 1) % MAILBOX_LINES) * LINE_BYTES


class Access(enum.Enum):
    """How software may use a field."""

    RO = "ro"
    RW = "rw"
    W1C = "w1c"
    """Sticky; writing 1 clears it."""
    W1P = "w1p"
    """Writing 1 triggers something; reads as 0."""
    LIVE = "live"
    """Writable, and changed by the hardware too."""


@dataclass(frozen=True)
class RegisterField:
    """Bits ``offset`` to ``offset + width - 1`` of a register."""

    name: str
    offset: int
    width: int
    access: Access
    doc: str
    init: int = 0


@dataclass(frozen=True)
class Register:
    """A 32-bit register at byte `address` of BAR0."""

    name: str
    address: int
    doc: str
    fields: tuple[RegisterField, ...]


def _field(
    name: str, bits: int | tuple[int, int], access: Access, doc: str, init: int = 0
) -> RegisterField:
    low, high = (bits, bits) if isinstance(bits, int) else bits
    return RegisterField(name, low, high - low + 1, access, doc, init)


def _whole(
    name: str, address: int, access: Access, doc: str, width: int = 32, init: int = 0
) -> Register:
    value = RegisterField("value", 0, width, access, "the value", init)
    return Register(name, address, doc, (value,))


def _pair(name: str, address: int, access: Access, doc: str) -> list[Register]:
    return [
        _whole(f"{name}_lo", address, access, f"{doc}, bits 31:0"),
        _whole(f"{name}_hi", address + 4, access, f"{doc}, bits 63:32"),
    ]


_RO, _RW, _W1C, _W1P = Access.RO, Access.RW, Access.W1C, Access.W1P
_LIVE = Access.LIVE

REGISTERS: tuple[Register, ...] = (
    _whole("id", 0x000, _RO, "reads 0x47564644, the letters DFVG", init=DEVICE_ID),
    Register("versions", 0x004, "versions, checked when a device is opened", (
        _field("abi", (0, 7), _RO, "ABI version"),
        _field("message", (8, 15), _RO, "message version"),
        _field("image", (16, 23), _RO, "image version"),
    )),
    _whole("capabilities", 0x008, _RO, "capability word"),
    _whole("config_hash", 0x00C, _RO, "`DeviceConfig.config_hash` of the hardware"),
    _whole("build_id", 0x010, _RO, "first 32 bits of the digest of the design's text"),
    _whole("scratch", 0x014, _RW, "free for software; tests that writes arrive"),
    Register("control", 0x018, "switches", (
        _field("enable", 0, _RW, "run passes"),
        _field("soft_reset", 1, _W1P, "reset everything but weights, program and rings"),
        _field("stats", 2, _W1P, "send a STATS message"),
        _field("free_run", 3, _RW, "run passes whatever `pass_grant` says"),
    )),
    Register("status", 0x01C, "state", (
        _field("running", 0, _RO, "a pass is running"),
        _field("idle", 1, _RO, "there is no work"),
        _field("link_stall", 2, _RO, "the device-to-host ring is full"),
        _field("resetting", 3, _RO, "a soft reset is under way"),
    )),
    Register("error", 0x020, "sticky errors; any of them stops drafting", (
        _field("read", 0, _W1C, "the memory answered a read with an error"),
        _field("write", 1, _W1C, "the memory answered a write with an error"),
        _field("watchdog", 2, _W1C, "a pass stood still for the watchdog's limit"),
        _field("host_read", 3, _W1C, "host memory answered a read with an error or not at all"),
        _field("host_write", 4, _W1C, "host memory answered a write with an error"),
        _field("line", 5, _W1C, "a command or mailbox line had a wrong CRC"),
        _field("program", 6, _W1C, "an instruction or a dependency token can't be right"),
    )),
    _whole("error_info", 0x024, _RO, "detail of the first error since the last clear"),
    _whole("watchdog", 0x028, _RW, "cycles a pass may stand still, 0 for no limit"),
    Register("state", 0x02C, "the overlap processor's state, for diagnosis after a hang", (
        _field("pc", (0, 15), _RO, "program counter"),
        _field("engines", (16, 23), _RO, "busy bits: load, matmul, vector, merge, tree"),
    )),
    _whole("pass_grant", 0x030, _LIVE, "passes that may still start; a start takes one off"),
    *_pair("ring", 0x040, _RW, "bus address of the device-to-host ring, 4 KiB aligned"),
    _whole("ring_lines", 0x048, _RW,
           "lines, a power of two from 64 to 65536 or 0; writing restarts at tag 1", width=17),
    _whole("ring_consumed", 0x04C, _RW, "lines consumed by the host, modulo 2^32"),
    _whole("ring_produced", 0x050, _RO, "lines written by the device, modulo 2^32"),
    *_pair("command", 0x060, _RW, "bus address of the command ring, 4 KiB aligned"),
    _whole("command_lines", 0x068, _RW,
           "lines, as above; writing restarts ring and mailboxes at tag 1", width=17),
    _whole("command_produced", 0x06C, _RW, "doorbell: lines written by the host, modulo 2^32"),
    _whole("command_consumed", 0x070, _RO, "lines consumed by the device, modulo 2^32"),
    _whole("mailbox_consumed", 0x074, _RO, "lines taken from all mailboxes, modulo 2^32"),
    *_pair("cycles", 0x080, _RO, "clock cycles since reset"),
    *_pair("busy_cycles", 0x088, _RO, "clock cycles inside passes"),
    *_pair("words_read", 0x090, _RO, "memory words read"),
    _whole("passes", 0x098, _RO, "passes that ended"),
    _whole("verdicts", 0x09C, _RO, "verdicts applied"),
    _whole("bad_lines", 0x0A0, _RO, "lines dropped because of their CRC"),
    _whole("clock_khz", 0x0A4, _RO, "core clock, kHz"),
    *_pair("turn_cycles", 0x0A8, _RO, "clock cycles of passes, with choice of rows and records"),
    # What the watchdog found, of `core_state`; kept until it strikes again.
    Register("dump_place", 0x0B0, "watchdog: where the program stood", (
        _field("pc", (0, 15), _RO, "program counter of the fetch unit, which runs ahead"),
        _field("i0", (16, 31), _RO, "loop index of level 0 (layer)"),
    )),
    Register("dump_queues", 0x0B4, "watchdog: instructions queued for each engine", (
        _field("load", (0, 7), _RO, "for the load unit"),
        _field("mm", (8, 15), _RO, "for the array"),
        _field("vec", (16, 23), _RO, "for the vector unit"),
        _field("i1", (24, 31), _RO, "loop index of level 1 (KV head)"),
    )),
    Register("dump_tokens", 0x0B8, "watchdog: dependency tokens not taken, writes under way", (
        _field("to_mm", (0, 7), _RO, "tokens for the array"),
        _field("to_vec", (8, 15), _RO, "tokens for the vector unit"),
        _field("writes", (16, 23), _RO, "write bursts not answered"),
    )),
    _whole("dump_credits", 0x0BC, _RO, "watchdog: words that could be requested"),
    _whole("dump_level", 0x0C0, _RO, "watchdog: words in the prefetch FIFO"),
    Register("dump_busy", 0x0C4, "watchdog: who was busy or waited", (
        _field("mm_wants", 0, _RO, "the array wanted a word"),
        _field("vec_wants", 1, _RO, "the vector unit wanted a word"),
        _field("fetching", 2, _RO, "instructions were being fetched"),
        _field("load", 3, _RO, "load unit"),
        _field("mm", 4, _RO, "array"),
        _field("vec", 5, _RO, "vector unit"),
        _field("merge", 6, _RO, "KV merge unit"),
        _field("reading", 7, _RO, "reads not answered"),
        _field("writing", 8, _RO, "writes not answered"),
    )),
    # The model registers follow the image; see docs/image-format.md for their meaning.
    _whole("model_kv_base", 0x100, _RW, "KV region, units of 64 bytes", width=26),
    _whole("model_kv_page", 0x104, _RW, "stride of a physical page, units of 64 bytes", width=26),
    _whole("model_kv_layer", 0x108, _RW, "stride of a layer in a page, likewise", width=26),
    _whole("model_kv_head", 0x10C, _RW, "stride of a KV head in a layer, likewise", width=26),
    _whole("model_kv_v", 0x110, _RW, "offset of V in a head's block, likewise", width=26),
    Register("model_shape", 0x114, "shape of attention", (
        _field("head_groups", (0, 1), _RW, "padded head size, groups of 64"),
        _field("kv_heads", (8, 15), _RW, "KV heads"),
        _field("layers", (16, 31), _RW, "layers"),
    )),
    _whole("model_embed_base", 0x118, _RW, "embedding table, units of 64 bytes", width=26),
    _whole("model_embed_stride", 0x11C, _RW, "stride of its rows, likewise", width=16),
    _whole("model_embed_words", 0x120, _RW, "memory words of one row", width=12),
    _whole("model_rope_base", 0x124, _RW, "rotary table, units of 64 bytes", width=26),
    _whole("model_rope_stride", 0x128, _RW, "stride of its rows, likewise", width=16),
    _whole("model_rope_words", 0x12C, _RW, "memory words of one row", width=8),
    _whole("model_vocab", 0x130, _RW, "rows of the embedding table", width=20),
    _whole("model_program", 0x134, _RW, "program in device memory, units of 64 bytes", width=26),
    _whole("model_program_length", 0x138, _RW, "instructions of it; writing loads them", width=16),
    _whole("model_ids_base", 0x13C, _RW,
           "token id (u32) of each channel of the head, units of 64 bytes", width=26),
)  # fmt: skip
"""All registers, by ascending address."""

_BY_NAME = {entry.name: entry for entry in REGISTERS}


def register(name: str) -> Register:
    """Return the register called `name`; `KeyError` if there's none."""
    return _BY_NAME[name]
