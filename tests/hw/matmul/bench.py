"""Small helpers for unit tests in Amaranth's simulator."""

from amaranth.sim import Simulator


def simulate(dut, bench):
    """Run `bench(ctx)` on a clocked design."""
    sim = Simulator(dut)
    sim.add_clock(1e-6)
    sim.add_testbench(bench)
    sim.run()


def wide_ints(rng, bits, count):
    """Signed numbers of every magnitude up to `bits`, extremes of the symmetric range included."""
    limit = (1 << (bits - 1)) - 1
    values = [0, 1, -1, limit, -limit]
    while len(values) < count:
        size = rng.randint(1, bits - 1)
        values.append(rng.choice([-1, 1]) * rng.getrandbits(size))
    rng.shuffle(values)
    return values
