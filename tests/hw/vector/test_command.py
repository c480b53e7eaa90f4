"""Decoding of the vector unit's instructions."""

import random

import pytest
from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from dfvg_hw.interfaces import issue
from dfvg_hw.isa import LAYOUTS, Instruction, Op
from dfvg_hw.vector.command import command, decode
from tests.cocotb.configs import config_of
from tests.hw.matmul.bench import simulate

CONFIG = config_of("tiny")


class Decode(wiring.Component):
    """Registered decoder."""

    issue: In(issue())
    cmd: Out(command(CONFIG))

    def elaborate(self, platform):
        m = Module()
        m.d.sync += self.cmd.eq(decode(m, CONFIG, self.issue))
        return m


@pytest.mark.parametrize("op", [Op.EMBED, Op.ROPE_TABLE, Op.QUANT, Op.SOFTMAX, Op.SYNC])
def test_every_field_arrives(op, seed):
    rng = random.Random(seed)
    dut = Decode()

    async def bench(ctx):
        for _ in range(50):
            fields = {}
            for field in LAYOUTS[op]:
                value = rng.getrandbits(field.width)
                sign = field.signed and value >> (field.width - 1)
                fields[field.name] = value - (1 << field.width) if sign else value
            if "vm" in fields:
                fields["vm"] = 64 * rng.randint(0, CONFIG.vm_depth // 64 - 1)
                fields.pop("vm1", None)
            i1 = rng.randint(0, 2)
            if op == Op.QUANT:
                fields |= {"vm": 128, "vm1": 64 * rng.randint(0, 5)}
            code = int.from_bytes(Instruction(op, **fields).encode(), "little")
            ctx.set(dut.issue, {"code": code, "i0": rng.getrandbits(16), "i1": i1})
            await ctx.tick()
            got = {name: ctx.get(getattr(dut.cmd, name)) for name, _ in command(CONFIG)}
            vm = fields.pop("vm", 0) + i1 * fields.pop("vm1", 0)
            fields.pop("dest", None)
            expected = dict.fromkeys(got, 0) | fields
            assert got == expected | {"op": int(op), "vm_word": vm // CONFIG.lanes}

    simulate(dut, bench)
