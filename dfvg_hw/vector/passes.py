"""A pass: the walk over a stretch of vector memory that QUANT and EMBED are made of."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Signal
from amaranth.lib import data, enum, wiring
from amaranth.lib.wiring import In, Out

from ..common.arith import bits_for_range
from ..config import GROUP, DeviceConfig
from ..interfaces import ACT_GROUP_BITS

__all__ = ["DEST_BITS", "STAGES", "PassIssuer", "PassKind", "beat", "group_beats"]

DEST_BITS = 16
"""Address of ``lanes`` int8 results, in activation memory or a KV tail."""
STAGES = 6
"""Pipeline stages of `RowLanes`; stage 0 holds the word just read."""


class PassKind(enum.Enum, shape=2):
    """What `RowLanes` does with the words of a pass."""

    MAX = 0
    """Find the largest magnitude of every group and of the scope."""
    QUANT = 1
    """Quantise with the scales found, and sum squares."""
    EMBED = 2
    """Multiply by the embedding row's scale and write back."""


def group_beats(config: DeviceConfig) -> int:
    """Words of vector memory in one 64-element group."""
    return GROUP // config.lanes


def beat(config: DeviceConfig) -> data.StructLayout:
    """One word on its way through every row's lanes.

    ``first``, ``last`` mark a group's edges, ``start`` the first word of the scope. ``group``
    counts groups in the scope, ``addr`` words of vector memory; ``dest`` and ``dest_group`` are
    the result's place and the group's number there.
    """
    return data.StructLayout(
        {
            "valid": 1,
            "kind": PassKind,
            "start": 1,
            "first": 1,
            "last": 1,
            "group": bits_for_range(config.vm_depth // GROUP),
            "addr": bits_for_range(config.vm_depth // config.lanes),
            "dest": DEST_BITS,
            "dest_group": ACT_GROUP_BITS,
        }
    )


class PassIssuer(wiring.Component):
    """Walks over ``groups`` groups, one word of ``lanes`` elements of every row per cycle.

    *Latency* ``groups * 64 / lanes + STAGES + 1`` cycles from ``start`` to ``done``, plus the
    cycles in which the gain of the next word hasn't been loaded yet.

    Parameters
    ----------
    config : DeviceConfig

    Members
    -------
    start : In(1)
        Begin a pass; only while none runs. The inputs below must stay until ``done``.
    kind : In(PassKind), groups : In(10), offset : In
        Kind, length in groups, and word of the scope's first element counted from the
        instruction's first operand.
    vm_word, dest, dest_group : In
        Where the instruction's first operand lies and its first result goes.
    gain : In(1), gain_words : In
        Wait for gains: words loaded so far.
    issue : Out(beat)
        The word that is being read in this cycle (combinational); gain word ``gain_addr``.
    stages : Out(array of STAGES beats)
        The words in flight; stage 0's data are at the memories' outputs.
    done : Out(1)
        Pulse: every stage has emptied.
    """

    def __init__(self, config: DeviceConfig) -> None:
        self._config = config
        words = bits_for_range(config.vm_depth // config.lanes)
        super().__init__(
            {
                "start": In(1),
                "kind": In(PassKind),
                "groups": In(10),
                "offset": In(words),
                "vm_word": In(words),
                "dest": In(DEST_BITS),
                "dest_group": In(ACT_GROUP_BITS),
                "gain": In(1),
                "gain_words": In(words + 1),
                "gain_addr": Out(words),
                "issue": Out(beat(config)),
                "stages": Out(beat(config)).array(STAGES),
                "done": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Return the hardware."""
        m = Module()
        beats = group_beats(self._config)
        low = beats.bit_length() - 1
        word = Signal(10 + low)  # in the scope
        active = Signal()
        running = Signal()
        last_word = Signal(10 + low)
        place = Signal.like(self.gain_addr)
        issue = self.issue
        m.d.comb += [
            last_word.eq((self.groups << low) - 1),
            place.eq(self.offset + word),
            self.gain_addr.eq(place),
            issue.valid.eq(active & (~self.gain | (place < self.gain_words))),
            issue.kind.eq(self.kind),
            issue.start.eq(word == 0),
            issue.first.eq(word[:low] == 0),
            issue.last.eq(word[:low].all()),
            issue.group.eq(word[low:]),
            issue.addr.eq(self.vm_word + place),
            issue.dest.eq(self.dest + place),
            issue.dest_group.eq(self.dest_group + (place >> low)),
        ]
        with m.If(self.start):
            m.d.sync += [active.eq(1), running.eq(1), word.eq(0)]
        with m.Elif(issue.valid):
            m.d.sync += word.eq(word + 1)
            with m.If(word == last_word):
                m.d.sync += active.eq(0)
        self._build_stages(m, active, running)
        return m

    def _build_stages(self, m: Module, active: Signal, running: Signal) -> None:
        """Shift the words along; finished when all stages are empty."""
        # Payloads move with `valid` only, so an idle unit toggles nothing.
        previous = self.issue
        for index in range(STAGES):
            stage = self.stages[index]
            m.d.sync += stage.valid.eq(previous.valid)
            with m.If(previous.valid):
                m.d.sync += stage.eq(previous)
            previous = stage
        in_flight = Signal()
        m.d.comb += in_flight.eq(active | ~self._none_valid(m))
        m.d.comb += self.done.eq(running & ~in_flight)
        with m.If(self.done):
            m.d.sync += running.eq(0)

    def _none_valid(self, m: Module) -> Signal:
        empty = Signal()
        flags = [self.stages[index].valid for index in range(STAGES)]
        any_valid = flags[0]
        for flag in flags[1:]:
            any_valid = any_valid | flag
        m.d.comb += empty.eq(~any_valid)
        return empty
