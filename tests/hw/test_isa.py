"""Assembler and disassembler of the overlay's instructions."""

import os
import random

import pytest

from dfvg_hw.errors import ImageError
from dfvg_hw.isa import LAYOUTS, OP_WIDTH, Instruction, Op, assemble, disassemble, markdown


def random_instruction(rng: random.Random) -> Instruction:
    op = rng.choice(list(Op))
    values = {}
    for field in LAYOUTS[op]:
        low = -(1 << (field.width - 1)) if field.signed else 0
        high = (1 << (field.width - field.signed)) - 1
        values[field.name] = rng.choice([low, high, rng.randint(low, high)])
    return Instruction(op, **values)


def test_round_trip_of_random_programs():
    seed = int(os.environ.get("DFVG_SEED", "1"))
    print("seed", seed)
    rng = random.Random(seed)
    program = [random_instruction(rng) for _ in range(500)]
    assert disassemble(assemble(program)) == program


def test_fields_lie_side_by_side_from_bit_4():
    for op, layout in LAYOUTS.items():
        bit = OP_WIDTH
        for field in layout:
            value = -1 if field.signed else (1 << field.width) - 1
            word = int.from_bytes(Instruction(op, **{field.name: value}).encode(), "little")
            assert word == int(op) | ((1 << field.width) - 1) << bit
            bit += field.width
        assert bit <= 128


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"blocks": 1 << 16}, "MM.blocks is 65536: accepted are 0 to 65535"),
        ({"sbase": 128}, "MM.sbase is 128: accepted are -128 to 127"),
        ({"colour": 1}, "MM has no field 'colour'"),
    ],
)
def test_what_a_field_cannot_hold_is_refused(fields, text):
    with pytest.raises(ImageError, match=text):
        Instruction(Op.MM, **fields)


def test_foreign_bytes_are_refused():
    with pytest.raises(ImageError, match="opcode 15 is unknown"):
        disassemble(b"\x0f" + bytes(15))
    with pytest.raises(ImageError, match="17 bytes long"):
        disassemble(bytes(17))


def test_the_table_lists_every_field():
    text = markdown()
    for op, layout in LAYOUTS.items():
        assert f"| {op.name} |" in text
        assert all(f"| {op.name} | {field.name} |" in text for field in layout)
