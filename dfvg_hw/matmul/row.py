"""One row of the array: a chain of cells, the group shift and the accumulators."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Const, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from ..common.arith import bits_for_range
from ..common.memory import Ram
from ..config import LANES_PER_CELL, DeviceConfig
from ..interfaces import act_write, shift_write
from ..isa import OutOp
from .cell import PARTIAL, Cell
from .control import ACC, act_words, beat, result_control, result_tag

__all__ = ["ArrayRow"]


class ArrayRow(wiring.Component):
    """Dot products of the passing weight words with this row's activations, accumulated.

        acc = (0 if first else acc) + (dot(word, act[addr]) << shift[addr // group_words])
        sum = acc + (pv[entry] if PV and not first_page else 0);  PV: pv[entry] = sum

    The byte slices of a word reach cell c one cycle later per cell, so that partial sums hop from
    cell to cell. Everything hops on to the next row one cycle later.

    *Latency* with the slice of cell 0 at ``weight_i`` in cycle 0: ``beat_i``, ``control_i`` and
    ``tag_i`` belong in cycle ``beat_delay(cells)``, the sum is at ``sum`` two cycles after them.
    *Throughput* one word per cycle; nothing stalls. Reset forgets beats on their way; memories keep
    their contents. Writes to operands and shifts take effect two cycles later and must not meet a
    read (token counters order them).

    Parameters
    ----------
    config : DeviceConfig

    Members
    -------
    weight_i, weight_o : In, Out(8 * bus_bytes)
        A word, slice c skewed by c cycles.
    addr_i, addr_o : In, Out
        Activation word for cell 0.
    beat_i, beat_o : In, Out(`beat`)
    control_i, control_o : In, Out(`result_control`)
        ``rows`` is shifted on the way, bit 0 is always the row at hand.
    tag_i, tag_o : In, Out(`result_tag`)
    act_w, shift_w : In(`act_write`, `shift_write`)
    valid : Out(1)
        A result for this row; ``sum`` (48 bits signed), ``control`` and ``tag`` go with it.
    marker : Out(1)
        The results of a signalling instruction are complete; independent of the row mask.
    """

    def __init__(self, config: DeviceConfig) -> None:
        self._config = config
        control, tag = result_control(config), result_tag(config)
        width, addr = 8 * config.bus_bytes, bits_for_range(act_words(config))
        super().__init__(
            {
                "weight_i": In(width),
                "weight_o": Out(width),
                "addr_i": In(addr),
                "addr_o": Out(addr),
                "beat_i": In(beat()),
                "beat_o": Out(beat()),
                "control_i": In(control),
                "control_o": Out(control),
                "tag_i": In(tag),
                "tag_o": Out(tag),
                "act_w": In(act_write(config)),
                "shift_w": In(shift_write(config)),
                "valid": Out(1),
                "marker": Out(1),
                "sum": Out(ACC),
                "control": Out(control),
                "tag": Out(tag),
            }
        )

    @staticmethod
    def beat_delay(cells: int) -> int:
        """Return the cycles by which ``beat_i`` follows the word's first slice at ``weight_i``."""
        return cells + 3

    def elaborate(self, platform: Any) -> Module:
        """Return the hardware."""
        m = Module()
        partial, addr = self._build_cells(m)
        scaled = self._build_shift(m, partial, addr)
        self._build_sums(m, scaled)
        return m

    def _build_cells(self, m: Module) -> tuple[Signal, Signal]:
        """Chain the cells; return the row's dot product and the last cell's address."""
        config, slice_bits = self._config, 8 * LANES_PER_CELL
        write = self._build_act_write(m)
        addr, partial = self.addr_i, Const(0, PARTIAL)
        for index in range(config.cells):
            cell = Cell(act_words(config), config.lanes)
            m.submodules[f"cell_{index}"] = cell
            part = slice(index * slice_bits, (index + 1) * slice_bits)
            m.d.comb += [
                cell.weight_i.eq(self.weight_i[part]),
                self.weight_o[part].eq(cell.weight_o),
                cell.addr_i.eq(addr),
                cell.partial_i.eq(partial),
                cell.w_en.eq(write["en"][index]),
                cell.w_addr.eq(write["addr"]),
                cell.w_data.eq(write["data"].replicate(LANES_PER_CELL // config.lanes)),
            ]
            addr, partial = cell.addr_o, cell.partial_o
            if index == 0:
                m.d.comb += self.addr_o.eq(cell.addr_o)
        return partial, addr

    def _build_act_write(self, m: Module) -> dict[str, Any]:
        """Register the operand write and decode which part of which cell it hits."""
        config = self._config
        parts = LANES_PER_CELL // config.lanes
        unit_bits = (config.bus_bytes // config.lanes).bit_length() - 1
        addr = Signal(range(act_words(config)), name="w_addr", reset_less=True)
        data = Signal(8 * config.lanes, name="w_data", reset_less=True)
        en = [Signal(parts, name=f"w_en_{index}") for index in range(config.cells)]
        with m.If(self.act_w.en):
            m.d.sync += [addr.eq(self.act_w.addr >> unit_bits), data.eq(self.act_w.data)]
        for index in range(config.cells):
            for part in range(parts):
                hit = self.act_w.addr[:unit_bits] == index * parts + part
                m.d.sync += en[index][part].eq(self.act_w.en & hit)
        return {"en": en, "addr": addr, "data": data}

    def _build_shift(self, m: Module, partial: Signal, addr: Signal) -> Signal:
        """Shift each partial sum left by its group's shift; return the registered result."""
        config = self._config
        m.submodules.shifts = shifts = Ram(4, config.act_groups, disjoint=True)
        word_bits = config.group_words.bit_length() - 1
        at_shift = Signal.like(addr, name="shift_addr", reset_less=True)
        scaled = Signal(ACC, reset_less=True)
        m.d.sync += [at_shift.eq(addr), scaled.eq(partial << shifts.r_data)]
        m.d.comb += [
            shifts.r_en.eq(1),
            shifts.r_addr.eq(at_shift >> word_bits),
            shifts.w_en.eq(self.shift_w.en),
            shifts.w_addr.eq(self.shift_w.group),
            shifts.w_data.eq(self.shift_w.shift),
        ]
        return scaled

    def _build_sums(self, m: Module, scaled: Signal) -> None:
        """Accumulate words to items, and items of a PV instruction over pages."""
        config = self._config
        # An entry is read again a whole page of items after it was written.
        m.submodules.pages = pages = Ram(ACC.width, config.acc_depth, disjoint=True)
        acc = Signal(ACC, reset_less=True)
        hop_beat = Signal(beat(), name="hop_beat")
        hop_control = Signal(result_control(config), name="hop_control", reset_less=True)
        hop_tag = Signal(result_tag(config), name="hop_tag", reset_less=True)
        mine = Signal(reset_less=True)
        m.d.sync += [
            hop_beat.eq(self.beat_i),
            hop_control.eq(self.control_i),
            hop_control.rows.eq(self.control_i.rows >> 1),
            hop_tag.eq(self.tag_i),
            mine.eq(self.control_i.rows[0]),
        ]
        with m.If(self.beat_i.valid):
            m.d.sync += acc.eq(Mux(self.beat_i.first, 0, acc) + scaled)

        finish, paged, store = Signal(), Signal(), Signal()
        write = hop_tag.write
        m.d.comb += [
            finish.eq(hop_beat.valid & hop_beat.last),
            paged.eq(hop_control.out == OutOp.PV),
            pages.r_en.eq(self.beat_i.valid & self.beat_i.last),
            pages.r_addr.eq(self.tag_i.write.entry),
            pages.w_en.eq(store),
            pages.w_addr.eq(self.tag.write.entry),
            pages.w_data.eq(self.sum),
            self.beat_o.eq(hop_beat),
            self.control_o.eq(hop_control),
            self.tag_o.eq(hop_tag),
        ]
        m.d.sync += [
            self.valid.eq(finish & mine & (~paged | write.last_page)),
            self.marker.eq(finish & hop_control.marker),
            store.eq(finish & mine & paged),
        ]
        carried = Signal(ACC)
        m.d.comb += carried.eq(Mux(paged & ~write.first_page, pages.r_data.as_signed(), 0))
        with m.If(finish):
            m.d.sync += [
                self.sum.eq(acc + carried),
                self.control.eq(hop_control),
                self.tag.eq(hop_tag),
            ]
        return
