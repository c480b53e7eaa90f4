"""Random register traffic against a dictionary."""

import random

from amaranth.sim import Simulator

from dfvg_hw.pcie.registers import RegisterFile
from dfvg_hw.registers import REGISTERS, Access
from tests.hw.pcie.buses import lite_read, lite_write


def mask(entry, *kinds):
    return sum(
        ((1 << f.width) - 1) << f.offset for f in entry.fields if not kinds or f.access in kinds
    )


def run(bench):
    dut = RegisterFile()
    sim = Simulator(dut)
    sim.add_clock(1e-6)

    async def whole(ctx):
        await bench(ctx, dut)

    sim.add_testbench(whole)
    sim.run()


def test_written_fields_read_back_and_others_do_not(seed):
    rng = random.Random(seed)
    model = {entry.address: 0 for entry in REGISTERS}
    for entry in REGISTERS:
        for field in entry.fields:
            if field.access is Access.RW:
                model[entry.address] |= field.init << field.offset

    async def bench(ctx, dut):
        entries = {entry.address: entry for entry in REGISTERS}
        for _ in range(400):
            address = rng.choice([*entries, 0x3C, 0xFFC])
            if rng.random() < 0.5:
                value, strobes = rng.getrandbits(32), rng.choice([15, 15, 15, 1, 8, 0, 6])
                split = rng.choice([0, 0, 2, -2])
                assert await lite_write(ctx, dut.bus, address, value, strobes, split) == 0
                if address in entries:
                    bits = sum(0xFF << 8 * i for i in range(4) if strobes >> i & 1)
                    bits &= mask(entries[address], Access.RW)
                    model[address] = model[address] & ~bits | value & bits
            else:
                found = await lite_read(ctx, dut.bus, address, rng.choice([0, 0, 3]))
                assert found == model.get(address, 0), hex(address)

    run(bench)


def test_writing_a_register_is_announced_and_triggers_pulse(seed):
    async def bench(ctx, dut):
        pulses = []
        await ctx.tick()  # nothing is accepted in the cycle after reset

        async def write(address, value):
            ctx.set(dut.bus.awaddr, address)
            ctx.set(dut.bus.wdata, value)
            ctx.set(dut.bus.wstrb, 15)
            ctx.set(dut.bus.bready, 1)
            ctx.set(dut.bus.awvalid, 1)
            ctx.set(dut.bus.wvalid, 1)
            for _ in range(4):
                await ctx.tick()
                ctx.set(dut.bus.awvalid, 0)
                ctx.set(dut.bus.wvalid, 0)
                pulses.append(
                    (ctx.get(dut.strobe.control.soft_reset), ctx.get(dut.strobe.error.read),
                     ctx.get(dut.written.pass_grant), ctx.get(dut.data))
                )  # fmt: skip

        await write(0x018, 2)  # control.soft_reset
        await write(0x020, 1)  # error.read
        await write(0x030, 77)  # pass_grant
        assert [p[0] for p in pulses] == [1, 0, 0, 0] + [0] * 8
        assert [p[1] for p in pulses] == [0] * 4 + [1, 0, 0, 0] + [0] * 4
        assert [p[2] for p in pulses] == [0] * 8 + [1, 0, 0, 0]
        assert pulses[8][3] == 77

    run(bench)


def test_reading_the_low_half_latches_the_high_half():
    async def bench(ctx, dut):
        low, high = dut.status.cycles_lo, dut.status.cycles_hi
        ctx.set(low, 0xFFFFFFFF)
        ctx.set(high, 5)
        assert await lite_read(ctx, dut.bus, 0x080) == 0xFFFFFFFF
        ctx.set(low, 0)
        ctx.set(high, 6)
        assert await lite_read(ctx, dut.bus, 0x084) == 5
        assert await lite_read(ctx, dut.bus, 0x080) == 0
        assert await lite_read(ctx, dut.bus, 0x084) == 6

    run(bench)
