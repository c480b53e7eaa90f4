"""What devices on virtual time have in common: a model of the tree, and costs by the cycle model.

The emulator *is* this tree with an arithmetic backend; the RTL is compared with it. Either way the
next pass's rows, its cost and the order of messages are decided here, once.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from dfvg_host.device.protocol import DeviceInfo
from dfvg_hw.config import DeviceConfig
from dfvg_hw.errors import DeviceError, ProtocolError
from dfvg_hw.messages import Capability, Command, Message, Open, PassDone, Verdict
from dfvg_hw.tree import PassSummary, Row, TreeModel

__all__ = ["CostModel", "PassCost", "Tables", "TreeDevice"]

Tables = Mapping[int, Sequence[int]]
"""Physical pages of every sequence that has rows, in order of the page index."""


@dataclass(frozen=True)
class PassCost:
    """What a pass costs.

    Parameters
    ----------
    cycles : int
        Clock cycles by the cycle model.
    ideal : int
        Sum over operators of max(bytes/BUS, MACs/array), live KV only.
    ideal_bytes : int
        Sum of bytes/BUS.
    """

    cycles: int
    ideal: int
    ideal_bytes: int


class CostModel(Protocol):
    """Tells what passes cost."""

    def cost(self, rows: Sequence[Row], tables: Tables) -> PassCost:
        """Return what a pass with these rows costs; nothing is run."""
        ...


class TreeDevice(ABC):
    """A `VirtualTimeDevice` that knows the state of its tree exactly.

    Parameters
    ----------
    name : str
        Name shown in statistics.
    config : DeviceConfig
    digest : str
        Digest of the draft image, "" if there's none.
    vocabulary : int
        Rows of the embedding: token ids that can be run.
    output_vocabulary : int
        Different tokens that can be proposed.
    costs : CostModel

    Notes
    -----
    Commands take effect at once, passes run one at a time and in whole, and a pass ends before the
    next command can arrive; so nothing is ever in flight.
    """

    def __init__(
        self,
        name: str,
        config: DeviceConfig,
        digest: str,
        vocabulary: int,
        output_vocabulary: int,
        costs: CostModel,
    ) -> None:
        capabilities = Capability.VIRTUAL_TIME
        if output_vocabulary < vocabulary:
            capabilities |= Capability.TRUNCATED_HEAD
        self._info = DeviceInfo(name, config, digest, output_vocabulary, capabilities)
        self._tree = TreeModel(config, vocabulary)
        self._costs = costs
        self._messages: list[Message] = []
        self._closed = False

    @property
    def info(self) -> DeviceInfo:
        """Who the device is."""
        return self._info

    @property
    def tree(self) -> TreeModel:
        """The device's tree, or its shadow on the host; for tests and diagnosis."""
        return self._tree

    def send(self, command: Command) -> None:
        """Apply a command; see `DraftDevice.send`."""
        self._check_open()
        _check_encodable(command)
        self._tree.apply(command)
        answers = self._tree.take_messages()
        self._carry(command, answers)
        self._messages += answers

    def poll(self, timeout: float = 0.0) -> list[Message]:
        """Return the messages since the last call."""
        self._check_open()
        messages, self._messages = self._messages, []
        return messages

    def next_pass_cycles(self) -> int | None:
        """Cycles of the next pass by the cycle model, None if there's nothing to do."""
        self._check_open()
        rows = self._tree.next_rows()
        return self._costs.cost(rows, self._tree.next_tables()).cycles if rows else None

    def run_pass(self) -> PassDone:
        """Run one whole pass.

        Raises
        ------
        DeviceError
            If there's nothing to do, or the device failed.
        """
        self._check_open()
        rows = self._tree.begin_pass()
        if not rows:
            raise DeviceError("device has nothing to do: no pending tokens and no candidates")
        tables = {row.seq: self._tree.sequences[row.seq].pages.phys for row in rows}
        cost = self._costs.cost(rows, tables)
        done, messages = self._run(rows, tables, cost)
        self._messages += [*messages, done]
        return done

    def close(self) -> None:
        """Give up the device."""
        self._closed = True

    @abstractmethod
    def _carry(self, command: Command, answers: Sequence[Message]) -> None:
        """Take a command to whatever lies below; ``answers`` is what the tree says to it."""

    @abstractmethod
    def _run(
        self, rows: Sequence[Row], tables: Tables, cost: PassCost
    ) -> tuple[PassDone, list[Message]]:
        """Run a pass that has begun; return its record and the messages before it."""

    def _finish(
        self, children: Mapping[int, list[tuple[int, int]]], cost: PassCost
    ) -> tuple[PassDone, list[Message]]:
        """End the tree's pass with the children of its rows."""
        done = _record(self._tree.end_pass(dict(children)), cost)
        return done, self._tree.take_messages()

    def _check_open(self) -> None:
        if self._closed:
            raise DeviceError(f"device {self._info.name} is closed")


def _record(summary: PassSummary, cost: PassCost) -> PassDone:
    """Return the record of a pass: what the tree did, at the cycle model's cost."""
    counts = {f.name: int(getattr(summary, f.name)) for f in dataclasses.fields(summary)}
    return PassDone(**counts, **dataclasses.asdict(cost))


def _check_encodable(command: Command) -> None:
    """Refuse what could not be sent to a card either."""
    fields = [("seq", command.seq, 0xFF), ("epoch", getattr(command, "epoch", 0), 0xFFFFFFFF)]
    if isinstance(command, Open | Verdict):
        fields += [("token", token, 0xFFFFFFFE) for token in command.tokens]
    for name, value, high in fields:
        if not 0 <= value <= high:
            raise ProtocolError(f"{type(command).__name__}.{name} is {value}: 0 to {high}")
