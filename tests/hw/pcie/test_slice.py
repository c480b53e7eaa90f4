"""The register slice between a manager and memory."""

import random

from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import Out
from amaranth.sim import Simulator

from dfvg_hw.memory.axi import axi4, join
from dfvg_hw.memory.slice import AxiSlice
from dfvg_hw.pcie.host_read import HOST_ADDR_BITS, HostReader
from dfvg_hw.pcie.ring_writer import RingWriter
from tests.hw.pcie.buses import HostMemory


class Through(wiring.Component):
    """A reader and a writer behind one slice."""

    def __init__(self):
        self.reader, self.writer = HostReader(16, 256), RingWriter(16)
        super().__init__({"axi": Out(axi4(addr_bits=HOST_ADDR_BITS, data_bits=128))})

    def elaborate(self, platform):
        m = Module()
        m.submodules.reader, m.submodules.writer = self.reader, self.writer
        m.submodules.slice = cut = AxiSlice(addr_bits=HOST_ADDR_BITS, data_bits=128)
        join(m, cut.i, self.reader.axi, self.writer.axi)
        wiring.connect(m, cut.o, wiring.flipped(self.axi))
        return m


def test_reads_and_writes_pass_unchanged(seed):
    rng = random.Random(seed)
    dut = Through()
    memory = HostMemory(dut.axi, 1 << 14, rng, pause=0.3)
    memory.data[4096:] = rng.randbytes(len(memory.data) - 4096)
    messages = [rng.getrandbits(448) for _ in range(20)]
    got = bytearray()

    async def bench(ctx):
        ctx.set(dut.writer.lines, 64)
        ctx.set(dut.reader.request.payload.address, 4096)
        ctx.set(dut.reader.request.payload.words, 400)
        ctx.set(dut.reader.request.valid, 1)
        sent = 0
        for _ in range(3000):
            ctx.set(dut.writer.i.valid, sent < len(messages))
            if sent < len(messages):
                ctx.set(dut.writer.i.payload, messages[sent])
            ready = rng.random() < 0.6
            ctx.set(dut.reader.o.ready, ready)
            memory.step(ctx)
            if ready and ctx.get(dut.reader.o.valid):
                got.extend(ctx.get(dut.reader.o.payload.data).to_bytes(16, "little"))
            taken = ctx.get(dut.reader.request.ready)
            sent += sent < len(messages) and ctx.get(dut.writer.i.ready)
            await ctx.tick()
            if taken:
                ctx.set(dut.reader.request.valid, 0)
        assert ctx.get(dut.writer.produced) == len(messages)

    sim = Simulator(dut)
    sim.add_clock(1e-6)
    sim.add_testbench(bench)
    sim.run()
    assert bytes(got) == memory.data[4096 : 4096 + 6400]
    for number, message in enumerate(messages):
        line = memory.data[64 * number : 64 * number + 56]
        assert int.from_bytes(line, "little") == message
