"""The cycle model: what a pass costs on the device, and the least it could cost.

Instructions are walked in program order. Each starts when its engine is free, its token has come
and its words arrive; its length follows from sizes and the pipeline depths below, which are the
RTL's. The model alone steers virtual time; RTL cycles are reported beside it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dfvg_host.compile.unroll import Issue, unroll
from dfvg_host.device.emulator import PassCost
from dfvg_host.quantize.integer import ModelDims
from dfvg_hw.config import GROUP, PAGE, DeviceConfig
from dfvg_hw.isa import Dest, Instruction, Op, OutOp, QuantMode
from dfvg_hw.tree import Row

from .ideal import ideal_words
from .supply import WordSupply

__all__ = ["CycleModel", "Latencies", "PassShape"]


@dataclass(frozen=True)
class Latencies:
    """Cycles that don't depend on sizes; each is checked against the RTL's own constant.

    Attributes
    ----------
    mm_array, mm_lane : int
        Cell and sum; requantise and output lane.
    mm_gap, mm_gap_signal : int
        Lost between MM instructions that follow each other without waiting.
    token : int
        From a token given to its use.
    vec_issue, vec_settle : int
        Per VEC instruction, and more if it waits.
    vec_pass : int
        Per walk over vector memory, besides the elements.
    vec_scope, vec_scalar : int
        Per QUANT or SOFTMAX instruction; per scalar operation, besides the rows.
    softmax_head : int
        Per query head of SOFTMAX, besides the elements.
    child, child_row : int
        Sending one child, and per row.
    pass_begin, pass_end : int
        Before the first request; after the last result and write response.
    """

    mm_array: int = 6
    mm_lane: int = 14
    mm_gap: int = 1
    mm_gap_signal: int = 2
    token: int = 1
    vec_issue: int = 3
    vec_settle: int = 4
    vec_pass: int = 9
    vec_scope: int = 2
    vec_scalar: int = 10
    softmax_head: int = 9
    child: int = 2
    child_row: int = 6
    pass_begin: int = 8
    pass_end: int = 16


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
        c = self.config
        self.drain = 1 + c.cells - 1 + self.lat.mm_array + c.rows - 1 + self.lat.mm_lane
        self.scalar = c.rows + self.lat.vec_scalar

    def step(self, issue: Issue) -> None:
        """Advance by one instruction."""
        i = issue.instruction
        if i.op is Op.MM:
            self._mm(i)
        elif i.op is Op.SYNC:
            dest = Dest(i.dest)
            start = self._start(dest, i, self.free[dest])
            done = start + (self.drain if dest is Dest.MM else self.lat.vec_issue)
            self._finish(dest, i, start + self.lat.mm_gap, done)
        elif i.op in (Op.EMBED, Op.ROPE_TABLE, Op.QUANT, Op.SOFTMAX):
            self._vec(i)

    def end(self) -> float:
        """Cycle in which the next pass may start."""
        emit = self.shape.children * (self.lat.child_row + self.lat.child * self.config.topk)
        return self.last + emit + self.lat.pass_end

    def _start(self, dest: Dest, i: Instruction, free: float) -> float:
        if not i.wait:
            return free
        settle = self.lat.vec_settle if dest is Dest.VEC else 0
        return max(free, self.tokens[dest].popleft() + self.lat.token + settle)

    def _finish(self, dest: Dest, i: Instruction, free: float, done: float) -> None:
        self.free[dest] = free
        self.last = max(self.last, done)
        if i.signal:
            other = Dest.VEC if dest is Dest.MM else Dest.MM
            self.tokens[other].append(done)

    # ---- array --------------------------------------------------------------------------------

    def _mm(self, i: Instruction) -> None:
        now = self._start(Dest.MM, i, self.free[Dest.MM])
        if i.out in (OutOp.SCORE, OutOp.PV):
            now = self._paged(i, now)
        else:
            bus = self.config.bus_bytes
            now = self.supply.take(i.blocks * (1 + bus // 2 * i.groups * GROUP // bus), now)
        gap = self.lat.mm_gap_signal if i.signal else self.lat.mm_gap
        self._finish(Dest.MM, i, now + gap, now + self.drain)

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
        free = self.free[Dest.VEC] + self.lat.vec_issue
        if i.op is Op.QUANT and i.gain:  # gains load before the token comes
            free = max(free, self._load(i.groups * GROUP * 2, free, 2) - self._elements(i.groups))
        now = self._start(Dest.VEC, i, free)
        if i.op is Op.EMBED:
            now = self._embed(i, now)
        elif i.op is Op.ROPE_TABLE:
            for _ in range(self.shape.rows):
                now = self._load(i.pairs * 4, now, 4 * self.config.lanes) + 1
        elif i.op is Op.QUANT:
            now += self._quant(i)
        else:
            head = max(self.shape.pages) * self._elements(1) + self.lat.softmax_head
            now += i.gqa * (head + self.scalar) + self.lat.vec_scope
        self._finish(Dest.VEC, i, now, now)

    def _elements(self, groups: int) -> int:
        """Cycles of a walk over some groups."""
        return groups * GROUP // self.config.lanes

    def _load(self, size: int, now: float, element: int) -> float:
        """Unpack `size` bytes, `lanes` elements of `element` bytes per cycle."""
        bus = self.config.bus_bytes
        per_word = max(1.0, bus / (element * min(self.config.lanes, max(1, bus // element))))
        return self.supply.take(size // bus, now, per_word)

    def _embed(self, i: Instruction, now: float) -> float:
        size = i.groups * GROUP
        for _ in range(self.shape.rows):
            now = self._load(size, now, 1)
            now = self.supply.take(1, now) + 1
        return now + self._elements(i.groups) + self.lat.vec_pass

    def _quant(self, i: Instruction) -> float:
        heads = i.mode != QuantMode.ROW
        scopes = i.groups // i.head_groups if heads else 1
        walk = self._elements(i.groups // scopes) + self.lat.vec_pass
        scalars = 2 if i.rms else 1
        return scopes * (2 * walk + scalars * self.scalar) + self.lat.vec_scope
