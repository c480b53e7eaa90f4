"""Small designs that the simulation tools are tested on."""

from amaranth import Module, ResetSignal, Signal, signed
from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

ITEM = data.StructLayout({"acc": signed(12), "last": 1})


class Fault(enum.Enum, shape=4):
    """What `FaultyQueue` does wrong."""

    NONE = 0
    VALID_FALLS = 1
    PAYLOAD_CHANGES = 2
    VALID_IN_RESET = 3
    CORRUPTS = 4
    LOSES = 5
    DUPLICATES = 6
    STUCK = 7
    IGNORES_VALID = 8


class FaultyQueue(wiring.Component):
    """A stream queue that breaks one rule, chosen at run time.

    Members
    -------
    i, o : stream of `ITEM`
    fault : In(4)
        A `Fault`.
    """

    i: In(stream.Signature(ITEM))
    o: Out(stream.Signature(ITEM))
    fault: In(4)

    def elaborate(self, platform):
        m = Module()
        m.submodules.fifo = fifo = SyncFIFOBuffered(width=ITEM.size, depth=5)
        pushed = Signal(8)
        popped = Signal(8)
        flip = Signal()
        again = Signal()
        push = Signal()
        m.d.sync += flip.eq(~flip)
        m.d.comb += [
            self.i.ready.eq(fifo.w_rdy & ~((self.fault == Fault.STUCK) & (pushed >= 10))),
            push.eq(self.i.ready & (self.i.valid | (self.fault == Fault.IGNORES_VALID))),
            fifo.w_en.eq(push & ~((self.fault == Fault.LOSES) & (pushed % 7 == 6))),
            fifo.w_data.eq(
                self.i.payload.as_value() ^ ((self.fault == Fault.CORRUPTS) & (pushed == 5))
            ),
            self.o.valid.eq(fifo.r_rdy & ~((self.fault == Fault.VALID_FALLS) & flip)),
            self.o.payload.eq(fifo.r_data ^ ((self.fault == Fault.PAYLOAD_CHANGES) & flip)),
            again.eq((self.fault == Fault.DUPLICATES) & (popped == 6)),
            fifo.r_en.eq(self.o.valid & self.o.ready & ~again),
        ]
        with m.If((self.fault == Fault.VALID_IN_RESET) & ResetSignal()):
            m.d.comb += self.o.valid.eq(1)
        with m.If(push):
            m.d.sync += pushed.eq(pushed + 1)
        with m.If(self.o.valid & self.o.ready):
            m.d.sync += popped.eq(popped + 1)
        return m


class Edges(wiring.Component):
    """A register, a function of it and a function of the input.

    Members
    -------
    d : In(8)
    q : Out(8)
        `d` at the last edge.
    not_q, sum : Out(8)
        Combinational: ~q, and q + d.
    """

    d: In(8)
    q: Out(8)
    not_q: Out(8)
    sum: Out(8)

    def elaborate(self, platform):
        m = Module()
        m.d.sync += self.q.eq(self.d)
        m.d.comb += [self.not_q.eq(~self.q), self.sum.eq(self.q + self.d)]
        return m


class MacRow(wiring.Component):
    """Products of `lanes` int8 pairs, summed and accumulated; the weight word hops on.

    Members
    -------
    w_i, w_o : In, Out(8 * lanes)
    a : In(8 * lanes)
    acc : Out(signed(32))
    """

    def __init__(self, lanes):
        self._lanes = lanes
        width = 8 * lanes
        super().__init__(
            {"w_i": In(width), "w_o": Out(width), "a": In(width), "acc": Out(signed(32))}
        )

    def elaborate(self, platform):
        m = Module()
        pairs = data.ArrayLayout(signed(8), self._lanes)
        w, a = data.View(pairs, self.w_i), data.View(pairs, self.a)
        level = []
        for lane in range(self._lanes):
            product = Signal(signed(16), name=f"product_{lane}")
            m.d.sync += product.eq(w[lane] * a[lane])
            level.append(product)
        depth = 0
        while len(level) > 1:
            sums = []
            for index in range(0, len(level), 2):
                total = Signal(signed(len(level[0]) + 1), name=f"sum_{depth}_{index}")
                m.d.comb += total.eq(level[index] + level[index + 1])
                sums.append(total)
            level, depth = sums, depth + 1
        m.d.sync += [self.w_o.eq(self.w_i), self.acc.eq(self.acc + level[0])]
        return m


class MacArray(wiring.Component):
    """`rows` of `MacRow`, chained by their weight words.

    Members
    -------
    w, a : In(8 * lanes)
    acc : Out(array of rows signed(32))
    """

    def __init__(self, rows=8, lanes=64):
        self._rows, self._lanes = rows, lanes
        super().__init__(
            {"w": In(8 * lanes), "a": In(8 * lanes), "acc": Out(data.ArrayLayout(signed(32), rows))}
        )

    def elaborate(self, platform):
        m = Module()
        word = self.w
        for index in range(self._rows):
            m.submodules[f"row_{index}"] = row = MacRow(self._lanes)
            m.d.comb += [row.w_i.eq(word), row.a.eq(self.a), self.acc[index].eq(row.acc)]
            word = row.w_o
        return m
