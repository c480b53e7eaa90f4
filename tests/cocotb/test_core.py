"""The compute core on a compiled model equals the integer model, bit for bit."""

import pytest

from dfvg_hw.core import ComputeCore
from sim.runner import BenchFailure, run_bench
from tests.cocotb.configs import config_of

pytestmark = [pytest.mark.verilator, pytest.mark.rtl]

# What is given of each model to fit the config.
MODELS = {
    "odd": {"num_hidden_layers": 3, "num_attention_heads": 2, "num_key_value_heads": 1},
    "tiny": {"num_hidden_layers": 2},
    "sim": {"num_hidden_layers": 2},
}


def make(name, passes):
    from dfvg_host.compile import compile_model
    from dfvg_host.compile.source import float_model
    from tests.cocotb.core_case import make_case
    from tests.host import tiny_models

    model = tiny_models.model(seed=3, **MODELS[name])
    return make_case(compile_model(float_model(model), config_of(name)), name, passes, seed=5)


def run(case, path, tests, **options):
    case.save(path)
    run_bench(
        lambda: ComputeCore(config_of(case.config)),
        "tests.cocotb.tb_core",
        expected_tests=tests,
        parameters={"case": path},
        **options,
    )


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", ["odd", "tiny", pytest.param("sim", marks=pytest.mark.slow)])
def test_core_equals_the_integer_model(name, tmp_path):
    run(make(name, passes=14), tmp_path / "case.bin", tests=8)


@pytest.mark.parametrize("fault", ["embedding", "visibility"])
def test_a_wrong_bit_is_noticed(fault, tmp_path):
    """The bench can fail: by one bit of an embedding, or by one token that a row no longer sees."""
    case = make("odd", passes=3)
    if fault == "embedding":
        memory, registers = bytearray(case.memory), case.registers
        row = case.passes[0].rows[0]["token"] * registers["model_embed_stride"]
        memory[64 * (registers["model_embed_base"] + row) + 3] ^= 0x40
        case.memory = bytes(memory)
    else:
        wrong = case.passes[2]
        maps = wrong.visible[0]
        seen = maps[0] ^ (maps[0] & -maps[0])  # without its oldest token
        wrong.visible[0] = (seen, *maps[1:])
        assert seen, "the row sees itself alone"
        assert wrong.rows[0]["children"]
    with pytest.raises(BenchFailure, match="children: item"):
        run(case, tmp_path / "case.bin", 1, testcase="children_and_kv_equal_the_integer_model")
