"""The emulator: a draft device in software, on virtual time.

The tree is the hardware's reference model, the arithmetic a pluggable backend: bit-exact integers
(`dfvg_host.device.compute`) or floating point (`dfvg_host.device.floats`). Costs come from the
backend's cycle model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from dfvg_host.device.protocol import DeviceInfo
from dfvg_hw.config import DeviceConfig
from dfvg_hw.errors import DeviceError, ProtocolError
from dfvg_hw.messages import Capability, Command, Message, Open, PassDone, Verdict
from dfvg_hw.tree import Row, TreeModel

__all__ = ["ComputeBackend", "EmulatorDevice", "PassCost", "check_encodable"]


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


class ComputeBackend(Protocol):
    """The draft model of an emulated device.

    Rows hold their KV slot as (physical page, offset); `visible` tells which tokens of the
    sequence's pages a row attends to. Rows of one pass may see each other.
    """

    @property
    def digest(self) -> str:
        """Digest of the draft image, "" if there's none."""
        ...

    @property
    def vocabulary(self) -> int:
        """Rows of the embedding: token ids that can be run."""
        ...

    @property
    def output_vocabulary(self) -> int:
        """Different tokens that can be proposed."""
        ...

    def cost(self, rows: Sequence[Row], tables: Mapping[int, Sequence[int]]) -> PassCost:
        """Return what a pass with these rows costs; nothing is run."""
        ...

    def forward(
        self, rows: Sequence[Row], tables: Mapping[int, Sequence[int]]
    ) -> dict[int, list[tuple[int, int]]]:
        """Run a pass.

        Parameters
        ----------
        rows : sequence of Row
        tables : mapping of int to sequence of int
            Physical pages of every sequence that has rows, in order of the page index.

        Returns
        -------
        dict of int to list of (token, log-probability)
            For each row with `want_children`, its most likely next tokens in order, at most
            `DeviceConfig.topk`; edge log-probabilities in 1/256 log2.
        """
        ...


class EmulatorDevice:
    """A `VirtualTimeDevice` in software.

    Parameters
    ----------
    config : DeviceConfig
    backend : ComputeBackend
        The draft model.
    name : str
        Name shown in statistics.

    Notes
    -----
    Commands take effect at once, passes run one at a time and in whole, and a pass ends before the
    next command can arrive; so nothing is ever in flight.
    """

    def __init__(
        self, config: DeviceConfig, backend: ComputeBackend, name: str = "emulator"
    ) -> None:
        capabilities = Capability.VIRTUAL_TIME
        if backend.output_vocabulary < backend.vocabulary:
            capabilities |= Capability.TRUNCATED_HEAD
        self._info = DeviceInfo(
            name, config, backend.digest, backend.output_vocabulary, capabilities
        )
        self._backend = backend
        self._tree = TreeModel(config, backend.vocabulary)
        self._messages: list[Message] = []
        self._closed = False

    @property
    def info(self) -> DeviceInfo:
        """Who the device is."""
        return self._info

    @property
    def tree(self) -> TreeModel:
        """The device's tree, for tests and diagnosis."""
        return self._tree

    def send(self, command: Command) -> None:
        """Apply a command."""
        self._check_open()
        check_encodable(command)
        self._tree.apply(command)
        self._messages += self._tree.take_messages()

    def poll(self, timeout: float = 0.0) -> list[Message]:
        """Return the messages since the last call."""
        self._check_open()
        messages, self._messages = self._messages, []
        return messages

    def next_pass_cycles(self) -> int | None:
        """Cycles of the next pass by the cycle model, None if there's nothing to do."""
        self._check_open()
        rows = self._tree.next_rows()
        return self._backend.cost(rows, self._tree.next_tables()).cycles if rows else None

    def run_pass(self) -> PassDone:
        """Run one whole pass."""
        self._check_open()
        rows = self._tree.begin_pass()
        if not rows:
            raise DeviceError("device has nothing to do: no pending tokens and no candidates")
        tables = {row.seq: self._tree.sequences[row.seq].pages.phys for row in rows}
        cost = self._backend.cost(rows, tables)
        summary = self._tree.end_pass(self._backend.forward(rows, tables))
        done = PassDone(
            kind=int(summary.kind),
            rows=summary.rows,
            dropped=summary.dropped,
            number=summary.number,
            children=summary.children,
            sequences=summary.sequences,
            prefill_rows=summary.prefill_rows,
            catchup_rows=summary.catchup_rows,
            growth_rows=summary.growth_rows,
            free_slots=summary.free_slots,
            cycles=cost.cycles,
            ideal=cost.ideal,
            ideal_bytes=cost.ideal_bytes,
        )
        self._messages += [*self._tree.take_messages(), done]
        return done

    def close(self) -> None:
        """Give up the device."""
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise DeviceError(f"device {self._info.name} is closed")


def check_encodable(command: Command) -> None:
    """Refuse what could not be sent to a card either."""
    fields = [("seq", command.seq, 0xFF), ("epoch", getattr(command, "epoch", 0), 0xFFFFFFFF)]
    if isinstance(command, Open | Verdict):
        fields += [("token", token, 0xFFFFFFFE) for token in command.tokens]
    for name, value, high in fields:
        if not 0 <= value <= high:
            raise ProtocolError(f"{type(command).__name__}.{name} is {value}: 0 to {high}")
