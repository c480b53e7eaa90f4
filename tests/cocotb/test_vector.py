"""The vector engine on Verilator: every instruction, scores and head, three configurations."""

import pytest

from sim.runner import run_bench
from tests.hw.vector.bench_top import EngineBench

TESTS = 11


def _run(name, rounds, idle, seed):
    from tests.cocotb.configs import config_of

    config = config_of(name)
    parameters = {"config": name, "rounds": rounds, "idle": idle}
    run_bench(
        lambda: EngineBench(config),
        "tests.cocotb.tb_vector",
        expected_tests=TESTS,
        parameters=parameters,
        seed=seed,
    )


@pytest.mark.rtl
@pytest.mark.verilator
@pytest.mark.parametrize(("idle", "rounds"), [("none", 1), ("random", 2), ("bursts", 1)])
def test_vector_tiny(idle, rounds):
    _run("tiny", rounds, idle, seed=1)


@pytest.mark.rtl
@pytest.mark.verilator
def test_vector_odd():
    _run("odd", 2, "random", seed=2)


@pytest.mark.slow
@pytest.mark.rtl
@pytest.mark.verilator
def test_vector_sim():
    _run("sim", 2, "random", seed=3)
