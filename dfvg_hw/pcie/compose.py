"""Messages as values, composed field by field."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Const, Value

from dfvg_hw.messages.kinds import Message
from dfvg_hw.messages.layout import PAYLOAD_BYTES, places

__all__ = ["compose"]


def compose(record: type[Message], **values: Any) -> Value:
    """Return the 448-bit payload of a message; fields not given are 0, arrays not possible.

    One concatenation drives every bit: a signal assigned in parts leaves constant bits to processes
    without inputs, which Verilog simulators never run.
    """
    parts: list[Value] = [Const(int(record.TYPE), 8)]
    at = 1
    for name, place in places(record).items():
        if name not in values:
            continue
        parts.append(Const(0, 8 * (place.offset - at)))
        value = Value.cast(values[name])
        width = 8 * place.total
        parts.append(Cat(value[:width], Const(0, max(0, width - len(value)))))
        at = place.offset + place.total
    parts.append(Const(0, 8 * (PAYLOAD_BYTES - at)))
    return Cat(parts)
