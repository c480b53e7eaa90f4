"""Drivers and monitors for Amaranth streams whose ports are flattened to NAME__valid and so on.

All of them sample and drive right after a rising edge: what they read is the state before that
edge, what they write is seen by the next one (`tests/sim` pins this down). So the order in which
they run within a cycle doesn't matter.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import cocotb
from cocotb.task import Task
from cocotb.triggers import Event, RisingEdge

from sim.cocotb.layout import Codec
from sim.cocotb.profiles import profile

__all__ = ["Monitor", "Sink", "Source", "StreamPort"]


def _handle(dut: Any, name: str) -> Any:
    """Return the handle of a port, or None; handles are looked up once, by full name."""
    return getattr(dut, name, None)


class StreamPort:
    """The handles of one stream.

    Parameters
    ----------
    dut : handle
        The top.
    name : str
        The member's name in the component; nested members are joined by `__`.
    shape : ShapeLike
        Shape of the payload.
    domain : str
        Clock domain; `sync` has the ports `clk` and `rst`, any other DOMAIN_clk and DOMAIN_rst.

    Raises
    ------
    AttributeError
        If the top has no such stream, or its payload has another width.
    """

    def __init__(self, dut: Any, name: str, shape: Any, domain: str = "sync") -> None:
        self.name = name
        self.codec = Codec(shape)
        self.valid = _handle(dut, f"{name}__valid")
        self.ready = _handle(dut, f"{name}__ready")
        self.payload = _handle(dut, f"{name}__payload")
        prefix = "" if domain == "sync" else f"{domain}_"
        self.clk = _handle(dut, f"{prefix}clk")
        self.rst = _handle(dut, f"{prefix}rst")
        if self.clk is None or (self.valid is None and self.ready is None):
            raise AttributeError(f"the top has no stream {name!r} in domain {domain!r}")
        if self.payload is not None and len(self.payload) != self.codec.width:
            width = len(self.payload)
            raise AttributeError(f"{name}: payload of {width} bits, shape of {self.codec.width}")

    def in_reset(self) -> bool:
        """Whether reset is asserted."""
        return self.rst is not None and bool(int(self.rst.value))

    def is_valid(self) -> bool:
        """Whether an item is offered (always, if the stream has no `valid` port)."""
        return self.valid is None or bool(int(self.valid.value))

    def is_ready(self) -> bool:
        """Whether an item would be accepted (always, if the stream has no `ready` port)."""
        return self.ready is None or bool(int(self.ready.value))

    def bits(self) -> int:
        """Return the payload's bits."""
        return 0 if self.payload is None else int(self.payload.value)


class _Agent:
    """A coroutine that runs once a cycle until it's stopped."""

    def __init__(self, port: StreamPort) -> None:
        self.port = port
        self._task: Task[None] = cocotb.start_soon(self._run())

    async def _run(self) -> None:
        edge = RisingEdge(self.port.clk)
        while True:
            await edge
            self._cycle()

    def _cycle(self) -> None:
        raise NotImplementedError

    def stop(self) -> None:
        """End the coroutine."""
        self._task.cancel()


class Source(_Agent):
    """Offers queued items to the design.

    Between items the payload carries random bits, so that a design which looks at it without
    `valid` gets caught.

    Parameters
    ----------
    port : StreamPort
        A stream that the design receives.
    rng : random.Random
        For the profile and the junk between items.
    idle : str
        Profile; see `sim.cocotb.profiles`.
    """

    def __init__(self, port: StreamPort, rng: random.Random, idle: str = "none") -> None:
        self._rng = rng
        self._queue: deque[int] = deque()
        self._offered = False
        self._empty = Event()
        self._profile: Iterator[bool] = profile(idle, rng)
        self.sent = 0
        port.valid.value = 0
        super().__init__(port)

    def set_idle(self, name: str) -> None:
        """Change the idle profile."""
        self._profile = profile(name, self._rng)

    def put(self, item: Any) -> None:
        """Queue an item."""
        self._queue.append(self.port.codec.pack(item))
        self._empty.clear()

    def extend(self, items: Iterable[Any]) -> None:
        """Queue items."""
        for item in items:
            self.put(item)

    def clear(self) -> None:
        """Forget what is queued; an offered item is withdrawn, as only a reset may do."""
        self._queue.clear()
        self._withdraw()
        self._empty.set()

    @property
    def pending(self) -> int:
        """Items not yet accepted."""
        return len(self._queue)

    async def drained(self) -> None:
        """Wait until every queued item has been accepted."""
        if self._queue:
            await self._empty.wait()

    def _withdraw(self) -> None:
        self._offered = False
        self.port.valid.value = 0

    def _cycle(self) -> None:
        port = self.port
        if port.in_reset():
            self._withdraw()
            return
        if self._offered and port.is_ready():
            self._queue.popleft()
            self.sent += 1
            self._offered = False
            if not self._queue:
                self._empty.set()
        if self._offered:
            return
        go = next(self._profile)
        if go and self._queue:
            self._offered = True
            port.valid.value = 1
            if port.payload is not None:
                port.payload.value = self._queue[0]
        else:
            port.valid.value = 0
            if port.payload is not None:
                port.payload.value = self._rng.getrandbits(port.codec.width)


class Monitor(_Agent):
    """Sees every item that crosses a stream, whoever drives it.

    Parameters
    ----------
    port : StreamPort
        Any stream of the top.
    callback : callable
        Receives each item, unpacked.
    """

    def __init__(self, port: StreamPort, callback: Callable[[Any], None]) -> None:
        self._callback = callback
        self.items = 0
        self.stalls = 0
        super().__init__(port)

    def _cycle(self) -> None:
        port = self.port
        if port.in_reset() or not port.is_valid():
            return
        if not port.is_ready():
            self.stalls += 1
            return
        self.items += 1
        self._callback(port.codec.unpack(port.bits()))


class Sink(_Agent):
    """Accepts items from the design, with back-pressure.

    Parameters
    ----------
    port : StreamPort
        A stream that the design sends.
    rng : random.Random
        For the profile.
    backpressure : str
        Profile; see `sim.cocotb.profiles`.
    """

    def __init__(self, port: StreamPort, rng: random.Random, backpressure: str = "none") -> None:
        self._rng = rng
        self._profile: Iterator[bool] = profile(backpressure, rng)
        self._paused = False
        self.received: deque[Any] = deque()
        self.monitor = Monitor(port, self.received.append)
        port.ready.value = 0
        super().__init__(port)

    def set_backpressure(self, name: str) -> None:
        """Change the back-pressure profile."""
        self._profile = profile(name, self._rng)

    def pause(self, paused: bool = True) -> None:
        """Accept nothing until called with False."""
        self._paused = paused

    def _cycle(self) -> None:
        self.port.ready.value = int(next(self._profile) and not self._paused)

    def stop(self) -> None:
        """End the coroutines."""
        super().stop()
        self.monitor.stop()
