"""The device description: presets, validation, hash and round trip."""

import pytest

from dfvg_hw.config import PRESETS, DeviceConfig, LinkModel, MemoryModel, get_config
from dfvg_hw.errors import ConfigError


def test_presets_derive_their_shapes():
    sim, tiny = PRESETS["sim"], PRESETS["tiny"]
    assert (sim.cells, sim.group_words, sim.macs_per_cycle) == (8, 1, 512)
    assert (tiny.cells, tiny.group_words, tiny.macs_per_cycle) == (2, 4, 64)
    assert sim.seq_pages == 2048 // 64 + 1
    assert sim.pool_pages == 2 * sim.seq_pages


@pytest.mark.parametrize(
    ("field", "value", "accepted"),
    [
        ("bus_bytes", 48, "8, 16, 32 or 64"),
        ("rows", 0, "1 to 16"),
        ("lanes", 3, "1, 2, 4 or 8"),
        ("m_slots", 4, "8 to 128"),
        ("topk", 17, "1 to 16"),
        ("candidates", 63, r"m_slots \* topk = 64"),
        ("max_ctx", 100, "a multiple of 64"),
        ("max_seqs", 0, "1 to 16"),
        ("vm_depth", 130, "a multiple of 64"),
        ("prog_depth", 1, "32 to"),
        ("addr_bits", 41, "24 to 40"),
        ("clock_hz", 0, "1 MHz"),
    ],
)
def test_bad_fields_are_named(field, value, accepted):
    with pytest.raises(ConfigError, match=f"{field} is {value}.*{accepted}"):
        PRESETS["tiny"].replace(**{field: value})


def test_bad_models_are_named():
    with pytest.raises(ConfigError, match=r"memory.stall_percent is 91: 0 to 90"):
        MemoryModel(stall_percent=91)
    with pytest.raises(ConfigError, match=r"link.latency_ns is -1"):
        LinkModel(latency_ns=-1)


def test_the_hash_covers_everything_but_the_name():
    sim = PRESETS["sim"]
    assert sim.replace(name="other").config_hash == sim.config_hash
    hashes = {sim.config_hash, sim.replace(lanes=8).config_hash}
    hashes.add(sim.replace(memory=MemoryModel(latency_cycles=65)).config_hash)
    hashes.add(sim.replace(link=LinkModel(latency_ns=1)).config_hash)
    assert len(hashes) == 4


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_dict_round_trip(name):
    config = get_config(name)
    assert DeviceConfig.from_dict(config.to_dict()) == config


def test_foreign_dicts_are_refused_in_one_line():
    data = PRESETS["tiny"].to_dict()
    with pytest.raises(ConfigError, match="extra"):
        DeviceConfig.from_dict({**data, "extra": 1})
    del data["rows"]
    with pytest.raises(ConfigError, match=r"incomplete.*rows"):
        DeviceConfig.from_dict(data)
    with pytest.raises(ConfigError, match="unknown config 'big': accepted are sim, tiny"):
        get_config("big")
