"""A small AXI4 manager that breaks one rule, chosen at run time."""

from amaranth import Module, Mux, Signal
from amaranth.lib import enum, wiring
from amaranth.lib.wiring import In, Out

from dfvg_hw.memory.axi import Burst, axi4

BEATS = 4


class Fault(enum.Enum, shape=4):
    """What `FaultyManager` does wrong."""

    NONE = 0
    CROSSES = 1
    ADDRESS_CHANGES = 2
    VALID_FALLS = 3
    SPARSE = 4
    EARLY_LAST = 5
    NOT_READY = 6
    WRAP = 7
    UNALIGNED = 8


class FaultyManager(wiring.Component):
    """Writes and reads bursts of 4 words of 8 bytes at ascending addresses, for ever.

    Members
    -------
    axi : Out(`axi4`)
    fault : In(4)
    """

    axi: Out(axi4(addr_bits=16, data_bits=64))
    fault: In(4)

    def elaborate(self, platform):
        m = Module()
        axi, fault = self.axi, self.fault
        flip = Signal()
        write = Signal(12, init=64)
        read = Signal(12, init=64)
        beat = Signal(range(BEATS))
        m.d.sync += flip.eq(~flip)
        odd = Signal(16)
        m.d.comb += odd.eq(Mux(fault == Fault.CROSSES, 4096 - 16, 0))
        for name, base in (("aw", write), ("ar", read)):
            channel = {n: getattr(axi, f"{name}{n}") for n in ("addr", "valid", "ready")}
            m.d.comb += [
                getattr(axi, f"{name}len").eq(BEATS - 1),
                getattr(axi, f"{name}size").eq(3),
                getattr(axi, f"{name}burst").eq(Mux(fault == Fault.WRAP, Burst.WRAP, Burst.INCR)),
                channel["addr"].eq(
                    (base << 5)
                    + odd
                    + Mux(fault == Fault.ADDRESS_CHANGES, flip << 5, 0)
                    + Mux(fault == Fault.UNALIGNED, 4, 0)
                ),
                channel["valid"].eq(~(flip & (fault == Fault.VALID_FALLS))),
            ]
            with m.If(channel["valid"] & channel["ready"]):
                m.d.sync += base.eq(Mux(base == 1000, 64, base + 1))
        m.d.comb += [
            axi.wvalid.eq(1),
            axi.wdata.eq(write),
            axi.wstrb.eq(Mux((fault == Fault.SPARSE) & (beat == 2), 0xFD, 0xFF)),
            axi.wlast.eq(beat == Mux(fault == Fault.EARLY_LAST, BEATS - 2, BEATS - 1)),
            axi.bready.eq(1),
            axi.rready.eq(~((fault == Fault.NOT_READY) & flip)),
        ]
        with m.If(axi.wready):
            m.d.sync += beat.eq(beat + 1)
        # Data that changes with the address would be another fault.
        m.d.comb += axi.wdata.eq(beat)
        return m
