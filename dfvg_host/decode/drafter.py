"""One sequence on a draft device: commands, the mirror of its tree, and everything that can fail.

Nothing a device does may change the text or end the run. Every exchange goes through `Drafter`,
which checks what comes back; at the first fault it gives the device up for good, says so once and
from then on offers no candidates, so that decoding goes on target-only.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Sequence
from typing import TypeVar

from dfvg_host.device.protocol import VirtualTimeDevice, check_versions
from dfvg_hw.errors import DeviceError, ProtocolError
from dfvg_hw.messages import (
    STOP_TOKENS,
    Close,
    DraftLimits,
    Event,
    EventCode,
    HitClass,
    Message,
    Nodes,
    Open,
    Opened,
    PassDone,
    Retune,
    Stats,
    Verdict,
    VerdictAck,
    context_hash,
)

from .mirror import MirrorNode, TreeMirror
from .sharpness import Sharpness
from .stats import DeviceCounters
from .walk import Tree

__all__ = ["Drafter"]

_Answer = TypeVar("_Answer")
_SEQ = 0
_MAX_PASS_CYCLES = 1 << 48
# Every context starts its own range of epochs, so that no answer to an earlier one fits.
_contexts = itertools.count(1)


class Drafter:
    """A sequence opened on a virtual-time device.

    Parameters
    ----------
    device: the device; it stays the caller's, who closes it.
    prompt: token ids of the context, fewer than ``context``.
    vocab_size: ids that the target knows; a candidate outside is a fault.
    stops: ids below which nothing is drafted.
    limits: how far to draft from the start.
    context: most tokens that the draft can follow; drafting ends there.
    warn: called once, with one line, if the device is given up.

    Attributes
    ----------
    alive: the device is in use. False after a fault, and once its context is full.
    degraded: faults, 0 or 1.
    counters: what the device did.
    pending: committed tokens that have no KV on the device yet.
    """

    def __init__(
        self,
        device: VirtualTimeDevice,
        prompt: Sequence[int],
        vocab_size: int,
        stops: Sequence[int],
        limits: DraftLimits,
        context: int,
        warn: Callable[[str], None],
    ) -> None:
        self.alive = True
        self.degraded = 0
        self.counters = DeviceCounters()
        self.pending = len(prompt)
        self._device = device
        self._mirror = TreeMirror(len(prompt), vocab_size, stops)
        self._sharpness = Sharpness()
        self._limits = limits
        self._context = context
        self._warn = warn
        self._epoch = next(_contexts) % (1 << 16) << 16
        self._opened = False
        self._length = len(prompt)
        self._hash = context_hash(tuple(prompt))
        self._awaited = False
        self.rows = 1
        self._guarded(lambda: self._open(tuple(prompt), tuple(stops)), None)

    # The device's work ----------------------------------------------------------------------

    def next_cost(self) -> int | None:
        """Return the cycles of the next pass by the cycle model; None if there's nothing to do."""
        return self._guarded(self._next_cost, None)

    def run_pass(self, cost: int) -> PassDone | None:
        """Run the next pass, which costs ``cost`` cycles, and take in its candidates."""
        return self._guarded(lambda: self._run_pass(cost), None)

    def verdict(self, tokens: Sequence[int], limits: DraftLimits) -> HitClass | None:
        """Tell the device what was committed and re-root the mirror.

        Parameters
        ----------
        tokens: at least one, in order.
        limits: how far to draft below the new root.

        Returns
        -------
        HitClass
            What the tree held for the new root; None if the device is out of use.
        """
        if self._length + len(tokens) >= self._context:
            self.close()  # no fault: the text has outgrown the draft
            return None
        return self._guarded(lambda: self._verdict(tuple(tokens), limits), None)

    def tree(self, most: int, max_depth: int) -> Tree:
        """Return the ``most`` likeliest candidates down to ``max_depth``, best first."""
        return self._guarded(lambda: self._tree(most, max_depth), Tree())

    def frontier(self, count: int, max_depth: int) -> list[float]:
        """Return the path probabilities of the likeliest candidates not expanded yet."""
        return self._guarded(
            lambda: [self._mirror.probability(n) for n in self._mirror.frontier(count, max_depth)],
            [],
        )

    def close(self) -> None:
        """End the sequence; the device stays open."""
        if self.alive:
            self.alive = False
            # The text is complete: a device that fails only now has harmed nothing, and the next
            # OPEN will show whether it's still there.
            with contextlib.suppress(Exception):
                self._device.send(Close(_SEQ, self._epoch))
                self._device.poll()

    def give_up(self, reason: str) -> None:
        """Stop using the device after a fault."""
        if self.alive:
            self.alive = False
            self.degraded += 1
            self._warn(f"draft device given up, decoding goes on target-only: {reason}")

    # Behind the guard -----------------------------------------------------------------------

    def _guarded(self, exchange: Callable[[], _Answer], otherwise: _Answer) -> _Answer:
        if not self.alive:
            return otherwise
        try:
            return exchange()
        # Whatever a device's code raises, the text must go on: this is the border of trust.
        except Exception as error:
            lines = str(error).strip().splitlines()
            self.give_up(lines[0] if lines else type(error).__name__)
            return otherwise

    def _open(self, prompt: tuple[int, ...], stops: tuple[int, ...]) -> None:
        if not isinstance(self._device, VirtualTimeDevice):
            raise DeviceError("device keeps wall-clock time: only virtual-time devices are paced")
        check_versions(self._device.info)
        self.rows = self._device.info.config.rows
        # The device takes a few stop tokens only; the mirror knows them all.
        self._device.send(Open(_SEQ, prompt, self._epoch, self._limits, stops[:STOP_TOKENS]))
        self._take()

    def _next_cost(self) -> int | None:
        cost = self._device.next_pass_cycles()
        if cost is None:
            if not self._opened:
                raise DeviceError("device did not open the sequence")
            return None
        if type(cost) is not int or not 0 < cost < _MAX_PASS_CYCLES:
            raise DeviceError(f"device says its next pass takes {cost!r} cycles")
        return cost

    def _run_pass(self, cost: int) -> PassDone:
        done = self._device.run_pass()
        if not isinstance(done, PassDone):
            raise ProtocolError(f"device ended a pass with {done!r}")
        self._take()
        if not self._opened:
            raise ProtocolError("device ran a pass before it opened the sequence")
        if self._awaited:
            raise ProtocolError(f"verdict {self._epoch} was not acknowledged within a pass")
        self.pending -= done.prefill_rows + done.catchup_rows
        if self.pending < 0:
            raise ProtocolError(f"device ran {-self.pending} more rows than tokens were pending")
        self.counters.count_pass(done, cost)
        return done

    def _verdict(self, tokens: tuple[int, ...], limits: DraftLimits) -> HitClass:
        self._epoch = (self._epoch + 1) % (1 << 32)
        for scores, which in self._mirror.outcomes(tokens):
            self._sharpness.observe(scores, which)
        self._mirror.exponent = self._sharpness.exponent
        hit = self._mirror.reroot(tokens)
        self._awaited = True
        verdict = Verdict(_SEQ, self._epoch, self._length, self._hash, tokens)
        self._length += len(tokens)
        self._hash = context_hash(tokens, self._hash)
        self._device.send(verdict)
        if limits != self._limits:
            self._limits = limits
            self._device.send(Retune(_SEQ, limits))
        self._take()
        return hit

    def _take(self) -> None:
        """Take in every message that has become visible."""
        for message in self._device.poll():
            if not self._opened:
                self._before_opening(message)
            elif isinstance(message, Nodes):
                self._mirror.apply(message)
            elif isinstance(message, VerdictAck):
                self._acknowledged(message)
            elif isinstance(message, Event):
                self._event(message)
            elif not isinstance(message, PassDone | Stats):
                raise ProtocolError(f"device sent {message!r}")

    def _before_opening(self, message: Message) -> None:
        """Look for OPENED; everything else is left over from the context before."""
        if getattr(message, "epoch", None) != self._epoch:
            return
        if isinstance(message, Event):
            self._event(message)
        if not isinstance(message, Opened):
            return
        if (message.length, message.context_hash) != (self._length, self._hash):
            raise ProtocolError(
                f"device opened a context of {message.length} tokens with hash "
                f"0x{message.context_hash:08x}: expected {self._length}, 0x{self._hash:08x}"
            )
        self._opened = True

    def _acknowledged(self, ack: VerdictAck) -> None:
        self._mirror.acknowledge(ack)
        if ack.epoch != self._epoch:
            raise ProtocolError(f"acknowledgement of epoch {ack.epoch}: expected {self._epoch}")
        if ack.context_hash != self._hash:
            raise ProtocolError(
                f"device has context hash 0x{ack.context_hash:08x}: expected 0x{self._hash:08x}"
            )
        self._awaited = False
        self.pending = ack.pending
        self.counters.count_hit(HitClass(ack.hit))

    def _event(self, event: Event) -> None:
        if event.code == EventCode.CONTEXT_FULL:
            self.alive = False  # no fault: the text has outgrown the draft
            return
        try:
            name = EventCode(event.code).name.lower().replace("_", " ")
        except ValueError:
            name = f"event {event.code}"
        raise DeviceError(f"device reports {name} (0x{event.info0:x}, 0x{event.info1:x})")

    def _tree(self, most: int, max_depth: int) -> Tree:
        nodes = self._mirror.best(most, max_depth)
        place = {id(self._mirror.root): -1}
        for index, node in enumerate(nodes):
            place[id(node)] = index
        return Tree(
            tokens=tuple(_token(node) for node in nodes),
            parents=tuple(place[id(node.parent)] for node in nodes),
            probabilities=tuple(self._mirror.probability(node) for node in nodes),
        )


def _token(node: MirrorNode) -> int:
    assert node.token is not None, "only the root may have no token"
    return node.token
