"""Payload shapes and port signatures where the blocks of the core meet.

One place knows each: blocks in ``matmul``, ``vector``, ``attention``, ``head``, ``memory``,
``overlap`` and ``tree`` import them from here and never restate a width. Per-row ports are arrays
of `DeviceConfig.rows` members; row ``r`` of the array runs ``r`` cycles behind row 0, so nothing
may assume that rows report in the same cycle.
"""

from __future__ import annotations

from amaranth.hdl import signed, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from .config import GROUP, DeviceConfig
from .isa import INSTRUCTION_BYTES

__all__ = [
    "ACT_GROUP_BITS",
    "HEAD_BITS",
    "PAGE_BITS",
    "POSITION_BITS",
    "SCALE_BITS",
    "SEQ_BITS",
    "SLOT_BITS",
    "TOKEN_BITS",
    "VM_ADDR_BITS",
    "act_write",
    "child_result",
    "issue",
    "kv_command",
    "kv_tail_write",
    "logit",
    "model_registers",
    "rope_write",
    "row_context",
    "scale_write",
    "score",
    "sequence_context",
    "shift_write",
    "visibility_write",
    "vm_read",
    "vm_write",
    "word",
]

TOKEN_BITS = 20
"""Vocabularies up to 1,048,576 ids."""
POSITION_BITS = 17
PAGE_BITS = 12
"""Index of a KV page, in a sequence's table or in the pool."""
SLOT_BITS = 6
"""Token offset in a page of 64."""
SEQ_BITS = 4
VM_ADDR_BITS = 14
ACT_GROUP_BITS = 10
SCALE_BITS = 8
"""Index of an entry of the row-scale memory."""
HEAD_BITS = 8
"""Index of a KV head."""

LOOP0_BITS, LOOP1_BITS = 16, 8


def word(config: DeviceConfig) -> unsigned:
    """One memory word."""
    return unsigned(8 * config.bus_bytes)


def issue() -> data.StructLayout:
    """An instruction on its way to an engine, with its loop indices at issue."""
    return data.StructLayout({"code": 8 * INSTRUCTION_BYTES, "i0": LOOP0_BITS, "i1": LOOP1_BITS})


def model_registers() -> data.StructLayout:
    """Addresses and strides of the loaded model, byte units of 64 (see docs/image-format.md).

    KV page of (physical page, layer, kvh): kv_base + page*kv_page + layer*kv_layer + kvh*kv_head.
    Inside: K-scale bytes (64), V-scale bytes (64), K (64 x head_groups*64), at +kv_v V (dims x 64).
    """
    return data.StructLayout(
        {
            "kv_base": 26,
            "kv_page": 26,
            "kv_layer": 26,
            "kv_head": 26,
            "kv_v": 26,
            "head_groups": 2,
            "kv_heads": HEAD_BITS,
            "layers": LOOP0_BITS,
            "embed_base": 26,
            "embed_stride": 16,
            "embed_words": 12,
            "rope_base": 26,
            "rope_stride": 16,
            "rope_words": 8,
            "vocab": TOKEN_BITS,
        }
    )


def row_context() -> data.StructLayout:
    """What one row of a pass works on, constant during the pass.

    ``page`` indexes the sequence's page table, ``phys`` is that page in the pool, ``offset`` the
    token's place in it; ``children`` asks the head for the row's best next tokens.
    """
    return data.StructLayout(
        {
            "valid": 1,
            "children": 1,
            "token": TOKEN_BITS,
            "position": POSITION_BITS,
            "seq": SEQ_BITS,
            "page": PAGE_BITS,
            "phys": PAGE_BITS,
            "offset": SLOT_BITS,
        }
    )


def sequence_context(config: DeviceConfig) -> data.StructLayout:
    """A sequence's share of a pass: its rows and the number of KV pages to attend to.

    A sequence without rows has ``pages`` 0 and is skipped by LOAD, MM, merge and softmax alike.
    """
    return data.StructLayout({"rows": config.rows, "pages": PAGE_BITS})


def visibility_write(config: DeviceConfig) -> wiring.Signature:
    """Write port of a row's visibility memory: bit t of ``bits`` shows token t of page ``page``."""
    return wiring.Signature(
        {"en": Out(1), "row": Out(range(config.rows)), "page": Out(PAGE_BITS), "bits": Out(64)}
    )


def act_write(config: DeviceConfig) -> wiring.Signature:
    """Write of ``lanes`` int8 operands; ``addr`` counts units of ``lanes`` elements."""
    return wiring.Signature(
        {
            "en": Out(1),
            "addr": Out(range(config.act_groups * GROUP // config.lanes)),
            "data": Out(8 * config.lanes),
        }
    )


def shift_write(config: DeviceConfig) -> wiring.Signature:
    """Write of a group's left shift (0 to 15) beside its operands."""
    return wiring.Signature({"en": Out(1), "group": Out(range(config.act_groups)), "shift": Out(4)})


def scale_write() -> wiring.Signature:
    """Write of a row scale ``mant * 2**exp``, mant in [2**15, 2**16)."""
    return wiring.Signature(
        {"en": Out(1), "index": Out(SCALE_BITS), "mant": Out(16), "exp": Out(signed(8))}
    )


def rope_write() -> wiring.Signature:
    """Write of the (cos, sin) of one pair index of the row's position, Q1.14."""
    return wiring.Signature(
        {"en": Out(1), "pair": Out(7), "cos": Out(signed(16)), "sin": Out(signed(16))}
    )


def vm_write() -> wiring.Signature:
    """Element write to a row's vector memory, ACT format (int32, 14 fraction bits)."""
    return wiring.Signature({"en": Out(1), "addr": Out(VM_ADDR_BITS), "data": Out(signed(32))})


def vm_read() -> wiring.Signature:
    """Element read from a row's vector memory; ``data`` follows ``en`` by one cycle."""
    return wiring.Signature({"en": Out(1), "addr": Out(VM_ADDR_BITS), "data": In(signed(32))})


def score() -> data.StructLayout:
    """One attention logit of a row: ``y`` in ACT format (log2 units) before clamping to 18 bits.

    Order: pages ascending, then query heads ``g``, then tokens. ``vs`` is the token's V scale
    (sf8). ``last`` marks the last token of the page for this head, ``done`` the last of all.
    """
    return data.StructLayout(
        {
            "y": signed(32),
            "g": 5,
            "page": PAGE_BITS,
            "token": SLOT_BITS,
            "vs": 8,
            "last": 1,
            "done": 1,
        }
    )


def logit() -> data.StructLayout:
    """One output channel of the head for a row, ACT format in log2 units; channels ascend."""
    return data.StructLayout({"y": signed(32), "channel": TOKEN_BITS, "first": 1, "last": 1})


def kv_command() -> data.StructLayout:
    """MM tells the merge unit to pass the pages of (layer, head) of one kind (`isa.KvKind`)."""
    return data.StructLayout({"kind": 1, "layer": LOOP0_BITS, "head": HEAD_BITS})


def kv_tail_write(config: DeviceConfig) -> wiring.Signature:
    """Write of ``lanes`` int8 K or V elements of one head of the row's own token.

    ``addr`` counts units of ``lanes`` elements from KV head 0 (heads are padded to 64 elements
    times head_groups); ``scale_en`` writes ``scale`` (sf8) of ``head``.
    """
    return wiring.Signature(
        {
            "en": Out(1),
            "addr": Out(16),
            "data": Out(8 * config.lanes),
            "scale_en": Out(1),
            "head": Out(HEAD_BITS),
            "scale": Out(8),
        }
    )


def child_result(config: DeviceConfig) -> stream.Signature:
    """Children found by the head, to the tree unit: rows ascending, ranks ascending per row.

    ``channel`` is the head's output channel (mapped to a token id on the way), ``logprob`` the
    edge log-probability in 1/256 log2 units (at most 0).
    """
    return stream.Signature(
        data.StructLayout(
            {
                "row": range(config.rows),
                "rank": range(config.topk),
                "channel": TOKEN_BITS,
                "logprob": signed(16),
                "last": 1,
            }
        )
    )
