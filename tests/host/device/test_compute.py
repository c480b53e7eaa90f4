"""The emulator's arithmetic: independent of batching, of page placement, and of what is masked."""

import dataclasses

import numpy as np
import pytest
import torch

from dfvg_host.compile.source import float_model
from dfvg_host.device import matmul
from dfvg_host.device.compute import IntegerCompute
from dfvg_host.device.emulator import ComputeBackend, EmulatorDevice
from dfvg_host.quantize import quantize_model
from dfvg_host.quantize.fidelity import rows_of_text
from dfvg_hw.config import get_config
from dfvg_hw.messages import DraftLimits, Nodes, Open
from dfvg_hw.numerics import ops
from dfvg_hw.tree import Row, RowKind
from tests.host.small_drafts import SHAPES, all_children, llama, text_passes, tiny, truncated

POSITIONS = 320
IDS = torch.randint(0, 200, (200,), generator=torch.Generator().manual_seed(3)).tolist()


@pytest.fixture(scope="module")
def integers():
    return quantize_model(float_model(llama(**SHAPES["gqa"])), POSITIONS)


def _run(compute, sizes, table=(0, 1, 2, 3)):
    """Children found at the end of each pass over the text."""
    out = []
    for rows in text_passes(IDS, sizes):
        moved = [dataclasses.replace(row, phys=table[row.page]) for row in rows]
        out.append(compute.forward(moved, {0: table[: rows[-1].page + 1]})[rows[-1].index])
    return out


@pytest.mark.parametrize("rows", [1, 5, 32])
@pytest.mark.parametrize("groups", [1, 3])
def test_matrix_products_equal_the_golden_ones(rows, groups, seed):
    rng = np.random.default_rng(seed)
    q = rng.integers(-127, 128, (rows, 64 * groups))
    q[0] = 127
    shift = rng.integers(0, 16, (rows, groups))
    weight = rng.integers(-127, 128, (96, 64 * groups))
    weight[0], weight[1] = 127, -127
    x = ops.Quantized(q, shift, ops.RowScale(np.ones((rows, 1)), np.ones((rows, 1))))
    result = matmul.matmul_exact(x, torch.from_numpy(weight).to(torch.int8))
    assert (result == ops.dot_groups(weight, q, shift)).all()


def test_matrix_products_without_int8_instructions(monkeypatch, seed):
    rng = np.random.default_rng(seed)
    q, shift = rng.integers(-127, 128, (4, 128)), rng.integers(0, 16, (4, 2))
    weight = rng.integers(-127, 128, (70, 128))
    x = ops.Quantized(q, shift, ops.RowScale(np.ones((4, 1)), np.ones((4, 1))))
    monkeypatch.setattr(matmul, "_int8_product_is_exact", lambda: False)
    monkeypatch.setattr(matmul, "_CHUNK", 64)
    result = matmul.matmul_exact(x, torch.from_numpy(weight).to(torch.int8))
    assert (result == ops.dot_groups(weight, q, shift)).all()


def test_pass_sizes_and_page_placement_change_nothing(integers):
    config = tiny()
    together = _run(IntegerCompute(integers, config), [64, 66])
    apart = IntegerCompute(integers, config)
    single = _run(apart, [1] * 130)
    moved = _run(IntegerCompute(integers, config), [7] * 18 + [4], (3, 0, 4, 1))
    assert single[63] == together[0]
    assert single[129] == together[1] == moved[-1]


def test_sequences_in_one_pass_do_not_see_each_other(integers):
    alone = IntegerCompute(integers, tiny())
    first = alone.forward(all_children(rows_of_text(IDS, 0, 8)), {0: [0]})
    other = [dataclasses.replace(row, seq=1, phys=2) for row in rows_of_text(IDS[50:], 0, 8)]
    second = alone.forward(all_children(other), {1: [2]})
    both = []
    for a, b in zip(rows_of_text(IDS, 0, 8), other, strict=True):
        both += [
            dataclasses.replace(a, index=len(both)),
            dataclasses.replace(b, index=len(both) + 1),
        ]
    mixed = IntegerCompute(integers, tiny()).forward(all_children(both), {0: [0], 1: [2]})
    assert [mixed[2 * i] for i in range(8)] == [first[i] for i in range(8)]
    assert [mixed[2 * i + 1] for i in range(8)] == [second[i] for i in range(8)]


def test_masked_slots_have_no_influence(integers):
    clean = IntegerCompute(integers, tiny())
    dirty = IntegerCompute(integers, tiny())
    rng = np.random.default_rng(0)
    for name in ("k", "v"):
        array = getattr(dirty.kv, name)
        array[:] = rng.integers(-127, 128, array.shape)
        scale = getattr(dirty.kv, f"{name}_scale")
        scale[:] = rng.integers(0, 256, scale.shape)
    sizes = [5, 9, 50, 3]
    assert _run(clean, sizes) == _run(dirty, sizes)


def test_siblings_see_their_ancestors_only(integers):
    """Two branches from one prefix, in one pass with a common parent, equal two plain texts."""
    prefix = 70
    branches = [[9, 21], [9, 33]]
    expected = []
    for branch in branches:
        compute = IntegerCompute(integers, tiny())
        ids = IDS[:prefix] + branch
        compute.forward(rows_of_text(ids, 0, prefix), {0: [0, 1]})
        rows = all_children(rows_of_text(ids, prefix, prefix + 2))
        expected.append(compute.forward(rows, {0: [0, 1]})[1])

    def row(index, token, depth, offset, seen):
        full, part = (1 << 64) - 1, (1 << (prefix - 64)) - 1
        maps = (full, part | sum(1 << o for o in seen))
        return Row(index, RowKind.GROWTH, 0, token, prefix + depth, 1, 1, offset, None, None,
                   None, True, maps)  # fmt: skip

    compute = IntegerCompute(integers, tiny())
    compute.forward(rows_of_text(IDS, 0, prefix), {0: [0, 1]})
    tree = [
        row(0, 21, 1, 40, (11, 40)),  # before its parent, in slots out of order
        row(1, 9, 0, 11, (11,)),
        row(2, 33, 1, 20, (11, 20)),
    ]
    found = compute.forward(tree, {0: [0, 1]})
    assert found[0] == expected[0]
    assert found[2] == expected[1]
    assert found[0] != found[2]


def test_children_carry_token_ids_of_a_truncated_head():
    compute = IntegerCompute(quantize_model(truncated(llama()), POSITIONS), tiny())
    rows = all_children(rows_of_text(IDS, 0, 4))
    found = compute.forward(rows, {0: [0]})
    assert set(found) == {0, 1, 2, 3}
    for children in found.values():
        assert len(children) == tiny().topk
        assert all(token % 5 == 3 for token, _ in children)
        edges = [edge for _, edge in children]
        assert edges == sorted(edges, reverse=True)
        assert edges[0] <= 0
        assert sum(2.0 ** (edge / 256) for edge in edges) < 1.01
    assert compute.output_vocabulary == 40
    assert compute.vocabulary == 224


def test_rows_without_children_return_nothing(integers):
    compute = IntegerCompute(integers, tiny())
    assert compute.forward(rows_of_text(IDS, 0, 3), {0: [0]}) == {}


def test_it_is_a_backend_of_the_emulator(integers):
    backend: ComputeBackend = IntegerCompute(integers, tiny())
    device = EmulatorDevice(tiny(), backend)
    limits = DraftLimits(threshold=-4000, max_depth=6, max_slots=16, topk=4)
    device.send(Open(seq=0, epoch=1, tokens=tuple(IDS[:11]), limits=limits))
    while device.next_pass_cycles() is not None:
        done = device.run_pass()
        assert done.cycles >= done.ideal >= done.ideal_bytes > 0
    nodes = [m for m in device.poll() if isinstance(m, Nodes)]
    assert len(nodes) > 3
    best = device.tree
    assert best is not None


def test_a_sim_sized_pass_is_fast(integers):
    import time

    config = get_config("sim")
    compute = IntegerCompute(quantize_model(float_model(llama()), config.seq_pages * 64), config)
    rows = all_children(rows_of_text(IDS, 0, 8))
    compute.forward(rows, {0: [0]})
    start = time.process_time()
    compute.forward(rows, {0: [0]})
    assert time.process_time() - start < 0.25
