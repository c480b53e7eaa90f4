"""One AXI4 port to device memory for the core, the token table and the bulk copy."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from dfvg_hw.config import DeviceConfig

from .axi import axi4, axi4_read, axi4_write

__all__ = ["MemoryShare"]

CORE, TABLE = 0, 1


class MemoryShare(wiring.Component):
    """Reads of the core (ID 0) go before those of the token table (ID 1); writes have one owner.

    No registers in the way: *latency* 0. *Reset*: only together with the memory.

    Parameters
    ----------
    config : DeviceConfig

    Members
    -------
    core : In(`axi4`), table : In(`axi4_read`), load : In(`axi4_write`)
    load_owns : In(1)
        Writes are `load`'s; changes only while no write is under way.
    axi : Out(`axi4`)
    """

    def __init__(self, config: DeviceConfig) -> None:
        shape = {"addr_bits": config.addr_bits, "data_bits": 8 * config.bus_bytes}
        super().__init__(
            {
                "core": In(axi4(**shape)),
                "table": In(axi4_read(**shape)),
                "load": In(axi4_write(**shape)),
                "load_owns": In(1),
                "axi": Out(axi4(**shape)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Return the hardware."""
        m = Module()
        axi, core, table = self.axi, self.core, self.table
        # An address once offered must stay until it is taken.
        held, choice = Signal(), Signal()
        m.d.comb += choice.eq(table.arvalid & (held | ~core.arvalid))
        m.d.sync += held.eq(choice & ~axi.arready)
        for name in ("addr", "len", "size", "burst", "cache", "prot", "valid"):
            ours = getattr(axi, f"ar{name}")
            parts = [getattr(port, f"ar{name}") for port in (table, core)]
            m.d.comb += ours.eq(Mux(choice, *parts))
        m.d.comb += [
            axi.arid.eq(Mux(choice, TABLE, CORE)),
            core.arready.eq(axi.arready & ~choice),
            table.arready.eq(axi.arready & choice),
            axi.rready.eq(Mux(axi.rid[0], table.rready, core.rready)),
        ]
        for number, port in ((CORE, core), (TABLE, table)):
            m.d.comb += [
                port.rvalid.eq(axi.rvalid & (axi.rid[0] == number)),
                port.rdata.eq(axi.rdata),
                port.rresp.eq(axi.rresp),
                port.rlast.eq(axi.rlast),
            ]
        self._build_writes(m)
        return m

    def _build_writes(self, m: Module) -> None:
        axi, core, load, owns = self.axi, self.core, self.load, self.load_owns
        for name, member in load.signature.members.items():
            ours, parts = getattr(axi, name), (getattr(load, name), getattr(core, name))
            if member.flow == In:  # from the manager
                m.d.comb += ours.eq(Mux(owns, *parts))
            elif name in ("awready", "wready", "bvalid"):
                m.d.comb += [parts[0].eq(ours & owns), parts[1].eq(ours & ~owns)]
            else:
                m.d.comb += [part.eq(ours) for part in parts]
