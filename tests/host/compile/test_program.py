"""Programs: executed from the image's bytes they give what the emulator computes."""

import dataclasses
from collections import Counter

import numpy as np
import pytest
import torch

from dfvg_host.compile import compile_model
from dfvg_host.compile.compiler import integer_model
from dfvg_host.compile.source import float_model
from dfvg_host.compile.unroll import unroll
from dfvg_host.device.compute import IntegerCompute
from dfvg_host.device.interpreter import Interpreter
from dfvg_hw.errors import ImageError
from dfvg_hw.isa import Instruction, Op, OutOp, assemble
from tests.host.small_drafts import SHAPES, all_children, llama, text_passes, tiny, truncated

IDS = torch.randint(0, 200, (100,), generator=torch.Generator().manual_seed(3)).tolist()


def _kv_equal(compute, interpreter, pages):
    """Compare the emulator's KV with the interpreter's device memory, written tokens only."""
    r = interpreter.image.registers
    d = compute.model.dims
    for physical, tokens in pages.items():
        for layer in range(d.layers):
            for head in range(d.kv_heads):
                block = 64 * (
                    r["model_kv_base"]
                    + physical * r["model_kv_page"]
                    + layer * r["model_kv_layer"]
                    + head * r["model_kv_head"]
                )
                raw = interpreter.memory[block : block + 64 * r["model_kv_head"]]
                place = (physical, layer, head)
                assert (raw[:tokens] == compute.kv.k_scale[place][:tokens]).all()
                assert (raw[64 : 64 + tokens] == compute.kv.v_scale[place][:tokens]).all()
                v_start = 64 * r["model_kv_v"]
                k = raw[128:v_start].view(np.int8).reshape(64, d.head_pad)
                v = raw[v_start:].view(np.int8).reshape(d.head_pad, 64)
                assert (k[:tokens] == compute.kv.k[place][:tokens]).all()
                assert (v[:, :tokens] == compute.kv.v[place][:, :tokens]).all()


@pytest.mark.parametrize("shape", SHAPES)
def test_interpreter_equals_compute(shape):
    image = compile_model(float_model(llama(**SHAPES[shape])), tiny())
    compute, interpreter = IntegerCompute.from_image(image), Interpreter(image)
    start = 0
    for rows in text_passes(IDS, [4] * 15 + [3, 4, 1, 4]):
        moved = [dataclasses.replace(row, phys=4 - row.page) for row in rows]
        tables = {0: [4, 3][: rows[-1].page + 1]}
        assert interpreter.forward(moved, tables) == compute.forward(moved, tables)
        start += len(rows)
    _kv_equal(compute, interpreter, {4: 64, 3: start - 64})


@pytest.mark.parametrize("bus_bytes", [8, 32, 64])
def test_other_bus_widths_and_two_sequences(bus_bytes):
    config = tiny().replace(bus_bytes=bus_bytes)
    image = compile_model(truncated(llama(**SHAPES["gqa"])), config)
    compute, interpreter = IntegerCompute.from_image(image), Interpreter(image)
    first, second = text_passes(IDS, [2] * 40), text_passes(IDS[20:], [2] * 40)
    for a, b in zip(first, second, strict=True):
        rows = [dataclasses.replace(row, phys=2 * row.page + 1) for row in a]
        rows += [
            dataclasses.replace(row, index=row.index + 2, seq=1, phys=2 * row.page) for row in b
        ]
        count = rows[-1].page + 1
        tables = {0: [1, 3][:count], 1: [0, 2][:count]}
        assert interpreter.forward(rows, tables) == compute.forward(rows, tables)


def test_every_instruction_is_recorded():
    image = compile_model(float_model(llama()), tiny())
    seen = []
    interpreter = Interpreter(image, seen.append)
    interpreter.forward(all_children(text_passes(IDS, [3])[0]), {0: [0]})
    expected = Counter(
        issue.instruction.op
        for issue in unroll(image.program, head=True)
        if issue.instruction.op in (Op.MM, Op.EMBED, Op.ROPE_TABLE, Op.QUANT, Op.SOFTMAX)
    )
    assert Counter(record.issue.instruction.op for record in seen) == expected
    logits = next(
        r for r in seen if r.issue.instruction.op is Op.MM and r.issue.instruction.out == OutOp.TOPK
    )
    assert logits.results["y"].shape[0] == 3


def test_program_does_not_grow_with_depth():
    programs = [
        compile_model(float_model(llama(num_hidden_layers=n)), tiny()).program for n in (1, 5)
    ]
    assert len(programs[0]) == len(programs[1])
    ops = [[i.op for i in p] for p in programs]
    assert ops[0] == ops[1]


def test_head_is_skipped_without_children():
    image = compile_model(float_model(llama()), tiny())
    short = list(unroll(image.program, head=False))
    full = list(unroll(image.program, head=True))
    assert len(full) - len(short) == 2
    rows = text_passes(IDS, [2])[0]
    rows[-1] = dataclasses.replace(rows[-1], want_children=False)
    assert Interpreter(image).forward(rows, {0: [0]}) == {}


def _patched(image, change):
    """The image with its program rewritten by `change(list)`."""
    program = change(image.program)
    data = np.frombuffer(assemble(program), np.uint8)
    segments = [
        dataclasses.replace(s, data=data) if s.name == "program" else s for s in image.segments
    ]
    return dataclasses.replace(
        image,
        segments=segments,
        registers={**image.registers, "model_program_length": len(program)},
    )


def _without(flag, op):
    """A change that clears a token flag of the first instruction of a kind that has it set."""

    def change(program):
        index = next(i for i, x in enumerate(program) if x.op is op and x.fields.get(flag))
        fields = {**program[index].fields, flag: 0}
        return [*program[:index], Instruction(op, **fields), *program[index + 1 :]]

    return change


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (_without("signal", Op.QUANT), "deadlocks"),
        (_without("signal", Op.SOFTMAX), "deadlocks"),
        (_without("wait", Op.QUANT), "token"),
        (_without("wait", Op.MM), "token"),
    ],
)
def test_the_interpreter_notices_unbalanced_tokens(change, match):
    image = _patched(compile_model(float_model(llama(num_hidden_layers=3)), tiny()), change)
    with pytest.raises(ImageError, match=match):
        Interpreter(image).forward(all_children(text_passes(IDS, [2])[0]), {0: [0]})


def test_the_interpreter_notices_misplaced_words():
    def drop(program):
        index = next(i for i, x in enumerate(program) if x.op is Op.LOAD and x.stride0)
        fields = {**program[index].fields, "words": program[index].words + 1}
        return [*program[:index], Instruction(Op.LOAD, **fields), *program[index + 1 :]]

    image = _patched(compile_model(float_model(llama()), tiny()), drop)
    with pytest.raises(ImageError, match=r"deadlocks|left"):
        Interpreter(image).forward(text_passes(IDS, [2])[0], {0: [0]})


def test_too_many_rows_are_refused():
    image = compile_model(float_model(llama()), tiny())
    with pytest.raises(ImageError, match="a pass has 5 rows: accepted are 1 to 4"):
        Interpreter(image).forward(text_passes(IDS, [5])[0], {0: [0]})


def test_integer_model_of_a_patched_image_follows_its_bytes():
    image = compile_model(float_model(llama()), tiny())
    head = image.segment("head")
    head.data = head.data.copy()
    head.data[20] ^= 3
    assert (integer_model(image).head.weight != 0).any()
    rows = text_passes(IDS, [4])[0]
    compute, interpreter = IntegerCompute.from_image(image), Interpreter(image)
    assert compute.forward(rows, {0: [0]}) == interpreter.forward(rows, {0: [0]})
