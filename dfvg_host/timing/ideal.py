"""The least a pass could cost: the denominator of eta."""

from __future__ import annotations

from collections.abc import Sequence

from dfvg_host.quantize.integer import Kind, ModelDims
from dfvg_hw.config import DeviceConfig
from dfvg_hw.tree import Row

__all__ = ["ideal_words"]


def ideal_words(config: DeviceConfig, dims: ModelDims, rows: Sequence[Row]) -> tuple[float, float]:
    """Ideal cycles and bytes-only cycles of a pass.

    Sums over operators max(bytes / bus, MACs / array), and bytes / bus alone. Bytes are weights
    with their scales, gains, table rows, and the K and V of tokens that some row sees; MACs are
    those of the rows that run. Padding counts for nothing.

    Parameters
    ----------
    config : DeviceConfig
    dims : ModelDims
    rows : sequence of Row
    """
    bus, array = config.bus_bytes, config.macs_per_cycle
    total = by_bytes = 0.0

    def add(size: float, macs: float, times: int = 1) -> None:
        nonlocal total, by_bytes
        total += times * max(size / bus, macs / array)
        by_bytes += times * size / bus

    n = len(rows)
    add(n * (dims.hidden + 2 + 2 * dims.head_dim), 0)
    add(2 * dims.hidden, 0, 2 * dims.layers + 1)
    for kind in Kind:
        if kind is Kind.HEAD:
            continue
        out, inner = _real_shape(dims, kind)
        add(out * (inner + 2), n * out * inner, dims.layers)
    want = sum(row.want_children for row in rows)
    if want:
        add(dims.out_vocab * (dims.hidden + 2), want * dims.out_vocab * dims.hidden)
    live, seen = _tokens(rows)
    per_token = dims.gqa * dims.head_dim
    heads = dims.layers * dims.kv_heads
    add(live * (dims.head_dim + 2), seen * per_token, heads)  # scores
    add(live * dims.head_dim, seen * per_token, heads)  # weighted values
    return total, by_bytes


def _real_shape(dims: ModelDims, kind: Kind) -> tuple[int, int]:
    """Unpadded (output channels, inner dimension)."""
    q, kv = dims.heads * dims.head_dim, dims.kv_heads * dims.head_dim
    return {
        Kind.K: (kv, dims.hidden),
        Kind.V: (kv, dims.hidden),
        Kind.Q: (q, dims.hidden),
        Kind.OUT: (dims.hidden, q),
        Kind.GATE_UP: (2 * dims.ffn, dims.hidden),
        Kind.DOWN: (dims.hidden, dims.ffn),
    }[kind]


def _tokens(rows: Sequence[Row]) -> tuple[int, int]:
    """Tokens that some row sees, and the sum over rows of the tokens it sees."""
    union: dict[tuple[int, int], int] = {}
    seen = 0
    for row in rows:
        for page, tokens in enumerate(row.visible):
            seen += tokens.bit_count()
            union[row.seq, page] = union.get((row.seq, page), 0) | tokens
    return sum(tokens.bit_count() for tokens in union.values()), seen
