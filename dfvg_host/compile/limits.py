"""What a draft needs of a device, checked before anything is laid out."""

from __future__ import annotations

from dfvg_host.quantize.integer import ModelDims
from dfvg_hw.config import GROUP, PAGE, DeviceConfig
from dfvg_hw.errors import ImageError

__all__ = ["VmMap", "check_fits", "needs"]


class VmMap:
    """Places in vector memory, in elements: x stays, the rest is reused.

    Attention outputs take the place of the queries they came from, the feed-forward's inner vector
    the place of everything that attention used.
    """

    def __init__(self, dims: ModelDims) -> None:
        self.x = 0
        self.q = dims.hidden_pad
        self.k = self.q + dims.q_size
        self.v = self.k + dims.kv_size
        self.h = dims.hidden_pad
        self.end = max(self.v + dims.kv_size, self.h + dims.ffn_pad)


def needs(dims: ModelDims, config: DeviceConfig) -> dict[str, int]:
    """Smallest value of each config field with which the draft runs (programs apart)."""
    pages = config.seq_pages
    groups = (
        dims.hidden_pad // GROUP,
        dims.ffn_pad // GROUP,
        dims.q_size // GROUP,
        dims.gqa * (dims.head_groups + pages),
    )
    return {
        "vm_depth": VmMap(dims).end,
        "act_groups": max(groups),
        "score_depth": dims.gqa * pages * PAGE,
        "acc_depth": dims.gqa * dims.head_pad,
    }


def _require(value: int, limit: int, what: str) -> None:
    if value > limit:
        raise ImageError(f"the draft has {what} {value}: accepted is up to {limit}")


def check_fits(dims: ModelDims, config: DeviceConfig) -> None:
    """Refuse a draft that the device's memories or instruction fields can't hold.

    Raises
    ------
    ImageError
        Naming the first field that's too small, what is needed and what there is.
    """
    for name, need in needs(dims, config).items():
        have = getattr(config, name)
        if need > have:
            raise ImageError(f"the draft needs {name} {need}: config {config.name!r} has {have}")
    if dims.head_dim % 2:
        raise ImageError(f"the draft has head size {dims.head_dim}: accepted are even sizes")
    if dims.out_vocab < config.topk:
        raise ImageError(
            f"the draft has {dims.out_vocab} head rows: config {config.name!r} needs {config.topk}"
        )
    _require(dims.head_dim, 3 * GROUP, "head size")
    _require(dims.gqa, 31, "query heads per KV head")
    _require(dims.gqa * dims.head_pad, 4095, "query elements per KV head")
    _require(dims.kv_heads, 255, "KV heads")
    _require(dims.layers, 65535, "layers")
    _require(dims.vocab, 1 << 20, "vocabulary")
    _require(max(dims.hidden_pad, dims.ffn_pad, dims.q_size), 1023 * GROUP, "inner dimension")
    _require(2 * dims.ffn_pad * 2 // config.bus_bytes, 65535, "scale blocks in gate and up")
    _require(dims.out_vocab * 2 // config.bus_bytes, 65535, "scale blocks in the head")
