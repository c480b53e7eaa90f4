"""The cycle model's constants are the RTL's own."""

from dfvg_host.timing.cycles import Latencies
from dfvg_hw.attention.score_store import STORE_LATENCY
from dfvg_hw.attention.softmax import SOFTMAX_STAGES
from dfvg_hw.config import get_config
from dfvg_hw.matmul.control import CELL_LATENCY, LANE_LATENCY, SUM_LATENCY, drain_latency
from dfvg_hw.vector.passes import STAGES
from dfvg_hw.vector.scalar import SCALAR_LATENCY


def test_pipeline_depths():
    lat = Latencies()
    assert lat.mm_array == CELL_LATENCY + SUM_LATENCY
    assert lat.mm_lane == LANE_LATENCY
    assert lat.vec_settle == STORE_LATENCY + 1
    assert lat.vec_pass == STAGES + 3
    assert lat.vec_scalar == SCALAR_LATENCY + 2
    assert lat.softmax_head == SOFTMAX_STAGES + 4


def test_drain_of_the_array():
    for name in ("tiny", "sim"):
        config, lat = get_config(name), Latencies()
        drain = 1 + config.cells - 1 + lat.mm_array + config.rows - 1 + lat.mm_lane
        assert drain == drain_latency(config)
