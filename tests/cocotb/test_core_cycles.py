"""The cycle model is within 2 % of the core over a decode with the default memory model."""

import json

import pytest

from dfvg_hw.config import get_config
from dfvg_hw.core import ComputeCore
from sim.runner import run_bench

pytestmark = [pytest.mark.verilator, pytest.mark.rtl]


def _shapes(case):
    """What the model needs to know of each pass."""
    from dfvg_host.timing.cycles import PassShape

    for item in case.passes:
        yield PassShape(
            rows=sum(row["valid"] for row in item.rows),
            children=sum(row["children"] for row in item.rows),
            pages=tuple(s["pages"] for s in item.sequences if s["pages"]),
        )


def test_model_error(tmp_path):
    from dfvg_host.compile import compile_model
    from dfvg_host.compile.source import float_model
    from dfvg_host.timing.cycles import CycleModel, Latencies
    from tests.cocotb.core_case import make_case
    from tests.host.small_drafts import llama

    config = get_config("tiny")
    model = llama(hidden_size=128, intermediate_size=256)
    image = compile_model(float_model(model), config)
    case = make_case(image, "tiny", passes=7, seed=11)
    case.save(tmp_path / "case.bin")
    run_bench(
        lambda: ComputeCore(config),
        "tests.cocotb.tb_core_cycles",
        expected_tests=1,
        parameters={"case": tmp_path / "case.bin", "cycles": tmp_path / "cycles.json"},
    )
    measured = json.loads((tmp_path / "cycles.json").read_text())
    cycles = CycleModel(config, image.dims, image.program, Latencies(turn=0))  # the core alone
    modelled = [cycles.cycles(shape) for shape in _shapes(case)]
    report = list(zip(measured, modelled, _shapes(case), strict=True))
    print(*report, sep="\n")
    assert sum(modelled) == pytest.approx(sum(measured), rel=0.02), report
    assert max(abs(b / a - 1) for a, b, _ in report) < 0.05, report
