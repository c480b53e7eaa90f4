"""The RTL as a draft device: the whole design in Verilator behind its own rings and mailboxes.

Virtual time is steered by the cycle model, exactly as in the emulator. A shadow of the device's
tree, the reference model, says what every message must be: children's log-probabilities are the
only thing taken from the design unchecked (tests compare those with the integer model).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dfvg_host.compile.image import DraftImage
from dfvg_host.device.link import HostLink
from dfvg_host.device.virtual import PassCost, Tables, TreeDevice
from dfvg_host.timing.cycles import CycleModel
from dfvg_hw.errors import DeviceError
from dfvg_hw.messages import (
    Capability,
    Command,
    Event,
    EventCode,
    Message,
    Nodes,
    PassDone,
    PassKind,
    VerdictAck,
)
from dfvg_hw.tree import Row
from sim.card import CardOptions, SimCard

__all__ = ["RtlDevice", "open_rtl"]

_PAGE = 4096


class RtlDevice(TreeDevice):
    """A `VirtualTimeDevice` on the simulated card.

    Parameters
    ----------
    image : DraftImage
    card : SimCard
        Powered up, with room for the image.
    progress : callable
        Called with one line before whatever takes seconds.
    vcd : Path, optional
        Waveform of the passes `vcd_passes` (first and last, from 0); needs a card built with trace.

    Raises
    ------
    DeviceError
        If the design doesn't identify itself, or doesn't take the image.
    """

    def __init__(
        self,
        image: DraftImage,
        card: SimCard,
        progress: Callable[[str], None] = lambda _: None,
        vcd: Path | None = None,
        vcd_passes: tuple[int, int] = (0, 1),
    ) -> None:
        dims = image.dims
        super().__init__(
            "rtl",
            image.config,
            image.digest,
            dims.vocab,
            dims.out_vocab,
            CycleModel(image.config, dims, image.program),
        )
        self.card = card
        self.link = HostLink(card, image.config)
        self.link.require(Capability.VIRTUAL_TIME)
        size = image.memory_bytes / 1e6
        progress(f"loading the draft into simulated memory ({size:.1f} MB with KV)")
        self.link.load(image)
        self.link.control(enable=1)
        self._vcd, self._window = vcd, vcd_passes
        self._passes = 0
        self._growth = {"cycles": 0, "ideal": 0, "model": 0}

    def rtl_report(self) -> dict[str, Any]:
        """What the design itself took, over growth and catch-up passes (see docs/stats.md)."""
        growth = self._growth
        cycles, seconds = growth["cycles"], self.card.seconds
        return {
            "cycles": cycles,
            "eta": growth["ideal"] / cycles if cycles else None,
            "model_error": growth["model"] / cycles - 1 if cycles else None,
            "simulated_cycles_per_second": self.card.cycles / seconds if seconds else None,
        }

    def close(self) -> None:
        """Switch the card off."""
        if not self._closed:
            super().close()
            self.card.close()

    # ---- parts ----------------------------------------------------------------------------------

    def _carry(self, command: Command, answers: Sequence[Message]) -> None:
        """Send a command and wait for what the device says to it."""
        self.link.send(command)
        for wanted in answers:
            _compare(wanted, self.link.expect(type(wanted)))

    def _run(
        self, rows: Sequence[Row], tables: Tables, cost: PassCost
    ) -> tuple[PassDone, list[Message]]:
        """Run a pass in the design; compare all that the shadow knows."""
        self.link.settle()
        self._trace(begin=True)
        before = self.link.read("turn_cycles")
        self.link.write("pass_grant", 1)
        found, ended = self._collect()
        done, messages = self._finish(self._children(rows, found), cost)
        if len(found) != len(messages):
            raise DeviceError(
                f"device sent {len(found)} records in a pass: its tree says {len(messages)}"
            )
        for wanted, message in zip([*messages, done], [*found, ended], strict=True):
            _compare(wanted, message)
        cycles = self.link.read("turn_cycles") - before
        self._trace(begin=False)
        self._count(done, cost, cycles)
        return done, messages

    def _collect(self) -> tuple[list[Nodes], PassDone]:
        """Everything that a pass sends."""
        found: list[Nodes] = []
        while True:
            message = self.link.expect(Message)
            if isinstance(message, PassDone):
                return found, message
            if isinstance(message, Event) and message.code == EventCode.WATCHDOG:
                dump = ", ".join(f"{k} {v}" for k, v in self.link.dump().items() if v)
                raise DeviceError(f"a pass stood still and the watchdog ended it: {dump}")
            if not isinstance(message, Nodes):
                raise DeviceError(f"device sent {message} during a pass")
            found.append(message)

    def _children(
        self, rows: Sequence[Row], found: Sequence[Nodes]
    ) -> dict[int, list[tuple[int, int]]]:
        """Children by row, as the records have them."""
        by_parent: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for record in found:
            children = by_parent.setdefault((record.seq, record.parent), [])
            children += [(child.token, child.logprob) for child in record.children]
        results = {}
        for row in rows:
            if not row.want_children:
                continue
            assert row.slot is not None
            parent = (row.seq, self._tree.slot(row.slot).node_id)
            if parent not in by_parent:
                raise DeviceError(f"device sent no children of node {parent[1]} (row {row.index})")
            results[row.index] = by_parent.pop(parent)
        if by_parent:
            raise DeviceError(f"device sent children of nodes that did not run: {set(by_parent)}")
        return results

    def _count(self, done: PassDone, cost: PassCost, cycles: int) -> None:
        self._passes += 1
        if done.kind in (PassKind.CATCHUP, PassKind.GROWTH):
            self._growth["cycles"] += cycles
            self._growth["ideal"] += cost.ideal
            self._growth["model"] += cost.cycles

    def _trace(self, begin: bool) -> None:
        if self._vcd is None:
            return
        first, last = self._window
        if begin and self._passes == first:
            self.card.trace(self._vcd)
        if not begin and self._passes == last:
            self.card.trace(None)


def _compare(wanted: Message, found: Message) -> None:
    """Refuse a message that isn't what the shadow says; times may differ."""
    free = {"cycles", "ideal", "ideal_bytes", "idle"} if isinstance(wanted, PassDone) else set()
    free |= {"cycles"} if isinstance(wanted, VerdictAck) else set()
    same = type(wanted) is type(found) and all(
        getattr(wanted, f.name) == getattr(found, f.name)
        for f in dataclasses.fields(wanted)
        if f.name not in free
    )
    if not same:
        raise DeviceError(f"device sent {found}: the model of its tree says {wanted}")


def open_rtl(
    image: DraftImage,
    progress: Callable[[str], None] = lambda _: None,
    vcd: str | Path | None = None,
    vcd_passes: tuple[int, int] = (0, 1),
    seed: int = 1,
) -> RtlDevice:
    """Build the simulator if need be, power a card up and load the image.

    Raises
    ------
    BuildError
        Without what a build needs.
    DeviceError
        If the design misbehaves.
    """
    progress("preparing the simulator of the design (the first time takes minutes)")
    memory = -(-image.memory_bytes // _PAGE) * _PAGE
    card = SimCard(image.config, CardOptions(memory_bytes=memory, seed=seed, trace=vcd is not None))
    try:
        return RtlDevice(image, card, progress, None if vcd is None else Path(vcd), vcd_passes)
    except BaseException:
        card.close()
        raise
