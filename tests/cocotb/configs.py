"""Configurations that benches run on."""

from dfvg_hw.config import DeviceConfig, get_config

ODD = {
    "bus_bytes": 8,
    "rows": 3,
    "lanes": 1,
    "m_slots": 8,
    "candidates": 24,
    "topk": 3,
    "max_ctx": 192,
    "max_seqs": 3,
    "vm_depth": 448,
    "act_groups": 24,
    "score_depth": 704,
    "acc_depth": 128,
    "prefetch_words": 64,
}


def config_of(name):
    """Presets, and one of awkward sizes."""
    return DeviceConfig(name="odd", **ODD) if name == "odd" else get_config(name)
