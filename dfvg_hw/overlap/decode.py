"""Views of instruction words, from the one table in `dfvg_hw.isa`."""

from __future__ import annotations

from functools import cache

from amaranth.hdl import Value, signed, unsigned
from amaranth.lib import data

from dfvg_hw.isa import INSTRUCTION_BYTES, LAYOUTS, OP_WIDTH, Op

__all__ = ["instruction_layout", "opcode", "view"]


@cache
def instruction_layout(op: Op) -> data.StructLayout:
    """Return the bit layout of an instruction, ``op`` first, padded to 128 bits."""
    members = {"op": unsigned(OP_WIDTH)}
    for field in LAYOUTS[op]:
        members[field.name] = signed(field.width) if field.signed else unsigned(field.width)
    used = data.StructLayout(members).size
    return data.StructLayout({**members, "rest": 8 * INSTRUCTION_BYTES - used})


def opcode(code: Value) -> Value:
    """Return the opcode bits of an instruction word."""
    return code[:OP_WIDTH]


def view(op: Op, code: Value) -> data.View:
    """Return the fields of an instruction word that holds `op`."""
    return data.View(instruction_layout(op), code)
