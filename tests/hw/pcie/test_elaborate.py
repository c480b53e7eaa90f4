"""`dfvg elaborate`: the files it writes."""

import argparse
import json

import pytest

from dfvg_hw.config import get_config
from dfvg_hw.elaborate import main, memories
from dfvg_hw.errors import ConfigError, UsageError
from dfvg_hw.registers import REGISTERS


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("design")
    assert main(argparse.Namespace(config="tiny", output=path)) == 0
    return path


def test_design_and_its_description(folder):
    text = (folder / "dfvg_tiny.v").read_text()
    assert "\nmodule dfvg_tiny(" in text
    for port in ("memory__arvalid", "host__awaddr", "registers__wdata", "mailbox__wstrb"):
        assert port in text
    shape = json.loads((folder / "dfvg_tiny.json").read_text())
    config = get_config("tiny")
    assert shape["config_hash"] == f"0x{config.config_hash:08x}"
    assert shape["config"]["rows"] == config.rows
    assert len(shape["design_sha256"]) == 64


def test_register_map_is_complete(folder):
    table = json.loads((folder / "registers.json").read_text())
    assert [entry["name"] for entry in table["registers"]] == [entry.name for entry in REGISTERS]
    assert table["mailbox"]["bytes"] == 512


def test_memory_report_adds_up(folder):
    found = memories((folder / "dfvg_tiny.v").read_text())
    lines = (folder / "memories.txt").read_text().splitlines()
    assert len(lines) == len(found) + 2
    total = sum(use.bits for use in found)
    assert lines[-1].split()[0] == str(total)
    # Vector memory alone: 1,024 elements of 32 bits in each of 4 rows.
    assert total > 4 * 1024 * 32
    config = get_config("tiny")
    assert any(u.depth == config.prog_depth and u.width == 128 for u in found)


def test_no_constant_is_left_to_a_process_without_inputs(folder):
    """Verilog simulators never run those: a signal assigned in parts would stay undefined."""
    text = (folder / "dfvg_tiny.v").read_text()
    lines = text.splitlines()
    bad = [
        lines[i + 1].strip()
        for i, line in enumerate(lines[:-1])
        if line.strip() == "always @*" and lines[i + 1].strip().split("=")[-1].strip()[0].isdigit()
    ]
    assert bad == []


def test_bad_input(tmp_path):
    with pytest.raises(ConfigError, match="unknown config 'huge': accepted are"):
        main(argparse.Namespace(config="huge", output=tmp_path))
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(UsageError, match="cannot write to"):
        main(argparse.Namespace(config="tiny", output=file / "below"))
