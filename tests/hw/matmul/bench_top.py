"""The matrix engine with one more port, so that a bench needs one read per quiet cycle."""

from amaranth.hdl import Cat, Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from dfvg_hw.matmul import MatmulEngine

__all__ = ["EVENT_PORTS", "EngineBench"]

EVENT_PORTS = ("vm_w", "vm_r", "scores", "logits")


class EngineBench(wiring.Component):
    """`MatmulEngine`, and `events`: one bit per row and output port, in that order.

    `fault` breaks the results of row 0 on purpose: bit 0 flips a bit of every vm write, bit 1
    hides every write to an odd element, bit 2 gives the token at once.
    """

    def __init__(self, config):
        self._engine, self._rows = MatmulEngine(config), config.rows
        members = dict(self._engine.signature.members)
        events = Out(config.rows * len(EVENT_PORTS))
        super().__init__({**members, "events": events, "fault": In(3)})

    def elaborate(self, platform):
        m = Module()
        m.submodules.engine = engine = self._engine
        for name, member in engine.signature.members.items():
            ours, theirs = getattr(self, name), getattr(engine, name)
            if name == "vm_w":
                continue
            if member.is_signature:
                pairs = zip(ours, theirs, strict=True) if member.dimensions else [(ours, theirs)]
                for a, b in pairs:
                    connect(m, flipped(a), b)
            elif member.dimensions:
                m.d.comb += [b.eq(a) for a, b in zip(ours, theirs, strict=True)]
            elif name != "token":
                m.d.comb += ours.eq(theirs) if member.flow == Out else theirs.eq(ours)
        for row, (ours, theirs) in enumerate(zip(self.vm_w, engine.vm_w, strict=True)):
            broken = self.fault if row == 0 else 0
            hidden = (broken >> 1) & theirs.addr[0]
            m.d.comb += [
                ours.en.eq(theirs.en & ~hidden),
                ours.addr.eq(theirs.addr),
                ours.data.eq(theirs.data ^ (broken & 1)),
            ]
        early = self.fault[2] & self.vec_take
        m.d.comb += self.token.eq((engine.token & ~self.fault[2]) | early)
        enables = []
        for row in range(self._rows):
            enables += [self.vm_w[row].en, engine.vm_r[row].en]
            enables += [engine.scores[row].valid, engine.logits[row].valid]
        m.d.comb += self.events.eq(Cat(enables))
        return m
