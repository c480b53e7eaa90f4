"""cocotb side: what a bench can see below the top."""

import cocotb

from sim.cocotb.bench import Bench


@cocotb.test(timeout_time=100, timeout_unit="us")
async def only_the_inner_signal_that_was_asked_for_is_visible(dut):
    dut.i__valid.value = 0
    await Bench(dut).start()
    assert int(dut.fifo.r_rdy.value) == 0
    assert getattr(dut.fifo, "r_en", None) is None
