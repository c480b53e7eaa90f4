"""The matrix engine on Verilator: every output operation, pages, tokens, resets; three configs."""

import pytest

from sim.runner import BenchFailure, run_bench
from tests.cocotb.configs import config_of
from tests.hw.matmul.bench_top import EngineBench

pytestmark = [pytest.mark.rtl, pytest.mark.verilator]

TESTS = 14


def _run(name, *, seed, idle="random", rounds=3, burst=4, fault=0, testcase=None):
    config = config_of(name)
    parameters = {"config": name, "rounds": rounds, "burst": burst, "idle": idle, "fault": fault}
    run_bench(
        lambda: EngineBench(config),
        "tests.cocotb.tb_matmul",
        expected_tests=1 if testcase else TESTS,
        parameters=parameters,
        seed=seed,
        testcase=testcase,
    )


def test_matmul_tiny():
    _run("tiny", seed=1)


def test_matmul_odd():
    _run("odd", seed=2, rounds=1, burst=3)


@pytest.mark.slow
@pytest.mark.parametrize("idle", ["none", "bursts", "alternate"])
def test_matmul_tiny_long(idle):
    _run("tiny", seed=3, idle=idle, rounds=6, burst=6)


@pytest.mark.slow
def test_matmul_sim():
    _run("sim", seed=5, rounds=3, burst=4)


FAULTS = {
    1: ("latency_is_as_documented", "vm of row 0: result 0 is"),
    2: ("latency_is_as_documented", "vm of row 0: result 1 is|missing after"),
    4: ("waits_for_every_token", "token with 0 of|a token that nothing signalled"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_checker_can_fail(fault):
    testcase, message = FAULTS[fault]
    with pytest.raises(BenchFailure, match=message):
        _run("tiny", seed=1, fault=fault, testcase=testcase)
