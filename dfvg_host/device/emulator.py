"""The emulator: a draft device in software, on virtual time.

The tree is the hardware's reference model, the arithmetic a pluggable backend: bit-exact integers
(`dfvg_host.device.compute`) or floating point (`dfvg_host.device.floats`). Costs come from the
backend's cycle model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from dfvg_host.device.virtual import CostModel, PassCost, Tables, TreeDevice
from dfvg_hw.config import DeviceConfig
from dfvg_hw.messages import Command, Message, PassDone
from dfvg_hw.tree import Row

__all__ = ["ComputeBackend", "EmulatorDevice"]


class ComputeBackend(CostModel, Protocol):
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

    def forward(self, rows: Sequence[Row], tables: Tables) -> dict[int, list[tuple[int, int]]]:
        """Run a pass.

        Parameters
        ----------
        rows : sequence of Row
        tables : Tables

        Returns
        -------
        dict of int to list of (token, log-probability)
            For each row with `want_children`, its most likely next tokens in order, at most
            `DeviceConfig.topk`; edge log-probabilities in 1/256 log2.
        """
        ...


class EmulatorDevice(TreeDevice):
    """A `VirtualTimeDevice` in software.

    Parameters
    ----------
    config : DeviceConfig
    backend : ComputeBackend
        The draft model.
    name : str
        Name shown in statistics.
    """

    def __init__(
        self, config: DeviceConfig, backend: ComputeBackend, name: str = "emulator"
    ) -> None:
        super().__init__(
            name, config, backend.digest, backend.vocabulary, backend.output_vocabulary, backend
        )
        self._backend = backend

    def _carry(self, command: Command, answers: Sequence[Message]) -> None:
        """Nothing lies below: the tree is the device."""

    def _run(
        self, rows: Sequence[Row], tables: Tables, cost: PassCost
    ) -> tuple[PassDone, list[Message]]:
        return self._finish(self._backend.forward(rows, tables), cost)
