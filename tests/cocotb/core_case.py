"""Passes over a random tiny model: what the core is given, and what it must answer.

Made once by the test process (it needs torch), read by the bench as plain arrays.
"""

from __future__ import annotations

import pickle
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dfvg_hw.config import DeviceConfig

__all__ = ["CoreCase", "CorePass", "make_case"]


@dataclass
class CorePass:
    """One pass: context, page tables, visibility, and the right answer.

    ``children`` is (row, rank, channel, log-probability), in the order of the stream.
    """

    rows: list[dict[str, int]]
    sequences: list[dict[str, int]]
    tables: dict[int, list[int]]
    visible: list[tuple[int, ...]]
    children: list[tuple[int, int, int, int]] = field(default_factory=list)


@dataclass
class CoreCase:
    """A model in memory and passes over it.

    ``kv`` is the KV region (first and last byte address), ``after`` its right contents after all
    passes, ``early`` after the first ``short`` ones.
    """

    config: str
    registers: dict[str, int]
    memory: bytes
    passes: list[CorePass]
    kv: tuple[int, int] = (0, 0)
    after: bytes = b""
    early: bytes = b""
    short: int = 0

    def save(self, path: Path) -> None:
        """Write to a file."""
        path.write_bytes(pickle.dumps(self))

    @staticmethod
    def load(path: Path) -> CoreCase:
        """Inverse of `save`."""
        return pickle.loads(path.read_bytes())


class _Sequence:
    """Tokens of one sequence: slots in order, ancestors by slot number.

    The first ``free`` slots stay holes: never written, never visible.
    """

    def __init__(self, number: int, pages: list[int], free: int) -> None:
        self.number, self.pages, self.free = number, pages, free
        self.used = free
        # Slots that each token attends to, itself included.
        self.seen: list[list[int]] = [[] for _ in range(free)]

    def add(self, parent: int | None) -> tuple[int, int, tuple[int, ...]]:
        """Take the next slot; returns its number, the depth and the visibility map."""
        slot = self.used
        self.used += 1
        self.seen.append(([] if parent is None else self.seen[parent]) + [slot])
        maps = [0] * (slot // 64 + 1)
        for token in self.seen[slot]:
            maps[token // 64] |= 1 << token % 64
        return slot, len(self.seen[slot]) - 1, tuple(maps)


def _rows(
    chance: random.Random, config: DeviceConfig, sequences: list[_Sequence], vocab: int, tree: bool
) -> list[dict[str, Any]]:
    """Rows of one pass: causal, or branching from any earlier token."""
    rows = []
    for _ in range(chance.choice([1, config.rows, config.rows, config.rows])):
        sequence = chance.choice(sequences)
        last = sequence.used - 1
        parent = None if last < sequence.free else last
        if tree and last > sequence.free and chance.random() < 0.7:
            parent = chance.randrange(max(sequence.free, last - 6), last + 1)
        slot, depth, visible = sequence.add(parent)
        page = slot // 64
        rows.append(
            {
                "seq": sequence.number,
                "token": chance.randrange(vocab),
                "position": depth,
                "page": page,
                "phys": sequence.pages[page],
                "offset": slot % 64,
                "want_children": chance.random() < 0.6,
                "visible": visible,
            }
        )
    return rows


def make_case(
    image: Any, name: str, passes: int, seed: int, short: int = 6, record: Any = None
) -> CoreCase:
    """Make passes over an image and compute their answers.

    Parameters
    ----------
    image : DraftImage
    name : str
        Name of the image's config.
    passes : int
    seed : int
    short : int
        Passes of the shorter tests.
    record : callable, optional
        Gets the records of the instruction interpreter.
    """
    from dfvg_host.device.compute import IntegerCompute
    from dfvg_host.device.interpreter import Interpreter
    from dfvg_hw.tree import Row
    from dfvg_hw.tree.state import RowKind

    chance, config = random.Random(seed), image.config
    pool = list(range(config.pool_pages))
    chance.shuffle(pool)
    share = len(pool) // config.max_seqs
    sequences = [
        _Sequence(n, pool[n * share : (n + 1) * share], free=0 if n else 50)
        for n in range(config.max_seqs)
    ]
    compute, reference = IntegerCompute.from_image(image), Interpreter(image, record)
    case = CoreCase(name, dict(image.registers), bytes(reference.memory), [])
    start = 64 * image.registers["model_kv_base"]
    channel = {int(token): index for index, token in enumerate(image.output_ids)}
    for number in range(passes):
        live = sequences if number % 3 else sequences[:1]
        raw = _rows(chance, config, live, image.dims.vocab, tree=number % 2 == 1)
        rows = [
            Row(index=i, kind=RowKind.GROWTH, slot=None, parent=None, rank=None, **item)
            for i, item in enumerate(raw)
        ]
        tables = {s.number: s.pages[: -(-s.used // 64)] for s in sequences}
        answer = compute.forward(rows, tables)
        if reference.forward(rows, tables) != answer:
            raise AssertionError(f"pass {number}: the interpreter disagrees with the emulator")
        if number + 1 == short:
            case.short, case.early = short, bytes(reference.memory[start:])
        case.passes.append(_core_pass(config, rows, tables, answer, channel))
    case.kv, case.after = (start, image.memory_bytes), bytes(reference.memory[start:])
    return case


def _core_pass(
    config: DeviceConfig, rows: Any, tables: Any, answer: Any, channel: dict[int, int]
) -> CorePass:
    context = []
    for index in range(config.rows):
        row = rows[index] if index < len(rows) else None
        names = ("token", "position", "seq", "page", "phys", "offset")
        item = {name: getattr(row, name) if row else 0 for name in names}
        item |= {
            "valid": int(row is not None),
            "children": int(row is not None and row.want_children),
        }
        context.append(item)
    sequences = []
    for number in range(config.max_seqs):
        mask = sum(1 << i for i, row in enumerate(rows) if row.seq == number)
        sequences.append({"rows": mask, "pages": len(tables[number]) if mask else 0})
    children = [
        (row, rank, channel[token], edge)
        for row in sorted(answer)
        for rank, (token, edge) in enumerate(answer[row])
    ]
    return CorePass(context, sequences, dict(tables), [row.visible for row in rows], children)
