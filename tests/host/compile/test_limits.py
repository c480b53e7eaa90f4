"""Drafts that don't fit are refused in one line that names the field."""

import dataclasses

import pytest

from dfvg_host.compile import compile_model
from dfvg_host.compile.compiler import memory_map
from dfvg_host.compile.limits import check_fits, needs
from dfvg_host.compile.source import float_model
from dfvg_host.quantize import ModelDims
from dfvg_hw.config import get_config
from dfvg_hw.errors import ImageError
from tests.host.small_drafts import llama, tiny

DIMS = ModelDims(64, 2, 4, 2, 64, 128, 1000, 500)
SMOL = ModelDims(576, 30, 9, 3, 64, 1536, 49152, 49152)


@pytest.mark.parametrize("field", ["vm_depth", "act_groups", "score_depth", "acc_depth"])
def test_each_memory_is_needed_to_the_last_entry(field):
    need = needs(DIMS, tiny())[field]
    step = 64 if field == "vm_depth" else 1
    fits = tiny().replace(**{field: max(need, 128 if step == 64 else 1)})
    check_fits(DIMS, fits)
    small = fits.replace(**{field: getattr(fits, field) - step})
    with pytest.raises(ImageError, match=f"needs {field} {need}: config 'custom' has"):
        check_fits(DIMS, small)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"head_dim": 33}, "head size 33: accepted are even"),
        ({"head_dim": 256}, "head size 256: accepted is up to 192"),
        ({"heads": 66}, "query heads per KV head 33: accepted is up to 31"),
        ({"vocab": 1 << 21}, "vocabulary 2097152: accepted is up to 1048576"),
        ({"out_vocab": 3}, "has 3 head rows: config 'custom' needs 4"),
        ({"hidden": 70000}, "inner dimension 70016: accepted is up to 65472"),
    ],
)
def test_instruction_fields_are_respected(changes, match):
    roomy = tiny().replace(
        vm_depth=1 << 20, act_groups=1 << 20, score_depth=1 << 20, acc_depth=1 << 20
    )
    with pytest.raises(ImageError, match=match) as caught:
        check_fits(dataclasses.replace(DIMS, **changes), roomy)
    assert "\n" not in str(caught.value)


def test_smollm2_fits_sim_and_not_tiny():
    check_fits(SMOL, get_config("sim"))
    memory_map(SMOL, get_config("sim")).check()
    with pytest.raises(ImageError, match="needs vm_depth"):
        check_fits(SMOL, tiny())


def test_address_space():
    small = get_config("sim").replace(addr_bits=24)
    with pytest.raises(ImageError, match=r"config 'custom' addresses 16777216 \(addr_bits 24\)"):
        memory_map(SMOL, small).check()


def test_program_memory():
    with pytest.raises(ImageError, match="prog_depth 32"):
        compile_model(float_model(llama()), tiny().replace(prog_depth=32))


def test_compile_refuses_before_it_quantises():
    def never(index):
        raise AssertionError("a layer was read")

    model = dataclasses.replace(float_model(llama()), layer=never)
    with pytest.raises(ImageError, match="needs vm_depth"):
        compile_model(model, tiny().replace(vm_depth=256))
