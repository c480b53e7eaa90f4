"""When memory words reach the engines: one in-order stream through the prefetch FIFO."""

from __future__ import annotations

from collections import deque

from dfvg_hw.config import DeviceConfig

__all__ = ["WordSupply"]

REQUEST_LATENCY = 6
"""Cycles from room in the FIFO to a word of it, besides the memory's own latency."""
_STEPS = 8  # pieces of the FIFO that are tracked: finer costs time and changes nothing visible


class WordSupply:
    """Delivery of words under a bandwidth, a latency and the room in the FIFO.

    Memory delivers on average ``1 - stall_percent/100`` words per cycle, at most `prefetch_words`
    ahead of consumption. Random stalls are modelled by their mean: the FIFO evens them out.

    Parameters
    ----------
    config : DeviceConfig
    start : float
        Cycle of the first request.
    """

    def __init__(self, config: DeviceConfig, start: float = 0.0) -> None:
        self._period = 100 / (100 - config.memory.stall_percent)
        self._latency = config.memory.latency_cycles + REQUEST_LATENCY
        self._room = config.prefetch_words
        self._step = max(1, config.prefetch_words // _STEPS)
        self._arrived = start + self._latency  # when the last word so far has come
        self._taken: deque[tuple[int, float]] = deque()  # (words consumed, when)
        self._freed = 0.0  # when the word that leaves room for the next one was consumed
        self.words = 0

    def take(self, count: int, start: float, cycles_per_word: float = 1.0) -> float:
        """Consume `count` words from cycle `start` on; return the cycle after the last."""
        now = start
        left = count
        while left:
            piece = min(left, self._step)
            left -= piece
            now = max(now + piece * cycles_per_word, self._deliver(piece))
            self._taken.append((self.words, now))
        return now

    def _deliver(self, count: int) -> float:
        """Cycle in which the next `count` words have all come."""
        self.words += count
        while self._taken and self._taken[0][0] <= self.words - self._room:
            self._freed = self._taken.popleft()[1]
        begin = max(self._arrived, self._freed + self._latency if self._freed else 0.0)
        self._arrived = begin + count * self._period
        return self._arrived
