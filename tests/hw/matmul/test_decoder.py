"""The decoder: counts, strides and addresses of commands."""

import random

import pytest

from dfvg_hw.isa import Dest, Instruction, Op, OutOp
from dfvg_hw.matmul.decoder import Decoder
from tests.cocotb.configs import config_of
from tests.hw.matmul.bench import simulate


def expected(config, instruction, i1):
    f, words = instruction, config.group_words
    if f.op == Op.SYNC:
        return {"wait": f.wait, "signal": f.signal, "nothing": 1}
    paged = f.out in (OutOp.SCORE, OutOp.PV)
    items = {OutOp.SCORE: 64, OutOp.PV: 64 * f.groups}.get(f.out, config.bus_bytes // 2)
    result = {
        "wait": f.wait,
        "signal": f.signal,
        "nothing": 0,
        "paged": paged,
        "out": f.out,
        "words": (1 if f.out == OutOp.PV else f.groups) * words - 1,
        "items": items - 1,
        "act": (f.act + i1 * f.act1) * words,
        "scale": (f.scale + i1 * f.scale1) % 256,
        "pre": f.pre,
        "sbase": f.sbase,
        "vm": f.vm + i1 * f.vm1,
    }
    if paged:
        per_head = f.groups if f.out == OutOp.SCORE else config.seq_pages
        return result | {"heads": f.gqa - 1, "act_head": per_head * words}
    return result | {"heads": 0, "blocks": f.blocks - 1}


@pytest.mark.parametrize("name", ["tiny", "odd", "sim"])
def test_commands_follow_from_instructions(name, seed):
    config, rng = config_of(name), random.Random(seed)
    dut = Decoder(config)

    def draw():
        if rng.random() < 0.15:
            return Instruction(Op.SYNC, dest=Dest.MM, wait=rng.getrandbits(1), signal=1), 0
        out = rng.choice(list(OutOp))
        paged = out in (OutOp.SCORE, OutOp.PV)
        return Instruction(
            Op.MM, out=out, wait=rng.getrandbits(1), signal=rng.getrandbits(1),
            blocks=rng.randint(1, 65535), groups=rng.randint(1, 3 if paged else 16),
            act=rng.randrange(4), act1=rng.randrange(3), scale=rng.randrange(256),
            scale1=rng.randrange(32), gqa=rng.randint(1, 4), pre=rng.randrange(32),
            sbase=rng.randint(-128, 127), vm=rng.randrange(1000), vm1=rng.randrange(4096),
        ), rng.randrange(4)  # fmt: skip

    async def bench(ctx):
        waiting, done = [], 0
        offered = None
        while done < 300:
            assert ctx.get(dut.busy) == bool(waiting)
            if offered is None and rng.random() < 0.7:
                offered = (*draw(), rng.getrandbits(16))
                instruction, i1, i0 = offered
                ctx.set(dut.i.payload.code, int.from_bytes(instruction.encode(), "little"))
                ctx.set(dut.i.payload.i0, i0)
                ctx.set(dut.i.payload.i1, i1)
            ctx.set(dut.i.valid, offered is not None)
            ready = rng.random() < 0.5
            ctx.set(dut.o.ready, ready)
            if ctx.get(dut.o.valid) and ready:
                instruction, i1, i0 = waiting.pop(0)
                done += 1
                got = dut.o.payload
                wanted = expected(config, instruction, i1) | {"layer": i0, "head": i1}
                assert {key: ctx.get(got[key]) for key in wanted} == wanted
            accepted = offered is not None and ctx.get(dut.i.ready)
            if accepted:
                waiting.append(offered)
                offered = None
            await ctx.tick()

    simulate(dut, bench)
