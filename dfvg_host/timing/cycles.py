"""The cycle model: what a pass costs on the device, and the least it could cost.

Instructions are walked in program order. Each starts when its engine is free, its token has come
and its words arrive; how long it takes is the RTL's own account (`dfvg_hw.vector.timing`,
`dfvg_hw.matmul.control`). The model alone steers virtual time; RTL cycles are reported beside it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dfvg_host.compile.unroll import Issue, unroll
from dfvg_host.device.virtual import PassCost
from dfvg_host.quantize.integer import ModelDims
from dfvg_hw.config import GROUP, PAGE, DeviceConfig
from dfvg_hw.isa import Dest, Instruction, Op, OutOp
from dfvg_hw.matmul.control import drain_latency
from dfvg_hw.tree import Row
from dfvg_hw.vector.timing import emit_cycles, vector_cycles

from .ideal import ideal_words
from .supply import WordSupply

__all__ = ["CycleModel", "Latencies", "PassShape"]


@dataclass(frozen=True)
class Latencies:
    """Cycles between the blocks, which none of them knows alone; measured on the core.

    Attributes
    ----------
    mm_gap, mm_gap_signal : int
        Lost between MM instructions that follow each other; more after one that signals.
    token : int
        From the end of an instruction to the start of the one that waits for it.
    decode : int
        Cycles of a VEC instruction that pass before it looks for its token.
    pass_begin, pass_end : int
        Before the first request; after the last result and write response.
    turn : int
        The tree unit between two passes: end of one, choice of the next one's rows. A mean, see
        "Cycles" in ``docs/tree.md``.
    """

    mm_gap: int = 1
    mm_gap_signal: int = 2
    token: int = 2
    decode: int = 2
    pass_begin: int = 8
    pass_end: int = 16
    turn: int = 130


@dataclass(frozen=True)
class PassShape:
    """All that the cycles of a pass depend on.

    Attributes
    ----------
    rows : int
    children : int
        Rows that want children.
    pages : tuple of int
        KV pages of each sequence with rows, by sequence.
    """

    rows: int
    children: int
    pages: tuple[int, ...]


class CycleModel:
    """Costs of passes of one program on one device.

    Parameters
    ----------
    config : DeviceConfig
    dims : ModelDims
    program : list of Instruction
    latencies : Latencies, optional
    """

    def __init__(
        self,
        config: DeviceConfig,
        dims: ModelDims,
        program: list[Instruction],
        latencies: Latencies | None = None,
    ) -> None:
        self.config, self.dims, self.program = config, dims, program
        self.latencies = latencies or Latencies()
        self._cycles: dict[PassShape, int] = {}

    def cost(self, rows: Sequence[Row], tables: Mapping[int, Sequence[int]]) -> PassCost:
        """Cost of a pass with these rows; `tables` holds each sequence's physical pages."""
        sequences = sorted({row.seq for row in rows})
        shape = PassShape(
            rows=len(rows),
            children=sum(row.want_children for row in rows),
            pages=tuple(len(tables[seq]) for seq in sequences),
        )
        if shape not in self._cycles:
            self._cycles[shape] = self.cycles(shape)
        ideal, ideal_bytes = ideal_words(self.config, self.dims, rows)
        return PassCost(self._cycles[shape], round(ideal), round(ideal_bytes))

    def cycles(self, shape: PassShape) -> int:
        """Cycles from the start of a pass to the earliest start of the next."""
        walk = _Walk(self, shape)
        for issue in unroll(self.program, shape.children > 0):
            walk.step(issue)
        return round(walk.end())


class _Walk:
    """The clock of each engine while a program is walked."""

    def __init__(self, model: CycleModel, shape: PassShape) -> None:
        self.lat, self.config, self.dims = model.latencies, model.config, model.dims
        self.shape = shape
        self.supply = WordSupply(self.config, self.lat.pass_begin)
        self.free = {Dest.MM: 0.0, Dest.VEC: 0.0}
        self.tokens: dict[Dest, deque[float]] = {Dest.MM: deque(), Dest.VEC: deque()}
        self.last = 0.0
        self.drain = drain_latency(self.config)

    def step(self, issue: Issue) -> None:
        """Advance by one instruction."""
        i = issue.instruction
        if i.op is Op.MM or (i.op is Op.SYNC and i.dest == Dest.MM):
            self._mm(i)
        elif i.op in (Op.EMBED, Op.ROPE_TABLE, Op.QUANT, Op.SOFTMAX, Op.SYNC):
            self._vec(i)

    def end(self) -> float:
        """Cycle in which the next pass may start."""
        emit = emit_cycles(self.config, self.shape.children) if self.shape.children else 0
        return self.last + emit + self.lat.pass_end + self.lat.turn

    def _token(self, dest: Dest, i: Instruction, now: float) -> float:
        """Wait for a token if the instruction asks for one."""
        return max(now, self.tokens[dest].popleft() + self.lat.token) if i.wait else now

    def _finish(self, dest: Dest, i: Instruction, free: float, done: float) -> None:
        self.free[dest] = free
        self.last = max(self.last, done)
        if i.signal:
            other = Dest.VEC if dest is Dest.MM else Dest.MM
            self.tokens[other].append(done)

    # ---- array --------------------------------------------------------------------------------

    def _mm(self, i: Instruction) -> None:
        now = self._token(Dest.MM, i, self.free[Dest.MM])
        if i.op is Op.MM:
            now = self._linear(i, now) if i.blocks else self._paged(i, now)
        gap = self.lat.mm_gap_signal if i.signal else self.lat.mm_gap
        self._finish(Dest.MM, i, now + gap, now + self.drain)

    def _linear(self, i: Instruction, now: float) -> float:
        """Blocks of a scale word and bus/2 channels."""
        bus = self.config.bus_bytes
        return self.supply.take(i.blocks * (1 + bus // 2 * i.groups * GROUP // bus), now)

    def _paged(self, i: Instruction, now: float) -> float:
        """SCORE or PV: a page's words pass once from memory and then once per further head."""
        bus = self.config.bus_bytes
        body = i.groups * GROUP * PAGE // bus
        scales = 2 * PAGE // bus if i.out == OutOp.SCORE else 0
        for pages in self.shape.pages:
            for _ in range(pages):
                now = self.supply.take(scales + body, now) + (i.gqa - 1) * body
        return now

    # ---- vector unit --------------------------------------------------------------------------

    def _vec(self, i: Instruction) -> None:
        begin, loaded = self.free[Dest.VEC] + self.lat.decode, 0.0
        if i.op is Op.QUANT and i.gain:  # gains load before the token comes
            loaded = self._load(i.groups * GROUP, 2, begin) - i.groups * GROUP // self.config.lanes
        work = vector_cycles(self.config, i, rows=self.shape.rows, pages=max(self.shape.pages))
        start = self._token(Dest.VEC, i, max(begin, loaded))
        done = start - self.lat.decode + work
        if i.op is Op.EMBED:
            for _ in range(self.shape.rows):
                start = self._load(i.groups * GROUP, 1, start)
                start = self.supply.take(1, start)
            done = max(done, start + i.groups * GROUP // self.config.lanes)
        elif i.op is Op.ROPE_TABLE:
            for _ in range(self.shape.rows):
                start = self._load(i.pairs, 4, start)
            done = max(done, start)
        self._finish(Dest.VEC, i, done, done)

    def _load(self, elements: int, size: int, now: float) -> float:
        """Unpack elements of `size` bytes: `lanes` per cycle, or one (cos, sin) pair."""
        per_word = self.config.bus_bytes // size
        rate = 1 if size == 4 else min(self.config.lanes, per_word)
        return self.supply.take(elements // per_word, now, per_word / rate)
