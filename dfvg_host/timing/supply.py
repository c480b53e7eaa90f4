"""When memory words reach the engines: one in-order stream through the prefetch FIFO."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from dfvg_hw.config import DeviceConfig
from dfvg_hw.memory.axi import burst_words

__all__ = ["REQUEST_LATENCY", "WordSupply"]

REQUEST_LATENCY = 5
"""Cycles from room in the FIFO to a word of it at an engine, besides the memory's own latency."""


@dataclass(frozen=True)
class _Consumed:
    """Words up to number `last`, consumed evenly between two times."""

    first: int
    last: int
    begin: float
    end: float

    def when(self, word: int) -> float:
        """Time at which word number `word` (from 1) had been consumed."""
        share = (word - self.first) / (self.last - self.first)
        return self.begin + share * (self.end - self.begin)


class WordSupply:
    """Delivery of words under a bandwidth, a latency and the room in the FIFO.

    Like the read manager: a burst is requested when the FIFO has room for all of it, and bursts
    arrive in order, on average ``1 - stall_percent/100`` words per cycle. Random stalls are
    modelled by their mean; the FIFO evens them out.

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
        self._burst = burst_words(config.bus_bytes, max(1, config.prefetch_words // 2))
        self._start = start
        self._history: deque[_Consumed] = deque()
        self._end = 0  # last word of the current burst
        self._arrived = 0.0  # when it comes
        self.words = 0

    def take(self, count: int, start: float, cycles_per_word: float = 1.0) -> float:
        """Consume `count` words from cycle `start` on; return the cycle after the last."""
        now, left = start, count
        while left:
            if self.words == self._end:
                self._next_burst()
            piece = min(left, self._end - self.words)
            left -= piece
            last = self.words + piece
            begin = now
            arrival = self._arrived - (self._end - last) * self._period
            now = max(now + piece * cycles_per_word, arrival)
            self._history.append(_Consumed(self.words, last, begin, now))
            self.words = last
        return now

    def _next_burst(self) -> None:
        """Request another burst: when the words that leave room for its last have gone."""
        self._end += self._burst
        request, gone = self._start, self._end - self._room
        while self._history and self._history[0].last < gone:
            self._history.popleft()
        if gone > 0:
            request = self._history[0].when(gone)
        begin = max(self._arrived, request + self._latency)
        self._arrived = begin + self._burst * self._period
