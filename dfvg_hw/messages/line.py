"""The 64-byte line that carries every message, in host memory and in the mailbox.

    0x00-0x37  message, see :mod:`dfvg_hw.messages.kinds`
    0x38       CRC32C over all other bytes of the line (0x00-0x37, then 0x3C-0x3F)
    0x3C       tag: number of the line in its ring, counting from 1

A line is valid only if its tag is the one the reader expects next and the CRC agrees, so neither
blank memory nor an older turn of the ring can be taken for a message. The tag is written last.
Lines are 64-byte aligned and rings 4 KiB aligned, so no line crosses a 4 KiB boundary.
"""

from __future__ import annotations

from ..errors import ProtocolError

__all__ = [
    "CRC_OFFSET",
    "HASH_START",
    "LINE_BYTES",
    "TAG_OFFSET",
    "context_hash",
    "crc32c",
    "next_tag",
    "open_line",
    "seal_line",
]

LINE_BYTES = 64
CRC_OFFSET = 0x38
TAG_OFFSET = 0x3C
HASH_START = 0x811C9DC5
"""Context hash of the empty context."""
HASH_PRIME = 16777619
_POLYNOMIAL = 0x82F63B78  # CRC-32C (Castagnoli), reflected


def _table() -> tuple[int, ...]:
    entries = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (_POLYNOMIAL if value & 1 else 0)
        entries.append(value)
    return tuple(entries)


_TABLE = _table()


def crc32c(data: bytes | bytearray | memoryview, crc: int = 0) -> int:
    """CRC-32C of `data`, continuing from `crc` (as iSCSI and ext4 compute it)."""
    table = _TABLE
    crc ^= 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def next_tag(tag: int) -> int:
    """Tag of the line after the one tagged `tag`; 0 is skipped, because blank memory reads 0."""
    return (tag % 0xFFFFFFFF) + 1


def seal_line(payload: bytes | bytearray, tag: int) -> bytes:
    """Return the line that carries `payload` (at most 56 bytes, zero-padded) with this tag."""
    if len(payload) > CRC_OFFSET:
        raise ProtocolError(f"payload is {len(payload)} bytes: at most {CRC_OFFSET}")
    if not 1 <= tag <= 0xFFFFFFFF:
        raise ProtocolError(f"line tag is {tag}: 1 to {0xFFFFFFFF}")
    body = bytes(payload).ljust(CRC_OFFSET, b"\0")
    tail = tag.to_bytes(4, "little")
    return body + crc32c(body + tail).to_bytes(4, "little") + tail


def open_line(line: bytes | bytearray | memoryview, tag: int) -> bytes | None:
    """Return the payload if the line tagged `tag` has arrived, None if it has not.

    Raises
    ------
    ProtocolError
        If the tag is right but the CRC is not, or the line isn't 64 bytes.
    """
    raw = bytes(line)
    if len(raw) != LINE_BYTES:
        raise ProtocolError(f"line is {len(raw)} bytes: exactly {LINE_BYTES}")
    if int.from_bytes(raw[TAG_OFFSET:], "little") != tag:
        return None
    expected = crc32c(raw[:CRC_OFFSET] + raw[TAG_OFFSET:])
    found = int.from_bytes(raw[CRC_OFFSET:TAG_OFFSET], "little")
    if found != expected:
        raise ProtocolError(f"line {tag} has CRC 0x{found:08x}: its bytes give 0x{expected:08x}")
    return raw[:CRC_OFFSET]


def context_hash(tokens: list[int] | tuple[int, ...], start: int = HASH_START) -> int:
    """Rolling 32-bit hash of a context: ``h = ((h ^ token) * 16777619) mod 2^32`` per token.

    The start value and the multiplier are those of FNV-1a, applied to whole tokens; the hardware
    multiplies with six shifts and adds.
    """
    value = start
    for token in tokens:
        value = ((value ^ token) * HASH_PRIME) & 0xFFFFFFFF
    return value
