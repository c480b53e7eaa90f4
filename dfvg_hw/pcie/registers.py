"""The register file behind the AXI4-Lite port, generated from `dfvg_hw.registers`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from amaranth.hdl import Cat, Const, Module, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from dfvg_hw.memory.axi import axi4_lite
from dfvg_hw.registers import BAR0_BYTES, REGISTERS, Access, Register

__all__ = ["RegisterFile", "register_layout"]


def register_layout(kinds: Iterable[Access]) -> data.StructLayout:
    """Fields of the given kinds: ``layout.register``, or ``.register.field`` if it has several."""
    wanted = set(kinds)
    members: dict[str, Any] = {}
    for entry in REGISTERS:
        fields = {f.name: f.width for f in entry.fields if f.access in wanted}
        if fields:
            whole = [f.name for f in entry.fields] == ["value"]
            members[entry.name] = fields["value"] if whole else data.StructLayout(fields)
    return data.StructLayout(members)


def _pick(view: Any, entry: Register, name: str) -> Any:
    part = getattr(view, entry.name)
    return part if [f.name for f in entry.fields] == ["value"] else getattr(part, name)


class RegisterFile(wiring.Component):
    """All registers of BAR0.

    A read of the low half of a read-only 64-bit pair latches the high half. Addresses without a
    register read as 0 and ignore writes; every access is answered OKAY. Byte strobes are honoured.

    *Latency*: 1 cycle from address (and data) to the answer. *Throughput*: an access every 2
    cycles. Reset restores the initial values.

    Members
    -------
    bus : In(`axi4_lite`)
    values : Out
        Fields that software writes (rw).
    status : In
        Fields that the hardware drives (ro, w1c, live); see `register_layout`.
    strobe : Out
        w1p and w1c fields: a pulse for each bit written as 1.
    written : Out
        By register: a pulse in the cycle in which `values` holds what was written.
    data : Out(32)
        What was written, for live registers.
    """

    def __init__(self) -> None:
        names = {entry.name: 1 for entry in REGISTERS if _writable(entry)}
        super().__init__(
            {
                "bus": In(axi4_lite(addr_bits=BAR0_BYTES.bit_length() - 1)),
                "values": Out(register_layout([Access.RW])),
                "status": In(register_layout([Access.RO, Access.W1C, Access.LIVE])),
                "strobe": Out(register_layout([Access.W1P, Access.W1C])),
                "written": Out(data.StructLayout(names)),
                "data": Out(32),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Return the hardware."""
        m = Module()
        # Nothing may be accepted in the very cycles in which it would be forgotten.
        self._awake = Signal()
        m.d.sync += self._awake.eq(1)
        self._build_writes(m)
        self._build_reads(m)
        return m

    def _build_writes(self, m: Module) -> None:
        bus = self.bus
        go = Signal()
        mask = Signal(32)
        m.d.comb += [
            go.eq(bus.awvalid & bus.wvalid & ~bus.bvalid & self._awake),
            bus.awready.eq(go),
            bus.wready.eq(go),
            mask.eq(Cat(bit.replicate(8) for bit in bus.wstrb)),
        ]
        m.d.sync += [self.written.eq(0), self.strobe.eq(0)]
        with m.If(bus.bready):
            m.d.sync += bus.bvalid.eq(0)
        with m.If(go):
            m.d.sync += [bus.bvalid.eq(1), self.data.eq(bus.wdata)]
            with m.Switch(bus.awaddr[2:]):
                for entry in filter(_writable, REGISTERS):
                    with m.Case(entry.address >> 2):
                        m.d.sync += self.written[entry.name].eq(1)
                        self._write(m, entry, bus.wdata, mask)

    def _write(self, m: Module, entry: Register, word: Value, mask: Value) -> None:
        for field in entry.fields:
            part = slice(field.offset, field.offset + field.width)
            if field.access is Access.RW:
                value = _pick(self.values, entry, field.name)
                m.d.sync += value.eq((value & ~mask[part]) | (word[part] & mask[part]))
            elif field.access in (Access.W1P, Access.W1C):
                m.d.sync += _pick(self.strobe, entry, field.name).eq(word[part] & mask[part])

    def _build_reads(self, m: Module) -> None:
        bus = self.bus
        high = Signal(32)
        names = {entry.name for entry in REGISTERS}
        m.d.comb += bus.arready.eq(~bus.rvalid & self._awake)
        with m.If(bus.rready):
            m.d.sync += bus.rvalid.eq(0)
        with m.If(bus.arvalid & bus.arready):
            m.d.sync += [bus.rvalid.eq(1), bus.rdata.eq(0)]
            with m.Switch(bus.araddr[2:]):
                for entry in REGISTERS:
                    pair = f"{entry.name[:-3]}_hi"
                    only = all(field.access is Access.RO for field in entry.fields)
                    with m.Case(entry.address >> 2):
                        if only and entry.name.endswith("_hi"):
                            m.d.sync += bus.rdata.eq(high)
                            continue
                        m.d.sync += bus.rdata.eq(self._read(entry))
                        if only and entry.name.endswith("_lo") and pair in names:
                            m.d.sync += high.eq(getattr(self.status, pair))

    def _read(self, entry: Register) -> Value:
        parts: list[Value] = []
        at = 0
        for field in sorted(entry.fields, key=lambda item: item.offset):
            parts.append(_zeros(field.offset - at))
            if field.access is Access.W1P:
                parts.append(_zeros(field.width))
            else:
                source = self.values if field.access is Access.RW else self.status
                parts.append(Value.cast(_pick(source, entry, field.name)))
            at = field.offset + field.width
        return Cat(parts)


def _zeros(width: int) -> Value:
    return Const(0, width)


def _writable(entry: Register) -> bool:
    return any(field.access is not Access.RO for field in entry.fields)
