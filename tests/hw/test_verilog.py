"""Case statements of the written Verilog are complete, and mean what they did."""

import pytest
from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from dfvg_hw.verilog import complete_cases, to_verilog


class Chooser(wiring.Component):
    """A case without a default inside one with a default inside one without."""

    def __init__(self):
        super().__init__({"s": In(2), "t": In(2), "u": In(2), "q": Out(4)})

    def elaborate(self, platform):
        m = Module()
        held = Signal(4, init=5)
        m.d.comb += self.q.eq(held)
        with m.Switch(self.s):
            with m.Case(0):
                with m.Switch(self.t):
                    with m.Case(1, 2):
                        m.d.comb += self.q.eq(1)
                    with m.Default():
                        with m.Switch(self.u):
                            with m.Case(3):
                                m.d.comb += self.q.eq(2)
            with m.Case(1):
                m.d.sync += held.eq(self.t)
        return m


def test_each_case_has_one_default():
    text = to_verilog(Chooser(), "top")
    assert text.count("casez (") == text.count("endcase") == text.count("default:") > 2
    assert complete_cases(text) == text


def test_nothing_but_empty_defaults_is_added():
    from amaranth.back import verilog

    plain = verilog.convert(Chooser(), name="top", emit_src=False)
    kept = [line for line in to_verilog(Chooser(), "top").split("\n") if "default: ;" not in line]
    assert "\n".join(kept) == plain


def test_text_without_end_is_refused():
    with pytest.raises(ValueError, match="without an end"):
        complete_cases("casez (x)\n  1: y = 1;\n")
