"""CRC-32C of large blocks with numpy: many streams side by side, then joined."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from dfvg_hw.messages.line import crc32c

__all__ = ["block_crc"]

Words = NDArray[np.uint32]

_ONES = 0xFFFFFFFF
_STREAMS = 4096
_SMALL = 4096  # bytes; below, the plain loop is faster


def _advance(state: int, data: bytes) -> int:
    """Return the CRC register after `data`; linear in the register if `data` is all zeros."""
    return crc32c(data, state ^ _ONES) ^ _ONES


@cache
def _word_tables() -> NDArray[np.uint32]:
    """Register after 4 zero bytes, by the value of each of its own bytes: shape (4, 256)."""
    return _tables(np.array([_advance(1 << i, bytes(4)) for i in range(32)], np.uint32))


def _tables(columns: Words) -> NDArray[np.uint32]:
    """Tables of a linear map given by the images of the 32 bits."""
    tables = np.zeros((4, 256), np.uint32)
    for byte in range(4):
        for bit in range(8):
            low = 1 << bit
            tables[byte, low : 2 * low] = tables[byte, :low] ^ columns[8 * byte + bit]
    return tables


def _apply(tables: NDArray[np.uint32], words: Words) -> Words:
    result = tables[0][words & 0xFF]
    for byte in range(1, 4):
        result = result ^ tables[byte][(words >> np.uint32(8 * byte)) & np.uint32(0xFF)]
    return result


@cache
def _zeros(size: int) -> NDArray[np.uint32]:
    """Tables that advance a register over `size` zero bytes, a power of two from 4."""
    if size == 4:
        return _word_tables()
    half = _zeros(size // 2)
    bits = np.uint32(1) << np.arange(32, dtype=np.uint32)
    return _tables(_apply(half, _apply(half, bits)))


def block_crc(data: NDArray[np.uint8]) -> int:
    """Return `crc32c` of the bytes."""
    size = len(data)
    if size < _SMALL:
        return crc32c(data.tobytes())
    # Zeros in front leave a register of 0 alone; what the initial ones become is added at the end.
    words = max(1, 1 << (-(-size // (4 * _STREAMS)) - 1).bit_length())
    padded = np.zeros(4 * words * _STREAMS, np.uint8)
    padded[-size:] = data
    streams = padded.view("<u4").astype(np.uint32).reshape(_STREAMS, words)
    state = np.zeros(_STREAMS, np.uint32)
    step = _word_tables()
    for column in np.ascontiguousarray(streams.T):
        state = _apply(step, state ^ column)
    span = 4 * words
    while len(state) > 1:
        state = _apply(_zeros(span), state[0::2]) ^ state[1::2]
        span *= 2
    # The initial ones, carried over all bytes: first the odd ones, then powers of two.
    whole = size // 4 * 4
    ones = np.array([_advance(_ONES, bytes(size - whole))], np.uint32)
    unit = 4
    while unit <= whole:
        if whole & unit:
            ones = _apply(_zeros(unit), ones)
        unit *= 2
    return int(state[0] ^ ones[0]) ^ _ONES
