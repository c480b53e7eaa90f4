"""The speed measurement runs, and what it measures does work."""

import pytest

from sim.bench.array_speed import bare_array, busy_engine, measure

pytestmark = [pytest.mark.slow, pytest.mark.rtl, pytest.mark.verilator]


def test_both_designs_compute_while_they_are_timed():
    speeds = [bare_array(rows=2, lanes=16), busy_engine("tiny", groups=2)]
    measure(speeds, seconds=0.1, rounds=2)
    for speed in speeds:
        assert speed.best > 10_000
        # The hash of the results moves on only if results do.
        assert len({speed.library.run(500) for _ in range(4)}) == 4
