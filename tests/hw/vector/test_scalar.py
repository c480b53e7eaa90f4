"""The scalar unit's three operations against the golden arithmetic, at every edge."""

import random

import numpy as np

from dfvg_hw.numerics import attention, ops
from dfvg_hw.vector.scalar import SCALAR_LATENCY, ScalarOp, ScalarUnit
from tests.cocotb.configs import config_of
from tests.hw.matmul.bench import simulate

CONFIG = config_of("tiny")


def edges(bits):
    """Values around every power of two, where rounding up carries."""
    values = {0, 1, 7, 8, 9}
    for n in range(1, bits):
        values |= {(1 << n) - 1, 1 << n, (1 << n) + 1, (1 << n) + (1 << n >> 1)}
        # The last value that keeps its exponent and the first that rounds up to the next one.
        for kept in (4, 16):
            if n > kept:
                top = ((1 << kept) - 1) << (n - kept)
                values |= {top, top + 1}
    return sorted(v for v in values if v < 1 << bits)


def run(op, operands, kv=0, eps=0):
    """Results for a list of operand dicts, `CONFIG.rows` at a time."""
    dut = ScalarUnit(CONFIG)
    rows, results = CONFIG.rows, []

    async def bench(ctx):
        ctx.set(dut.op, op)
        ctx.set(dut.kv, kv)
        ctx.set(dut.eps, eps)
        for start in range(0, len(operands), rows):
            chunk = operands[start : start + rows]
            for row, operand in enumerate(chunk):
                ctx.set(dut.operands[row], {name: int(value) for name, value in operand.items()})
            ctx.set(dut.start, 1)
            await ctx.tick()
            ctx.set(dut.start, 0)
            for cycle in range(rows + SCALAR_LATENCY + 5):
                await ctx.tick()
                if ctx.get(dut.result.valid):
                    row = ctx.get(dut.result.row)
                    assert row == len(results) % rows
                    assert ctx.get(dut.done) == (row == rows - 1)
                    names = ("mant", "exp", "rec", "n", "sf8")
                    results.append({n: ctx.get(getattr(dut.result, n)) for n in names})
                if ctx.get(dut.done):
                    assert cycle + 1 == rows + SCALAR_LATENCY
                    break
            else:
                raise AssertionError("not done in time")

    simulate(dut, bench)
    return results[: len(operands)]


def test_scale_matches(seed):
    rng = random.Random(seed)
    values = edges(31) + [(1 << 31) - 1] + [rng.getrandbits(rng.randint(1, 31)) for _ in range(40)]
    results = run(ScalarOp.SCALE, [{"m_scope": v} for v in values])
    mh, e = ops.normalize16(np.array(values))
    rec = ops.recip(mh)
    for index, result in enumerate(results):
        assert (result["mant"], result["exp"]) == (mh[index], e[index]), values[index]
        assert result["rec"] == rec[index], values[index]
        assert result["n"] == max(1, values[index].bit_length()), values[index]


def test_kv_scale_matches(seed):
    rng = random.Random(seed)
    values = edges(31) + [rng.getrandbits(rng.randint(1, 31)) for _ in range(40)]
    results = run(ScalarOp.SCALE, [{"m_scope": v} for v in values], kv=1)
    code, mh, e = ops.sf8_round_up(np.array(values))
    for index, result in enumerate(results):
        got = (result["sf8"], result["mant"], result["exp"])
        assert got == (code[index], mh[index], e[index]), values[index]
        assert result["rec"] == ops.recip(mh)[index], values[index]


def test_rms_matches(seed):
    rng = random.Random(seed)
    for eps in (0, 1, 12345 << 20, (1 << 40) - 1):
        operands, wanted = [], []
        for _ in range(40):
            v = np.array([[rng.getrandbits(rng.randint(1, 31)) for _ in range(rng.randint(1, 9))]])
            v *= rng.choice([1, -1, 0])
            if rng.random() < 0.2:
                v[:] = (1 << 31) - 1
            sh = max(int(np.abs(v).max()).bit_length() - 15, 0)
            mh, e = ops.normalize16(np.array([rng.choice([0, 1, 65535, (1 << 31) - 1])]))
            squares = int(((v >> sh) ** 2).sum())
            operands.append({"squares": squares, "sh": sh, "mh": mh[0], "e": e[0]})
            mantissa, exponent = ops.rms_scale(v, mh, e, eps)
            wanted.append((int(mantissa[0]), int(exponent[0])))
        got = [(r["mant"], r["exp"]) for r in run(ScalarOp.RMS, operands, eps=eps)]
        assert got == wanted


def test_largest_sum_of_squares_fits():
    """2**14 elements of the largest magnitude, and the largest epsilon."""
    v = np.full((1, 1 << 14), (1 << 15) - 1)
    squares = int((v**2).sum())
    assert squares < 1 << 44
    mh, e = ops.normalize16(np.array([1 << 20]))
    [result] = run(ScalarOp.RMS, [{"squares": squares, "sh": 0, "mh": mh[0], "e": e[0]}], eps=1)
    mantissa, exponent = ops.rms_scale(v, mh, e, 1)
    assert (result["mant"], result["exp"]) == (mantissa[0], exponent[0])


def test_probability_scale_matches(seed):
    rng = random.Random(seed)
    totals = [v for v in edges(33) if v >= 1 << 15]
    totals += [rng.randint(1 << 15, 1 << 33) for _ in range(40)]
    operands = [{"total": t, "gap": rng.randint(768, 9000)} for t in totals]
    results = run(ScalarOp.PROB, operands)
    for operand, result in zip(operands, results, strict=True):
        scale = attention._probability_scale(np.array(operand["total"]), np.array(operand["gap"]))
        assert (result["mant"], result["exp"]) == (scale.mantissa, scale.exponent), operand
