"""Programs as the fetcher sees them: hardware loops unrolled into a list of instructions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dfvg_hw.isa import Instruction, Op

__all__ = ["Issue", "unroll"]


@dataclass(frozen=True)
class Issue:
    """An instruction with the loop indices that it was fetched with."""

    pc: int
    instruction: Instruction
    i0: int
    i1: int


def unroll(program: list[Instruction], head: bool) -> Iterator[Issue]:
    """Walk a program up to PASS_END; `head` says whether some row of the pass wants children."""
    pc, index = 0, [0, 0]
    start, left = [0, 0], [0, 0]
    while True:
        instruction = program[pc]
        op = instruction.op
        yield Issue(pc, instruction, *index)
        pc += 1
        if op is Op.PASS_END:
            return
        if op is Op.SKIP_NO_HEAD and not head:
            pc += instruction.count
        elif op is Op.LOOP:
            level = instruction.level
            start[level], left[level], index[level] = pc, instruction.count, 0
        elif op is Op.LOOP_END:
            level = instruction.level
            left[level] -= 1
            if left[level]:
                index[level] += 1
                pc = start[level]
            else:
                index[level] = 0
