"""The instruction set of the overlay: one program drives every model of a supported family.

A program is a list of 128-bit instructions, fetched in order by the overlap processor and handed to
three engines, each with a queue of its own:

* **LOAD** streams words from device memory into the one in-order prefetch FIFO. It never waits for
  compute, so it runs ahead across layers; KV loads alone wait for the previous pass's writes.
* **MM** (the systolic array and its output lanes) consumes the words loaded for it.
* **VEC** (the vector unit) quantises, normalises, embeds and computes softmax.

Program size depends neither on depth nor on position: two nested hardware loops (layers, KV heads)
give index registers ``i0`` and ``i1``, and addresses add ``i * stride``. MM and VEC are ordered
by token counters: ``wait`` consumes one token of the other engine, ``signal`` gives one when *all*
results of the instruction are written.

Every field is defined once, in `LAYOUTS`; the assembler, the disassembler, the decoders in the RTL
and the table in ``docs/isa.md`` derive from it.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

from .errors import ImageError

__all__ = [
    "INSTRUCTION_BYTES",
    "LAYOUTS",
    "Dest",
    "Field",
    "Instruction",
    "KvKind",
    "LoadKind",
    "Op",
    "OutOp",
    "QuantMode",
    "assemble",
    "disassemble",
    "markdown",
]

INSTRUCTION_BYTES = 16


class Op(enum.IntEnum):
    """Opcode, bits 0-3 of every instruction."""

    PASS_END = 0
    LOOP = 1
    LOOP_END = 2
    SKIP_NO_HEAD = 3
    LOAD = 4
    MM = 5
    EMBED = 6
    ROPE_TABLE = 7
    QUANT = 8
    SOFTMAX = 9
    SYNC = 10


class LoadKind(enum.IntEnum):
    """What LOAD streams; all but LINEAR take their addresses from the model registers."""

    LINEAR = 0
    EMBED_ROWS = 1
    ROPE_ROWS = 2
    K_PAGES = 3
    V_PAGES = 4


class Dest(enum.IntEnum):
    """Engine that consumes loaded words, or executes a SYNC."""

    MM = 0
    VEC = 1


class OutOp(enum.IntEnum):
    """What MM does with each requantised result."""

    STORE = 0
    ADD = 1
    ROPE = 2
    SWIGLU = 3
    SCORE = 4
    PV = 5
    TOPK = 6


class KvKind(enum.IntEnum):
    """Which half of a KV page the merge unit is passing."""

    K = 0
    V = 1


class QuantMode(enum.IntEnum):
    """Scale scope and destination of QUANT.

    ROW: one scale for the vector, to activation memory. HEAD_Q: one 16-bit scale per head, to
    activation memory. HEAD_K, HEAD_V: one sf8 scale per head, to the KV tail of the running pass.
    """

    ROW = 0
    HEAD_Q = 1
    HEAD_K = 2
    HEAD_V = 3


@dataclass(frozen=True)
class Field:
    """One bit field: its width and meaning; ``signed`` fields are two's complement."""

    name: str
    width: int
    doc: str
    signed: bool = False


_SYNC = (
    Field("wait", 1, "consume one token of the other compute engine before starting"),
    Field("signal", 1, "give one token to the other engine when every result is written"),
)

LAYOUTS: dict[Op, tuple[Field, ...]] = {
    Op.PASS_END: (),
    Op.LOOP: (
        Field("level", 1, "index register: 0 (layers) or 1 (KV heads, inside level 0)"),
        Field("count", 16, "iterations, at least 1"),
    ),
    Op.LOOP_END: (Field("level", 1, "loop that ends here"),),
    Op.SKIP_NO_HEAD: (
        Field("count", 8, "instructions to skip when no row of the pass wants children"),
    ),
    Op.LOAD: (
        Field("kind", 3, "LoadKind"),
        Field("dest", 1, "Dest"),
        Field("base", 26, "address of the first word, in 64-byte units (LINEAR)"),
        Field("words", 24, "bus words (LINEAR)"),
        Field("stride0", 26, "added to base per i0, in 64-byte units (LINEAR)"),
        Field("stride1", 26, "added to base per i1, in 64-byte units (LINEAR)"),
    ),
    Op.MM: (
        *_SYNC,
        Field("out", 3, "OutOp"),
        Field("blocks", 16, "scale blocks of bus_bytes/2 output channels (not SCORE, PV)"),
        Field("groups", 10, "64-element groups of the inner dimension; head groups for SCORE, PV"),
        Field("act", 10, "activation memory group of the first operand group"),
        Field("act1", 6, "added to act per i1"),
        Field("scale", 8, "row-scale entry of the operand (first head's for SCORE, PV)"),
        Field("scale1", 5, "added to scale per i1"),
        Field("gqa", 5, "query heads per KV head (SCORE, PV)"),
        Field("pre", 5, "right shift of the accumulator before the row scale"),
        Field("sbase", 8, "final right shift before row and column exponents are subtracted", True),
        Field("vm", 14, "vector-memory element of the first result"),
        Field("vm1", 12, "added to vm per i1"),
    ),
    Op.EMBED: (
        *_SYNC,
        Field("groups", 10, "64-element groups of the hidden size"),
        Field("vm", 14, "vector-memory element of the first result"),
        Field("sbase", 8, "right shift before the row's exponent is subtracted", True),
    ),
    Op.ROPE_TABLE: (*_SYNC, Field("pairs", 7, "(cos, sin) pairs per head: padded head size / 2")),
    Op.QUANT: (
        *_SYNC,
        Field("mode", 2, "QuantMode"),
        Field("groups", 10, "64-element groups of the vector"),
        Field("head_groups", 2, "64-element groups that share a scale (HEAD modes)"),
        Field("vm", 14, "vector-memory element of the first operand"),
        Field("act", 10, "activation memory group of the first result (ROW, HEAD_Q)"),
        Field("scale", 8, "row-scale entry of the first result (ROW, HEAD_Q)"),
        Field("gain", 1, "multiply by a loaded int16 gain vector first"),
        Field("gain_frac", 4, "fraction bits of the gain"),
        Field("rms", 1, "fold 1/rms of the operand into the row scale"),
        Field("eps", 40, "round(K * eps * 2**28), the rms epsilon"),
        Field("vm1", 12, "added to vm per i1"),
    ),
    Op.SOFTMAX: (
        *_SYNC,
        Field("gqa", 5, "query heads per KV head"),
        Field("act", 10, "activation memory group of the first probability page"),
        Field("scale", 8, "row-scale entry of the first head"),
    ),
    # Loops repeat their body's waits and signals; what must happen once stands beside the loop.
    Op.SYNC: (*_SYNC, Field("dest", 1, "engine that waits and signals, and does nothing else")),
}

OP_WIDTH = 4


@dataclass(frozen=True)
class Instruction:
    """An opcode and its named field values; absent fields are 0.

    Raises
    ------
    ImageError
        For an unknown field or a value that its field can't hold.
    """

    op: Op
    fields: dict[str, int]

    def __init__(self, op: Op, **fields: int) -> None:
        layout = {f.name: f for f in LAYOUTS[op]}
        for name, value in fields.items():
            if name not in layout:
                raise ImageError(f"{op.name} has no field {name!r}: it has {', '.join(layout)}")
            field = layout[name]
            low = -(1 << (field.width - 1)) if field.signed else 0
            high = (1 << (field.width - field.signed)) - 1
            if not low <= value <= high:
                raise ImageError(f"{op.name}.{name} is {value}: accepted are {low} to {high}")
        object.__setattr__(self, "op", op)
        object.__setattr__(self, "fields", {n: int(fields.get(n, 0)) for n in layout})

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["fields"][name]
        except KeyError:
            raise AttributeError(name) from None

    def encode(self) -> bytes:
        """The 16 bytes of the instruction, little endian; fields in table order from bit 4."""
        word, bit = int(self.op), OP_WIDTH
        for field in LAYOUTS[self.op]:
            word |= (self.fields[field.name] & ((1 << field.width) - 1)) << bit
            bit += field.width
        return word.to_bytes(INSTRUCTION_BYTES, "little")

    @classmethod
    def decode(cls, data: bytes) -> Instruction:
        """Inverse of `encode`; unknown opcodes raise `ImageError`."""
        word = int.from_bytes(data[:INSTRUCTION_BYTES], "little")
        try:
            op = Op(word & ((1 << OP_WIDTH) - 1))
        except ValueError:
            known = ", ".join(str(int(o)) for o in Op)
            raise ImageError(f"opcode {word & 15} is unknown: known are {known}") from None
        bit, fields = OP_WIDTH, {}
        for field in LAYOUTS[op]:
            value = (word >> bit) & ((1 << field.width) - 1)
            if field.signed and value >> (field.width - 1):
                value -= 1 << field.width
            fields[field.name] = value
            bit += field.width
        return cls(op, **fields)


def assemble(program: list[Instruction]) -> bytes:
    """Concatenate encoded instructions."""
    return b"".join(instruction.encode() for instruction in program)


def disassemble(data: bytes) -> list[Instruction]:
    """Inverse of `assemble`; a length that is no multiple of 16 raises `ImageError`."""
    if len(data) % INSTRUCTION_BYTES:
        raise ImageError(f"program is {len(data)} bytes long: accepted are multiples of 16")
    return [Instruction.decode(data[i : i + 16]) for i in range(0, len(data), INSTRUCTION_BYTES)]


def markdown() -> str:
    """The field table of ``docs/isa.md``."""
    lines = ["| opcode | instruction | field | bits | meaning |", "|---|---|---|---|---|"]
    for op, layout in LAYOUTS.items():
        if not layout:
            lines.append(f"| {int(op)} | {op.name} | | | |")
        bit = OP_WIDTH
        for field in layout:
            sign = " (signed)" if field.signed else ""
            span = f"{bit + field.width - 1}:{bit}" if field.width > 1 else f"{bit}"
            lines.append(f"| {int(op)} | {op.name} | {field.name} | {span} | {field.doc}{sign} |")
            bit += field.width
    return "\n".join(lines) + "\n"


for _op, _layout in LAYOUTS.items():
    if OP_WIDTH + sum(f.width for f in _layout) > 8 * INSTRUCTION_BYTES:
        raise AssertionError(f"{_op.name} doesn't fit {INSTRUCTION_BYTES} bytes")
