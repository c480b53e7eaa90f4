"""The compute core on a compiled model equals the integer model, bit for bit."""

import pytest

from dfvg_hw.core import ComputeCore
from sim.runner import run_bench
from tests.cocotb.configs import config_of

pytestmark = [pytest.mark.verilator, pytest.mark.rtl]

# What is given of each model to fit the config.
MODELS = {
    "odd": {"num_hidden_layers": 3, "num_attention_heads": 2, "num_key_value_heads": 1},
    "tiny": {"num_hidden_layers": 2},
    "sim": {"num_hidden_layers": 2},
}


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", ["odd", "tiny", pytest.param("sim", marks=pytest.mark.slow)])
def test_core_equals_the_integer_model(name, tmp_path):
    from dfvg_host.compile import compile_model
    from dfvg_host.compile.source import float_model
    from tests.cocotb.core_case import make_case
    from tests.host import tiny_models

    config = config_of(name)
    model = tiny_models.model(seed=3, **MODELS[name])
    case = make_case(compile_model(float_model(model), config), name, passes=14, seed=5)
    case.save(tmp_path / "case.bin")
    run_bench(
        lambda: ComputeCore(config),
        "tests.cocotb.tb_core",
        expected_tests=8,
        parameters={"case": tmp_path / "case.bin"},
    )
