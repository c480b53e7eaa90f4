"""The state of the core, as it is exposed and as the watchdog keeps it."""

from __future__ import annotations

from amaranth.lib import data

from dfvg_hw.common.arith import bits_for_range
from dfvg_hw.config import DeviceConfig
from dfvg_hw.interfaces import LOOP0_BITS, LOOP1_BITS

from .fetch import QUEUE_DEPTH
from .tokens import TOKEN_LIMIT

__all__ = ["core_errors", "core_state"]


def core_state(config: DeviceConfig) -> data.StructLayout:
    """Where a pass stands.

    ``pc``, ``i0``, ``i1``: of the fetch unit, which runs ahead. ``*_level``: instructions queued.
    ``to_mm``, ``to_vec``: tokens not taken. ``credits``: words that may be requested; ``level``:
    words in the prefetch FIFO, for ``head``; ``writes``: bursts not answered. The rest are busy
    bits.
    """
    queue = range(QUEUE_DEPTH + 1)
    words = range(config.prefetch_words + 1)
    return data.StructLayout(
        {
            "pc": bits_for_range(config.prog_depth),
            "i0": LOOP0_BITS,
            "i1": LOOP1_BITS,
            "load_level": queue,
            "mm_level": queue,
            "vec_level": queue,
            "to_mm": range(TOKEN_LIMIT + 1),
            "to_vec": range(TOKEN_LIMIT + 1),
            "credits": words,
            "level": words,
            "writes": range(config.memory.outstanding + 1),
            "mm_wants": 1,
            "vec_wants": 1,
            "fetching": 1,
            "load": 1,
            "mm": 1,
            "vec": 1,
            "merge": 1,
            "reading": 1,
            "writing": 1,
        }
    )


def core_errors() -> data.StructLayout:
    """Sticky errors.

    ``read``, ``write``: an error response of the memory. ``watchdog``: a pass stood still.
    ``program``: an instruction or a token that can't be right, or two engines in one memory.
    """
    return data.StructLayout({"read": 1, "write": 1, "watchdog": 1, "program": 1})
