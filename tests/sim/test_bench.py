"""The cocotb runner and helpers: right designs pass, and each checker is shown to fail."""

import pytest

from sim.runner import BenchFailure, bench_seed, control_file, run_bench
from tests.sim.designs import Edges, Fault, FaultyQueue

pytestmark = [pytest.mark.verilator, pytest.mark.rtl]

# One build; each case is a run of a few seconds.
EXPECTED = {
    Fault.VALID_FALLS: "valid fell before",
    Fault.PAYLOAD_CHANGES: "payload became",
    Fault.VALID_IN_RESET: "valid in reset or right after it",
    Fault.CORRUPTS: "item 5 is",
    Fault.LOSES: "item 6 is",
    Fault.DUPLICATES: "item 7 is",
    Fault.STUCK: "not accepted within 5000 cycles: i holds",
    Fault.IGNORES_VALID: "item 0 is|unexpected item",
}


def test_values_at_clock_edges_are_what_benches_rely_on():
    result = run_bench(Edges, "tests.sim.tb_edges", expected_tests=3)
    assert (result.tests, result.failures) == (3, 0)


def test_a_sound_queue_passes_every_profile_and_reset():
    result = run_bench(FaultyQueue, "tests.sim.tb_queue", expected_tests=17)
    assert not result.folder.exists(), "a passing run leaves nothing behind"


@pytest.mark.parametrize("fault", EXPECTED, ids=lambda fault: fault.name.lower())
def test_each_checker_can_fail(fault):
    with pytest.raises(BenchFailure, match=EXPECTED[fault]):
        run_bench(
            FaultyQueue, "tests.sim.tb_queue", expected_tests=17, parameters={"fault": fault.value}
        )


def test_lost_last_items_are_missed():
    # 7 items: the one that is lost is the last, so nothing ever compares unequal.
    with pytest.raises(BenchFailure, match="o: 1 items missing after 6"):
        run_bench(
            FaultyQueue,
            "tests.sim.tb_queue",
            expected_tests=17,
            parameters={"fault": Fault.LOSES.value, "count": 7},
        )


@pytest.mark.parametrize("expected", [2, 4])
def test_a_wrong_number_of_tests_fails(expected):
    with pytest.raises(BenchFailure, match=f"0 of 3 tests failed, {expected} expected"):
        run_bench(Edges, "tests.sim.tb_edges", expected_tests=expected)


def test_a_missing_module_fails():
    with pytest.raises(BenchFailure, match="0 of 0 tests failed, 1 expected"):
        run_bench(Edges, "tests.sim.no_such_bench", expected_tests=1)


def test_waves_are_written_on_request(tmp_path):
    run_bench(Edges, "tests.sim.tb_edges", expected_tests=3, waves=True, test_dir=tmp_path)
    text = (tmp_path / "dump.vcd").read_text()
    assert "$var wire" in text
    assert "not_q" in text


def test_inner_signals_are_visible_on_request():
    run_bench(FaultyQueue, "tests.sim.tb_inner", expected_tests=1, public=["top.fifo.r_rdy"])


def test_the_environment_chooses_the_seed(monkeypatch):
    monkeypatch.delenv("DFVG_SEED", raising=False)
    fixed = bench_seed()
    assert bench_seed(5) == 5
    monkeypatch.setenv("DFVG_SEED", "0x10")
    assert bench_seed(5) == bench_seed() == 16 != fixed


def test_only_ports_and_what_is_asked_for_become_public():
    text = "module top(a, b);\n  input [3:0] a;\n  output b;\n  wire inner;\nendmodule\n"
    assert control_file(text, "top", ["top.row.count"]).splitlines() == [
        "`verilator_config",
        'public_flat_rw -module "top" -var "a"',
        'public_flat_rd -module "top" -var "b"',
        'public_flat_rd -module "top.row" -var "count"',
    ]
    with pytest.raises(ValueError, match="no module 'other'"):
        control_file(text, "other")
