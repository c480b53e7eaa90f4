"""Documents that repeat tables from the code hold the current ones."""

from pathlib import Path

import pytest

from dfvg_host.compile import compile_model
from dfvg_host.compile.program import PROGRAM_LENGTH
from dfvg_host.compile.source import float_model
from dfvg_hw.isa import markdown
from tests.host.small_drafts import llama, tiny

DOCS = Path(__file__).parents[3] / "docs"
BEGIN = "<!-- generated from dfvg_hw.isa.markdown(): do not edit between here and END -->"
END = "<!-- END generated -->"


@pytest.fixture(scope="module")
def image():
    return compile_model(float_model(llama()), tiny())


def test_isa_fields():
    text = (DOCS / "isa.md").read_text()
    _, _, rest = text.partition(BEGIN)
    table, _, _ = rest.partition(END)
    assert table.strip() == markdown().strip(), "put dfvg_hw.isa.markdown() into docs/isa.md"
    assert f"{PROGRAM_LENGTH} instructions for any depth" in text


def test_image_format_names_every_register_and_segment(image):
    text = (DOCS / "image-format.md").read_text()
    for name in image.registers:
        assert f"`{name}`" in text, name
    for segment in image.segments:
        assert f"`{segment.name}`" in text or segment.name == "layer1", segment.name
