"""Puts the running pass's own K and V into the KV pages on their way to the array, and back.

The rows of a pass have their slots already. What memory holds at those slots is stale, so the unit
substitutes the rows' bytes in the stream and writes every changed run back: the array sees rows of
the same pass like any other token, and visibility alone decides who attends to whom. Nothing else
in the device writes KV.
"""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from dfvg_hw.config import GROUP, PAGE, DeviceConfig
from dfvg_hw.interfaces import (
    kv_command,
    kv_tail_write,
    model_registers,
    row_context,
    sequence_context,
    word,
)
from dfvg_hw.isa import KvKind
from dfvg_hw.memory.reader import ADDRESS_BITS, Target, tagged_word
from dfvg_hw.memory.writer import RUN_BITS, write_word

from .kv_tail import KvTail, tail_elements
from .page_walk import PageWalk

__all__ = ["MergeUnit"]

HEAD_UNITS = 2
"""64-byte units of the scales before K in a page: K scales, V scales."""


class MergeUnit(wiring.Component):
    """Substitutes, writes back, and lets everything else pass.

    A page of kind K is 64 K-scale bytes, 64 V-scale bytes, then 64 tokens of K, token-major; of
    kind V it is V, dim-major. For every valid row whose slot is in the page: its two scale bytes,
    its K words, or its byte of every dim. Written back, each as one run of full words: the scales
    of a page that got a row, each such row's K, the whole of a V page that got a row.

    *Latency* 2 cycles, *throughput* 1 word per cycle, less only where the write manager stops it.
    `Target.KV` words wait for the array's `command`, given when the tails are complete.
    *Back-pressure* stops everything; ``i.ready`` follows ``o.ready`` combinationally. Reset empties
    it; tails keep their contents.

    Parameters
    ----------
    config : DeviceConfig

    Members
    -------
    i : In(stream of `tagged_word`)
    o : Out(stream of word)
    command : In(stream of `kv_command`)
    k_tail, v_tail : In(`kv_tail_write`), per row
    rows : In(`row_context`), per row
    sequences : In(`sequence_context`), per sequence
    model : In(`model_registers`)
    write : Out(stream of `write_word`)
    idle : Out(1)
        No command and no word inside.
    """

    def __init__(self, config: DeviceConfig) -> None:
        self._config = config
        self._sub = (GROUP // config.bus_bytes).bit_length() - 1
        rows, seqs = config.rows, config.max_seqs
        super().__init__(
            {
                "i": In(stream.Signature(tagged_word(config))),
                "o": Out(stream.Signature(word(config))),
                "command": In(stream.Signature(kv_command())),
                "k_tail": In(kv_tail_write(config)).array(rows),
                "v_tail": In(kv_tail_write(config)).array(rows),
                "rows": In(row_context()).array(rows),
                "sequences": In(sequence_context(config)).array(seqs),
                "model": In(model_registers()),
                "write": Out(stream.Signature(write_word(config))),
                "idle": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Return the hardware."""
        m = Module()
        m.submodules.walk = walk = PageWalk(self._config)
        wiring.connect(m, wiring.flipped(self.command), walk.command)
        m.d.comb += walk.model.eq(self.model)
        for index in range(self._config.rows):
            m.d.comb += walk.rows[index].eq(self.rows[index])
        for index in range(self._config.max_seqs):
            m.d.comb += walk.sequences[index].eq(self.sequences[index])
        tails = []
        for index in range(self._config.rows):
            m.submodules[f"tail_{index}"] = tail = KvTail(self._config)
            wiring.connect(m, wiring.flipped(self.k_tail[index]), tail.k)
            wiring.connect(m, wiring.flipped(self.v_tail[index]), tail.v)
            tails.append(tail)
        move = Signal()  # stage 1 takes what stage 0 offers
        place = self._build_place(m, walk, move)
        self._build_tail_reads(m, walk.o.payload, place, tails, move)
        stage = self._build_stage(m, walk.o.payload, place, move)
        self._build_output(m, stage, tails, move)
        m.d.comb += self.idle.eq(walk.idle & ~stage["valid"] & ~self.o.valid & ~self.write.valid)
        return m

    def _build_place(self, m: Module, walk: PageWalk, move: Signal) -> dict[str, Signal]:
        """Stage 0: where in its page the word at the input stands."""
        step = walk.o.payload
        kv = Signal()
        place = {
            "valid": Signal(name="valid"),
            "kv": kv,
            "scales": Signal(init=1, name="scales"),  # K pages: in the scale words
            "inner": Signal(range(3 << self._sub), name="inner"),  # word of a token, or of a dim
            "outer": Signal(8, name="outer"),  # token, or dim
            "last_inner": Signal(name="last_inner"),
            "end": Signal(name="end"),  # last word of the page
        }
        key = Signal()
        token_words = Signal(range((3 << self._sub) + 1))
        last_outer = Signal(8)
        m.d.comb += [
            kv.eq(self.i.payload.target == Target.KV),
            place["valid"].eq(self.i.valid & (~kv | walk.o.valid)),
            self.i.ready.eq(move & (~kv | walk.o.valid)),
            key.eq((step.kind == KvKind.K) & ~place["scales"]),
            token_words.eq(Mux(key, self.model.head_groups << self._sub, 1 << self._sub)),
            place["last_inner"].eq(place["inner"] == token_words - 1),
        ]
        with m.If(step.kind == KvKind.V):
            m.d.comb += last_outer.eq((self.model.head_groups << 6) - 1)
        with m.Else():
            m.d.comb += last_outer.eq(Mux(key, PAGE - 1, HEAD_UNITS - 1))
        last = Signal()
        m.d.comb += [
            last.eq(place["last_inner"] & (place["outer"] == last_outer)),
            place["end"].eq(last & (key | (step.kind == KvKind.V))),
            walk.o.ready.eq(move & self.i.valid & kv & place["end"]),
        ]
        with m.If(move & place["valid"] & kv):
            m.d.sync += place["inner"].eq(Mux(place["last_inner"], 0, place["inner"] + 1))
            with m.If(place["last_inner"]):
                m.d.sync += place["outer"].eq(Mux(last, 0, place["outer"] + 1))
            with m.If(last):
                m.d.sync += place["scales"].eq((step.kind == KvKind.V) | ~place["scales"])
        place["key"] = key
        place["begin"] = Signal(name="begin")
        place["changed"] = Signal(name="changed")
        m.d.comb += [
            place["begin"].eq((place["inner"] == 0) & (place["outer"] == 0) & place["scales"]),
            place["changed"].eq(kv & step.match.any()),
        ]
        return place

    def _build_tail_reads(
        self, m: Module, step: Any, place: dict[str, Signal], tails: list[KvTail], move: Signal
    ) -> None:
        """Stage 0: start the reads that stage 1 needs; a memory holds its data while we wait."""
        config = self._config
        hits = Signal(config.rows)
        go = Signal()
        bits = Signal(range(tail_elements(config)))
        key_word = Signal(range(tail_elements(config) // config.bus_bytes))
        value = Signal()
        m.d.comb += [
            go.eq(move & place["valid"] & place["kv"]),
            value.eq(step.kind == KvKind.V),
            key_word.eq((step.tail << self._sub) + place["inner"]),
            bits.eq((step.tail << 6) + place["outer"]),
        ]
        for index, tail in enumerate(tails):
            token = self.rows[index].offset == place["outer"]
            m.d.comb += [
                hits[index].eq(step.match[index] & place["key"] & token),
                tail.k_en.eq(go & hits[index]),
                tail.k_addr.eq(key_word),
                tail.v_en.eq(go & step.match[index] & value),
                tail.v_addr.eq(bits),
                tail.scale_en.eq(go & step.match[index] & ~place["key"] & ~value),
                tail.scale_head.eq(step.head),
            ]
        place["hits"] = hits

    def _build_stage(
        self, m: Module, step: Any, place: dict[str, Signal], move: Signal
    ) -> dict[str, Signal]:
        """Stage 1: the word beside its tail data, and which bytes of it belong to a row.

        ``bytes``: some bytes change, to the value that ``scale`` names (0: K scales, 1: V scales,
        2: V). ``hits``: the whole word becomes a row's K.
        """
        run = data.StructLayout({"first": 1, "address": ADDRESS_BITS, "words": RUN_BITS})
        stage: dict[str, Any] = {
            "valid": Signal(name="stage_valid"),
            "data": Signal(word(self._config), name="stage_data", reset_less=True),
            "bytes": Signal(name="stage_bytes", reset_less=True),
            "scale": Signal(2, name="stage_scale", reset_less=True),
            "hits": Signal(self._config.rows, name="stage_hits", reset_less=True),
            "write": Signal(name="stage_write"),
            "run": Signal(run, name="stage_run", reset_less=True),
        }
        key_address = Signal(ADDRESS_BITS, reset_less=True)  # of the token at stage 0
        with m.If(move):
            m.d.sync += stage["valid"].eq(place["valid"])
            with m.If(place["valid"]):
                m.d.sync += [
                    stage["data"].eq(self.i.payload.data),
                    stage["write"].eq(0),
                    stage["bytes"].eq(0),
                    stage["hits"].eq(0),
                ]
            with m.If(place["valid"] & place["changed"]):
                m.d.sync += [
                    stage["hits"].eq(place["hits"]),
                    stage["bytes"].eq(~place["key"]),
                    stage["write"].eq(~place["key"] | place["hits"].any()),
                    stage["scale"].eq(Mux(step.kind == KvKind.V, 2, place["outer"][0])),
                    stage["run"].first.eq(Mux(place["key"], place["inner"] == 0, place["begin"])),
                    stage["run"].address.eq(Mux(place["key"], key_address, step.address)),
                    stage["run"].words.eq(self._run_words(place["key"], step)),
                ]
                with m.If(~place["key"]):
                    m.d.sync += key_address.eq(step.address + HEAD_UNITS)
                with m.Elif(place["last_inner"]):
                    m.d.sync += key_address.eq(key_address + self.model.head_groups)
        stage["masks"] = self._build_masks(m, step, place, move)
        return stage

    def _run_words(self, key: Signal, step: Any) -> Any:
        groups = self.model.head_groups
        scales = HEAD_UNITS << self._sub
        page = Mux(step.kind == KvKind.V, groups << (6 + self._sub), scales)
        return Mux(key, groups << self._sub, page)

    def _build_masks(
        self, m: Module, step: Any, place: dict[str, Signal], move: Signal
    ) -> list[Signal]:
        """Bytes of the word at stage 1 that belong to each row, where single bytes change."""
        low = PAGE.bit_length() - 1 - self._sub  # bits of a token's place in its word
        masks = []
        for index, row in enumerate(self.rows):
            mask = Signal(self._config.bus_bytes, name=f"mask_{index}", reset_less=True)
            byte = Signal(self._config.bus_bytes, name=f"byte_{index}")
            here = Signal(name=f"here_{index}")
            m.d.comb += [
                byte.eq(1 << row.offset[:low]),
                here.eq(step.match[index] & (row.offset[low:] == place["inner"])),
            ]
            with m.If(move & place["valid"] & place["changed"]):
                m.d.sync += mask.eq(Mux(here, byte, 0))
            masks.append(mask)
        return masks

    def _build_output(
        self, m: Module, stage: dict[str, Any], tails: list[KvTail], move: Signal
    ) -> None:
        """Output register: the merged word, to the array and, if it changed, to memory."""
        free = Signal()
        values = []
        for index, tail in enumerate(tails):
            value = Signal(8, name=f"value_{index}")
            with m.Switch(stage["scale"]):
                with m.Case(0):
                    m.d.comb += value.eq(tail.k_scale)
                with m.Case(1):
                    m.d.comb += value.eq(tail.v_scale)
                with m.Default():
                    m.d.comb += value.eq(tail.v_data)
            values.append(value)
        out = self.o.payload
        written = self.write.payload
        m.d.comb += [
            free.eq((~self.o.valid | self.o.ready) & (~self.write.valid | self.write.ready)),
            move.eq(~stage["valid"] | free),
            written.data.eq(out),
        ]
        with m.If(self.o.ready):
            m.d.sync += self.o.valid.eq(0)
        with m.If(self.write.ready):
            m.d.sync += self.write.valid.eq(0)
        with m.If(free & stage["valid"]):
            m.d.sync += [
                self.o.valid.eq(1),
                out.eq(stage["data"]),
                self.write.valid.eq(stage["write"]),
                written.first.eq(stage["run"].first),
                written.address.eq(stage["run"].address),
                written.words.eq(stage["run"].words),
            ]
            with m.If(stage["bytes"]):
                for mask, value in zip(stage["masks"], values, strict=True):
                    for byte in range(self._config.bus_bytes):
                        with m.If(mask[byte]):
                            m.d.sync += out[8 * byte : 8 * byte + 8].eq(value)
            for index, tail in enumerate(tails):
                with m.If(stage["hits"][index]):
                    m.d.sync += out.eq(tail.k_data)
