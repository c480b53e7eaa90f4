"""A design with the card's ports that breaks rules of AXI, to show that the harness notices."""

from amaranth.hdl import Module, Signal
from amaranth.lib import wiring

from dfvg_hw.top import DfvgTop

FAULTS = {
    1: "burst crosses a 4 KiB line",
    2: "address is not aligned to the word",
    3: "beat size is not the word",
    4: "burst type is not INCR",
    5: "write strobes are sparse",
    6: "WLAST is misplaced",
    7: "read address changed before it was accepted",
    8: "write address changed before it was accepted",
    9: "write beat changed before it was accepted",
}
"""What the harness must say, by the value written to register 0."""


class FaultyCard(wiring.Component):
    """Does one thing wrong on the memory port as soon as a register is written."""

    def __init__(self, config):
        self.size = config.bus_bytes
        super().__init__(DfvgTop(config).signature)

    def elaborate(self, platform):
        m = Module()
        bus, axi = self.registers, self.memory
        fault, step = Signal(8), Signal(8)
        full = (1 << self.size) - 1
        m.d.comb += [
            bus.awready.eq(bus.awvalid & bus.wvalid & ~bus.bvalid),
            bus.wready.eq(bus.awready),
            axi.rready.eq(1),
            axi.bready.eq(1),
            axi.arsize.eq(self.size.bit_length() - 1),
            axi.awsize.eq(self.size.bit_length() - 1),
            axi.arburst.eq(1),
            axi.awburst.eq(1),
            axi.wstrb.eq(full),
        ]
        with m.If(bus.bready):
            m.d.sync += bus.bvalid.eq(0)
        with m.If(bus.awready):
            m.d.sync += [bus.bvalid.eq(1), fault.eq(bus.wdata), step.eq(0)]
        with m.If(fault != 0):
            m.d.sync += step.eq(step + 1)
        start = (step > 0) & (step < 40)
        read, write = Signal(), Signal()
        m.d.comb += [axi.arvalid.eq(read & start), axi.awvalid.eq(write & start)]
        m.d.comb += [axi.wvalid.eq(write & start), axi.wlast.eq(1)]
        with m.Switch(fault):
            with m.Case(1):
                m.d.comb += [read.eq(1), axi.araddr.eq(4096 - self.size), axi.arlen.eq(1)]
            with m.Case(2):
                m.d.comb += [read.eq(1), axi.araddr.eq(1)]
            with m.Case(3):
                m.d.comb += [read.eq(1), axi.arsize.eq(1)]
            with m.Case(4):
                m.d.comb += [write.eq(1), axi.awburst.eq(0)]
            with m.Case(5):
                m.d.comb += [write.eq(1), axi.wstrb.eq(full >> 1)]
            with m.Case(6):
                m.d.comb += [write.eq(1), axi.awlen.eq(1)]
            with m.Case(7):
                m.d.comb += [read.eq(1), axi.araddr.eq(step << 8)]
            with m.Case(8):
                m.d.comb += [write.eq(1), axi.awaddr.eq(step << 8)]
            with m.Case(9):
                m.d.comb += [write.eq(1), axi.wdata.eq(step)]
        return m
