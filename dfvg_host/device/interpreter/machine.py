"""The interpreter's machine: program fetch, the one in-order word stream, tokens, engines.

Engines are coroutines. One that needs a word which isn't at the head of the stream, or a token
that isn't there, yields; if all engines are stuck the program is wrong and `ImageError` says where.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dfvg_host.compile.image import DraftImage
from dfvg_host.compile.unroll import Issue, unroll
from dfvg_host.device.compute import Children
from dfvg_hw.errors import ImageError
from dfvg_hw.isa import Dest, Instruction, LoadKind, Op
from dfvg_hw.tree import Row

from .engines import MmEngine, VecEngine
from .state import ALIGN, PassState

__all__ = ["Interpreter", "Record"]

Bytes = NDArray[np.uint8]
MAX_TOKENS = 3
"""Largest count that a hardware token counter must hold."""


@dataclass(frozen=True)
class Record:
    """Result of one instruction, for comparison with RTL: arrays by name, rows first."""

    issue: Issue
    results: dict[str, NDArray[np.int64]]


@dataclass
class WordStream:
    """The prefetch FIFO: runs of bytes in load order, each for one engine."""

    runs: deque[tuple[Dest, Bytes]] = field(default_factory=deque)

    def push(self, dest: Dest, data: Bytes) -> None:
        """Append a run."""
        if len(data):
            self.runs.append((dest, data))

    def take(self, dest: Dest, size: int) -> Bytes | None:
        """The next `size` bytes if they are all `dest`'s and loaded, else None."""
        parts, need = [], size
        for owner, data in self.runs:
            if owner is not dest or not need:
                break
            parts.append(data[:need])
            need -= len(parts[-1])
        if need:
            return None
        left = size
        while left:
            owner, data = self.runs.popleft()
            if len(data) > left:
                self.runs.appendleft((owner, data[left:]))
            left -= min(left, len(data))
        return np.concatenate(parts) if parts else np.zeros(0, np.uint8)


class Port:
    """What an engine sees of the rest: words and tokens, as coroutines that yield while stuck."""

    def __init__(self, dest: Dest, words: WordStream, tokens: dict[Dest, int]) -> None:
        self.dest, self.words, self.tokens = dest, words, tokens
        self.moves = 0  # words and tokens consumed: tells slow progress from a deadlock

    def take(self, size: int) -> Generator[None, None, Bytes]:
        """Consume bytes."""
        while (data := self.words.take(self.dest, size)) is None:
            yield
        self.moves += 1
        return data

    def wait(self, instruction: Instruction) -> Generator[None]:
        """Consume a token if the instruction asks for one."""
        if instruction.wait:
            while not self.tokens[self.dest]:
                yield
            self.tokens[self.dest] -= 1
            self.moves += 1

    def signal(self, instruction: Instruction) -> None:
        """Give the other engine a token if the instruction says so."""
        if instruction.signal:
            other = Dest.VEC if self.dest is Dest.MM else Dest.MM
            self.tokens[other] += 1
            if self.tokens[other] > MAX_TOKENS:
                raise ImageError(f"{self.dest.name} gives more than {MAX_TOKENS} tokens ahead")


class Interpreter:
    """Executes passes of an image, instruction by instruction.

    Parameters
    ----------
    image : DraftImage
    record : callable, optional
        Called with a `Record` after every MM and VEC instruction.
    """

    def __init__(self, image: DraftImage, record: Callable[[Record], None] | None = None) -> None:
        self.image = image
        self.program = image.program
        self.record = record
        rng = np.random.default_rng(1)
        # Poisoned like real memory at power-up: nothing may depend on what was never written.
        self.memory = rng.integers(0, 256, image.memory_bytes, dtype=np.uint8)
        for address, data in image.writes():
            self.memory[address : address + len(data)] = data

    def forward(
        self, rows: Sequence[Row], tables: Mapping[int, Sequence[int]]
    ) -> dict[int, Children]:
        """Run one pass; same arguments and result as `IntegerCompute.forward`.

        Raises
        ------
        ImageError
            If the program deadlocks, leaves words or addresses outside the config's memories.
        """
        state = PassState(self.image, rows, tables, self.memory.copy())
        head = any(row.want_children for row in rows)
        issues = list(unroll(self.program, head))
        words, tokens = WordStream(), {Dest.MM: 0, Dest.VEC: 0}
        for issue in issues:
            if issue.instruction.op is Op.LOAD:
                self._load(issue, state, words)
        ports = [Port(dest, words, tokens) for dest in Dest]
        _run([self._engine(port, issues, state) for port in ports], ports)
        if words.runs:
            raise ImageError(f"{len(words.runs)} loaded runs are left at the end of the pass")
        # The last norm's token is left for PASS_END to clear when the head is skipped.
        if tokens != {Dest.MM: 0 if head else 1, Dest.VEC: 0}:
            raise ImageError(f"tokens are left at the end of the pass: {tokens}")
        self.memory = state.written
        return state.children

    def _load(self, issue: Issue, state: PassState, words: WordStream) -> None:
        """Push what a LOAD streams; memory is as before the pass, whatever the rows write."""
        load, bus = issue.instruction, self.image.config.bus_bytes
        dest = Dest(load.dest)
        if load.kind == LoadKind.LINEAR:
            base = load.base + issue.i0 * load.stride0 + issue.i1 * load.stride1
            words.push(dest, state.read(base * ALIGN, load.words * bus))
            return
        for address, size in state.gather(LoadKind(load.kind), issue.i0, issue.i1):
            words.push(dest, state.read(address, size))

    def _engine(self, port: Port, issues: list[Issue], state: PassState) -> Generator[None]:
        """One engine: its instructions in order."""
        unit = MmEngine(state, port) if port.dest is Dest.MM else VecEngine(state, port)
        for issue in issues:
            instruction = issue.instruction
            if not unit.owns(instruction):
                continue
            yield from port.wait(instruction)
            if instruction.op is not Op.SYNC:
                results = yield from unit.execute(instruction, issue.i0, issue.i1)
                if self.record is not None:
                    self.record(Record(issue, results))
            port.signal(instruction)


def _run(engines: list[Generator[None]], ports: list[Port]) -> None:
    """Step all engines until they end; a round in which nothing is consumed is a deadlock."""
    live, before = list(engines), -1
    while live:
        moves = sum(port.moves for port in ports)
        if moves == before:
            raise ImageError("the program deadlocks: engines wait for words or tokens")
        before = moves
        for engine in list(live):
            try:
                next(engine)
            except StopIteration:
                live.remove(engine)
                before = -1
