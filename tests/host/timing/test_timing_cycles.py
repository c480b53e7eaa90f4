"""The cycle model: its parts against hand counts, its limits, and its lower bound."""

import dataclasses

import pytest

from dfvg_host.compile.compiler import memory_map
from dfvg_host.compile.program import build_program
from dfvg_host.quantize import Kind, ModelDims, Requant
from dfvg_host.quantize.fidelity import rows_of_text
from dfvg_host.timing.cycles import CycleModel, PassShape
from dfvg_host.timing.ideal import ideal_words
from dfvg_host.timing.supply import REQUEST_LATENCY, WordSupply
from dfvg_hw.config import MemoryModel, get_config

SIM = get_config("sim")
DRAFT = ModelDims(576, 4, 9, 3, 64, 1536, 49152, 4096)


def _model(dims=DRAFT, config=SIM):
    shifts = {kind: Requant(8, 30) for kind in Kind}
    return CycleModel(config, dims, build_program(memory_map(dims, config), shifts, 100, 36))


def _rows(count, end, children=True):
    rows = rows_of_text([1] * end, end - count, end)
    return [dataclasses.replace(row, want_children=children) for row in rows]


def test_supply_starts_after_the_latency():
    supply = WordSupply(SIM.replace(memory=MemoryModel(latency_cycles=100, stall_percent=0)))
    assert supply.take(1, 0.0) == 100 + REQUEST_LATENCY + 1


def test_supply_is_limited_by_bandwidth_when_never_waited_for():
    supply = WordSupply(SIM.replace(memory=MemoryModel(latency_cycles=64, stall_percent=20)))
    end = supply.take(100_000, 0.0)
    assert end == pytest.approx(100_000 / 0.8, rel=0.01)


def test_supply_hides_a_wait_up_to_the_fifo():
    config = SIM.replace(memory=MemoryModel(latency_cycles=64, stall_percent=0))
    supply = WordSupply(config)
    now = supply.take(10_000, 0.0)
    after = supply.take(512, now + 600) - (now + 600)
    assert after == pytest.approx(512, abs=1)  # they were all there
    slow = WordSupply(config.replace(prefetch_words=16))
    now = slow.take(10_000, 0.0)
    assert now > 10_000 * 64 / 16  # 16 words per latency: such a FIFO can't stream


def test_weights_dominate_a_pass():
    shape = PassShape(rows=8, children=8, pages=(4,))
    model = _model()
    words = sum(
        DRAFT.shape(k)[0] * (DRAFT.shape(k)[1] + 2) / 64 * (1 if k is Kind.HEAD else DRAFT.layers)
        for k in Kind
    )
    assert words < model.cycles(shape) < 1.25 * words


def test_more_of_anything_costs_more():
    model = _model()
    base = PassShape(rows=4, children=1, pages=(2,))
    cycles = model.cycles(base)
    assert model.cycles(dataclasses.replace(base, pages=(3,))) > cycles
    assert model.cycles(dataclasses.replace(base, pages=(2, 1))) > cycles
    assert model.cycles(dataclasses.replace(base, rows=8)) > cycles
    headless = model.cycles(dataclasses.replace(base, children=0))
    assert cycles - headless == pytest.approx(DRAFT.out_vocab * 578 / 64 / 0.95, rel=0.02)
    deep, bare = _model(dataclasses.replace(DRAFT, layers=8)), dataclasses.replace(base, children=0)
    assert deep.cycles(bare) == pytest.approx(2 * headless, rel=0.02)


def test_stalls_and_clock_period_enter_once():
    fast = _model(config=SIM.replace(memory=MemoryModel(stall_percent=0)))
    slow = _model(config=SIM.replace(memory=MemoryModel(stall_percent=50)))
    shape = PassShape(rows=8, children=8, pages=(1,))
    assert 1.7 < slow.cycles(shape) / fast.cycles(shape) < 2.01


def test_cost_is_a_function_of_the_pass_alone():
    model = _model()
    rows = _rows(8, 200)
    first = model.cost(rows, {0: [0, 1, 2, 3]})
    moved = [dataclasses.replace(row, token=5, phys=row.phys + 7) for row in rows]
    assert model.cost(moved, {0: [7, 8, 9, 10]}) == first == _model().cost(rows, {0: [0, 1, 2, 3]})


def test_ideal_by_hand():
    dims = ModelDims(64, 1, 2, 1, 64, 128, 256, 128)
    rows = _rows(3, 5)
    total, by_bytes = ideal_words(SIM, dims, rows)
    weights = 64 * 66 * 2 + 128 * 66 + 64 * 130 + 256 * 66 + 64 * 130 + 128 * 66
    gains_and_rows = 3 * 128 + 3 * (66 + 128)
    kv = 5 * (66 + 64)
    assert by_bytes == pytest.approx((weights + gains_and_rows + kv) / 64)
    assert total == pytest.approx(by_bytes)  # 3 of 8 rows never need the array longer
    eight = ideal_words(SIM, dims, _rows(8, 64))
    seen = sum(range(57, 65))  # tokens that each row sees
    attention = 2 * seen * 2 * 64 / SIM.macs_per_cycle  # scores and values are MAC-bound
    assert eight[0] - eight[1] == pytest.approx(attention - 64 * (66 + 64) / 64)


def test_ideal_counts_only_live_tokens():
    rows = _rows(2, 130)
    dead = [dataclasses.replace(row, visible=(row.visible[0], 0, *row.visible[2:])) for row in rows]
    full, sparse = (ideal_words(SIM, DRAFT, r)[1] for r in (rows, dead))
    per_token = (2 * DRAFT.head_dim + 2) / SIM.bus_bytes
    assert full - sparse == pytest.approx(64 * per_token * DRAFT.kv_heads * DRAFT.layers)


@pytest.mark.parametrize("context", [8, 64, 256, 512])
def test_the_model_never_beats_the_ideal(context):
    cost = _model().cost(_rows(8, context), {0: list(range(-(-context // 64)))})
    assert cost.ideal_bytes <= cost.ideal < cost.cycles


def test_shipped_shape_reaches_the_eta_it_must():
    for context in (128, 256):
        cost = _model().cost(_rows(8, context), {0: list(range(context // 64))})
        assert cost.ideal / cost.cycles > 0.85
