"""The vector engine with one more port, so that a bench needs one read per idle cycle."""

from amaranth.hdl import Cat, Module
from amaranth.lib import wiring
from amaranth.lib.wiring import Out, connect, flipped

from dfvg_hw.vector.engine import VectorEngine

__all__ = ["WRITE_PORTS", "EngineBench"]

WRITE_PORTS = ("act_w", "shift_w", "scale_w", "rope_w", "k_tail", "v_tail")


class EngineBench(wiring.Component):
    """`VectorEngine`, and `writes`: one bit per row and write port, in that order."""

    def __init__(self, config):
        self._engine = VectorEngine(config)
        self._rows = config.rows
        members = dict(self._engine.signature.members)
        super().__init__({**members, "writes": Out(config.rows * len(WRITE_PORTS))})

    def elaborate(self, platform):
        m = Module()
        m.submodules.engine = engine = self._engine
        for name, member in engine.signature.members.items():
            ours, theirs = getattr(self, name), getattr(engine, name)
            if member.is_signature:
                pairs = zip(ours, theirs, strict=True) if member.dimensions else [(ours, theirs)]
                for a, b in pairs:
                    connect(m, flipped(a), b)
            elif member.dimensions:
                m.d.comb += [b.eq(a) for a, b in zip(ours, theirs, strict=True)]
            else:
                m.d.comb += ours.eq(theirs) if member.flow == Out else theirs.eq(ours)
        enables = []
        for row in range(self._rows):
            for name in WRITE_PORTS:
                port = getattr(engine, name)[row]
                enables.append(port.en | port.scale_en if "tail" in name else port.en)
        m.d.comb += self.writes.eq(Cat(enables))
        return m
