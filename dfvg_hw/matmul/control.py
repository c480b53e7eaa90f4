"""What travels with the words and results of the array, and the latencies that align them."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import Out

from ..common.arith import bits_for_range
from ..config import DeviceConfig
from ..interfaces import (
    HEAD_BITS,
    LOOP0_BITS,
    PAGE_BITS,
    SCALE_BITS,
    SLOT_BITS,
    TOKEN_BITS,
    VM_ADDR_BITS,
)
from ..numerics.formats import ACC_BITS

__all__ = [
    "ACC",
    "CELL_LATENCY",
    "HEAD_GROUPS_MAX",
    "LANE_LATENCY",
    "OUTPUT_LATENCY",
    "REQUANT_LATENCY",
    "SUM_LATENCY",
    "act_words",
    "array_latency",
    "beat",
    "command",
    "drain_latency",
    "result_control",
    "result_tag",
    "valid_only",
]

CELL_LATENCY = 3
"""Cycles from a weight slice at a cell's input to the partial sum at its output."""
SUM_LATENCY = 3
"""Cycles from the last cell's partial sum to the finished sum: group shift, accumulate, PV memory.
"""
REQUANT_LATENCY = 7
"""Cycles from a finished sum to the requantised value."""
OUTPUT_LATENCY = 7
"""Cycles from a requantised value to its write into vector memory."""
LANE_LATENCY = REQUANT_LATENCY + OUTPUT_LATENCY


HEAD_GROUPS_MAX = 3
"""64-element groups of the largest attention head: the width of the ``head_groups`` register."""
ACC = signed(ACC_BITS)
"""A sum over the inner dimension."""


def act_words(config: DeviceConfig) -> int:
    """Return the words of a row's activation memory."""
    return config.act_groups * config.group_words


def array_latency(config: DeviceConfig) -> int:
    """Return the cycles from a word at row 0 to the finished sum of row 0."""
    return config.cells - 1 + CELL_LATENCY + SUM_LATENCY


def drain_latency(config: DeviceConfig) -> int:
    """Return the cycles from an accepted word to the last row's write because of it.

    One cycle to issue it, the array, one per hop from row to row, and the output lane.
    """
    return 1 + array_latency(config) + config.rows - 1 + LANE_LATENCY


def valid_only(shape: Any) -> wiring.Signature:
    """Return a stream without back-pressure: ``payload`` counts in the cycles of ``valid``."""
    return wiring.Signature({"valid": Out(1), "payload": Out(shape)})


def command(config: DeviceConfig) -> data.StructLayout:
    """A decoded MM instruction: indices resolved, counts less one, addresses in words.

    ``nothing`` marks an instruction without words (SYNC), ``paged`` SCORE and PV.
    """
    return data.StructLayout(
        {
            "wait": 1,
            "signal": 1,
            "nothing": 1,
            "paged": 1,
            "out": 3,
            "words": bits_for_range(1024 * config.group_words),  # of an item, less one
            "items": bits_for_range(64 * (HEAD_GROUPS_MAX + 1)),  # of a block or page, less one
            "blocks": 16,  # less one
            "heads": 5,  # query heads per KV head, less one
            "act": bits_for_range(act_words(config)),
            "act_head": bits_for_range(act_words(config)),  # added per query head
            "scale": SCALE_BITS,
            "pre": 5,
            "sbase": signed(8),
            "vm": VM_ADDR_BITS,
            "layer": LOOP0_BITS,
            "head": HEAD_BITS,
        }
    )


def beat() -> data.StructLayout:
    """Accumulator control that meets a word's sum: start afresh, finish an item."""
    return data.StructLayout({"valid": 1, "first": 1, "last": 1})


def result_control(config: DeviceConfig) -> data.StructLayout:
    """How to requantise a finished sum and where it goes; counts with the last word of an item.

    ``column`` is the fraction of the column's mantissa (2048 + column), ``shift`` is sbase less
    the column's exponent, ``rows`` masks the rows that take part (bit 0 is the row at hand),
    ``marker`` tells that all results of a signalling instruction came before.
    """
    return data.StructLayout(
        {
            "out": 3,
            "pre": 5,
            "shift": signed(9),
            "column": 11,
            "scale": SCALE_BITS,
            "marker": 1,
            "rows": config.rows,
        }
    )


def result_tag(config: DeviceConfig) -> data.UnionLayout:
    """Destination of a result, by output operation.

    ``write`` (STORE, ADD, ROPE, SWIGLU, PV): element of vector memory; ``odd`` and ``pair`` for
    operations on channel pairs; ``entry`` of the accumulator memory, ``first_page`` and
    ``last_page`` for PV. ``score``, ``logit``: as in `interfaces`.
    """
    write = data.StructLayout(
        {
            "vm": VM_ADDR_BITS,
            "odd": 1,
            "pair": 7,
            "entry": bits_for_range(config.acc_depth),
            "first_page": 1,
            "last_page": 1,
        }
    )
    score = data.StructLayout(
        {"g": 5, "page": PAGE_BITS, "token": SLOT_BITS, "vs": 8, "last": 1, "done": 1}
    )
    logit = data.StructLayout({"channel": TOKEN_BITS, "first": 1, "last": 1})
    return data.UnionLayout({"write": write, "score": score, "logit": logit})
