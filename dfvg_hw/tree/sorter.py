"""The best candidates of one scan, kept in order while they are found."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Array, Module, Mux, Signal, Value, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from ..common.arith import bits_for_range
from ..config import DeviceConfig
from ..interfaces import POSITION_BITS, SEQ_BITS, TOKEN_BITS
from .bits import count_ones

__all__ = ["SCORE_BITS", "CandidateSorter", "candidate"]

SCORE_BITS = 24
"""Path scores: M + 1 edges of at least -2^15 each, M at most 128."""


def candidate(config: DeviceConfig) -> data.StructLayout:
    """A child that may be expanded: path score, and where and what it is."""
    return data.StructLayout(
        {
            "score": signed(SCORE_BITS),
            "parent": bits_for_range(config.m_slots),
            "rank": bits_for_range(config.topk),
            "seq": SEQ_BITS,
            "token": TOKEN_BITS,
            "position": POSITION_BITS,
        }
    )


class CandidateSorter(wiring.Component):
    """Sorted list of the best candidates offered, with a limit for each sequence and one for all.

    Candidates come by ascending parent slot and, within a parent, by ascending rank; equal scores
    stay in that order. One that isn't accepted would not have been taken by choosing the best
    candidate again and again either, and no later rank of its parent would.

    A new candidate goes behind all that are as good. If its sequence is at its limit, the last
    candidate of that sequence leaves; else if the list is full, the last of all does.

    *Latency*: `accepted` is combinational, the list changes with the next cycle. *Throughput*: one
    candidate per cycle. Reset and `clear` empty it.

    Parameters
    ----------
    config : DeviceConfig

    Members
    -------
    clear : In(1)
    limit : In
        Entries in all, 0 to rows.
    allowance : In
        Entries of the offered candidate's sequence, at most rows.
    offer : In(`candidate`)
    en : In(1)
        Take the offer if it's accepted.
    accepted : Out(1)
    count : Out
        Entries held.
    full : Out(1), worst : Out
        There are `limit` entries, and the last one's score.
    entries : Out(array of rows `candidate`)
        Best first.
    """

    def __init__(self, config: DeviceConfig) -> None:
        self._config = config
        length = bits_for_range(config.rows + 1)
        super().__init__(
            {
                "clear": In(1),
                "limit": In(length),
                "allowance": In(length),
                "offer": In(candidate(config)),
                "en": In(1),
                "accepted": Out(1),
                "count": Out(length),
                "full": Out(1),
                "worst": Out(signed(SCORE_BITS)),
                "entries": Out(data.ArrayLayout(candidate(config), config.rows)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Return the hardware."""
        m = Module()
        rows = self._config.rows
        used, same, better = Signal(rows), Signal(rows), Signal(rows)
        for i in range(rows):
            entry = self.entries[i]
            m.d.comb += [
                used[i].eq(i < self.count),
                same[i].eq(used[i] & (entry.seq == self.offer.seq)),
                better[i].eq(used[i] & (entry.score >= self.offer.score)),
            ]
        leave, grows = self._build_leaving(m, used, same)
        # Better entries are a prefix of the list, so position p is theirs iff better[p].
        at_leave = Signal()
        m.d.comb += [
            at_leave.eq(Mux(leave < rows, (better >> leave)[0], 1)),
            self.accepted.eq(~at_leave & (self.limit != 0) & (self.allowance != 0)),
        ]
        scores = Array(self.entries[i].score for i in range(rows))
        m.d.comb += [self.full.eq(self.count == self.limit), self.worst.eq(scores[self.count - 1])]
        with m.If(self.clear):
            m.d.sync += self.count.eq(0)
        with m.Elif(self.en & self.accepted):
            m.d.sync += self.count.eq(self.count + grows)
            for i in range(rows):
                if i == 0:
                    with m.If(~better[0]):
                        m.d.sync += self.entries[0].eq(self.offer)
                else:
                    with m.If(~better[i] & (leave >= i)):
                        moved = self.entries[i - 1]
                        m.d.sync += self.entries[i].eq(Mux(better[i - 1], self.offer, moved))
        return m

    def _build_leaving(self, m: Module, used: Signal, same: Signal) -> tuple[Value, Value]:
        """Index of the entry that would leave (or the free place behind the last), and if free."""
        rows = self._config.rows
        leave = Signal(bits_for_range(rows + 1))
        grows, at_limit = Signal(), Signal()
        last_same = Signal(bits_for_range(rows))
        for i in range(rows):
            with m.If(same[i]):
                m.d.comb += last_same.eq(i)
        m.d.comb += at_limit.eq(count_ones(m, same, "own") >= self.allowance)
        with m.If(at_limit):
            m.d.comb += leave.eq(last_same)
        with m.Elif(self.count >= self.limit):
            m.d.comb += leave.eq(self.count - 1)
        with m.Else():
            m.d.comb += [leave.eq(self.count), grows.eq(1)]
        return leave, grows
