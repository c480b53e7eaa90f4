"""Messages to and from line payloads."""

from __future__ import annotations

from ..errors import ProtocolError
from .kinds import MESSAGE_TYPES, Message
from .layout import PAYLOAD_BYTES

__all__ = ["decode", "encode"]


def encode(message: Message) -> bytes:
    """Return the 56-byte payload of a message; `ProtocolError` if a value doesn't fit."""
    payload = bytearray(PAYLOAD_BYTES)
    payload[0] = message.TYPE
    message.write(payload)
    return bytes(payload)


def decode(payload: bytes) -> Message:
    """Return the message in a payload; `ProtocolError` if its type or a count is unknown."""
    if len(payload) != PAYLOAD_BYTES:
        raise ProtocolError(f"payload is {len(payload)} bytes: exactly {PAYLOAD_BYTES}")
    try:
        kind = MESSAGE_TYPES[payload[0]]
    except KeyError:
        known = ", ".join(f"0x{number:02x}" for number in sorted(MESSAGE_TYPES))
        raise ProtocolError(f"message type is 0x{payload[0]:02x}: one of {known}") from None
    return kind.read(payload)
