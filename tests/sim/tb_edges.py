"""cocotb side of the edge-semantics test: every bench relies on what is written here."""

import cocotb
from cocotb.triggers import ReadOnly, RisingEdge

from sim.cocotb.bench import Bench


@cocotb.test(timeout_time=100, timeout_unit="us")
async def reads_at_an_edge_are_from_before_it(dut):
    bench = Bench(dut)
    dut.d.value = 0
    await bench.start()
    for step in range(1, 20):
        before = int(dut.q.value)
        dut.d.value = step
        assert int(dut.q.value) == before, "a write has no effect within its own step"
        await RisingEdge(dut.clk)
        assert int(dut.q.value) == before
        assert int(dut.not_q.value) == ~before & 0xFF
        assert int(dut.sum.value) == (before + step) & 0xFF, "inputs written before are settled"
        await ReadOnly()
        assert int(dut.q.value) == step
        assert int(dut.not_q.value) == ~step & 0xFF
        await RisingEdge(dut.clk)
        assert int(dut.q.value) == step


@cocotb.test(timeout_time=100, timeout_unit="us")
async def a_write_at_an_edge_counts_at_the_next(dut):
    bench = Bench(dut)
    dut.d.value = 0
    await bench.start()
    await RisingEdge(dut.clk)
    dut.d.value = 77
    await ReadOnly()
    assert int(dut.q.value) == 0, "this edge still took the old input"
    assert int(dut.sum.value) == 77, "combinational outputs follow in the same step"
    await RisingEdge(dut.clk)
    await ReadOnly()
    assert int(dut.q.value) == 77


@cocotb.test(timeout_time=100, timeout_unit="us")
async def only_ports_are_visible(dut):
    names = {handle._name for handle in dut}
    assert names == {"clk", "rst", "d", "q", "not_q", "sum"}, names
