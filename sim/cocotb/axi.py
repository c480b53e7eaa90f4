"""An AXI4 memory for benches that also judges the manager in front of it.

    memory = AxiMemory(dut, "axi", 1 << 16, rng("memory"), latency=(4, 90), reads="random")
    memory.data[0:4] = b"dfvg"
    ...
    assert memory.reads == 12

Every rule of `dfvg_hw.memory.axi` is checked in every cycle and breaking one fails the test at
once. Channels that the design doesn't have are left out.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import cocotb
from cocotb.triggers import RisingEdge

from sim.cocotb.checkers import ProtocolViolation
from sim.cocotb.profiles import profile

__all__ = ["AxiMemory", "Burst"]

AXI_LINE = 4096
INCR = 1
OKAY, SLVERR = 0, 2


@dataclass
class Burst:
    """One accepted burst.

    Parameters
    ----------
    address : int
        Byte address.
    beats : int
    due : int
        Cycle from which the memory may answer.
    data : list of bytes
        Words written so far.
    """

    address: int
    beats: int
    due: int
    data: list[bytes] = field(default_factory=list)


class _Channel:
    """Handles of one channel, and the check that what is offered stays until accepted."""

    def __init__(self, dut: Any, prefix: str, name: str, fields: tuple[str, ...]) -> None:
        self.name = name
        self.valid = getattr(dut, f"{prefix}__{name}valid")
        self.ready = getattr(dut, f"{prefix}__{name}ready")
        self.fields = {item: getattr(dut, f"{prefix}__{name}{item}") for item in fields}
        self._held: dict[str, int] | None = None

    def sample(self) -> dict[str, int] | None:
        """Return what the manager transfers in the cycle just passed, or None."""
        offered = None
        if int(self.valid.value):
            offered = {item: int(handle.value) for item, handle in self.fields.items()}
        if self._held is not None and offered != self._held:
            raise ProtocolViolation(f"{self.name}: {self._held} became {offered} before accepted")
        accepted = offered is not None and int(self.ready.value)
        self._held = None if accepted else offered
        return offered if accepted else None

    def reset(self) -> None:
        self._held = None


class AxiMemory:
    """Memory behind the AXI4 port `prefix` of a top.

    Parameters
    ----------
    dut : handle
    prefix : str
        Name of the port's member in the component.
    size : int
        Bytes of memory, from address 0.
    rng : random.Random
        For latencies and profiles.
    latency : tuple of int
        Fewest and most cycles from an accepted address to the first word, or from the last word
        written to the response.
    reads, addresses, writes : str
        Profiles (`sim.cocotb.profiles`): when read data may come, addresses be accepted, and write
        data be accepted.
    must_accept : bool
        Fail if the manager ever makes read data wait.

    Attributes
    ----------
    data : bytearray
    bad_reads, bad_writes : set of int
        4 KiB line numbers that answer with an error.
    read_log, write_log : list of `Burst`
    reads, writes : int
        Words transferred.
    """

    def __init__(
        self,
        dut: Any,
        prefix: str,
        size: int,
        rng: random.Random,
        *,
        latency: tuple[int, int] = (1, 1),
        reads: str = "none",
        addresses: str = "none",
        writes: str = "none",
        must_accept: bool = True,
    ) -> None:
        self.data = bytearray(size)
        self.bad_reads: set[int] = set()
        self.bad_writes: set[int] = set()
        self.read_log: list[Burst] = []
        self.write_log: list[Burst] = []
        self.reads = self.writes = self.cycle = 0
        self._dut, self._rng, self._latency = dut, rng, latency
        self._must_accept, self._frozen = must_accept, False
        self._profiles = {
            "r": profile(reads, rng),
            "a": profile(addresses, rng),
            "w": profile(writes, rng),
        }
        address = ("addr", "len", "size", "burst")

        def get(name: str) -> Any:
            return getattr(dut, f"{prefix}__{name}")

        self._ar = self._aw = None
        if hasattr(dut, f"{prefix}__arvalid"):
            self._ar = _Channel(dut, prefix, "ar", address)
            self._r = {n: get(f"r{n}") for n in ("valid", "ready", "data", "resp", "last")}
            self._bytes = len(self._r["data"]) // 8
        if hasattr(dut, f"{prefix}__awvalid"):
            self._aw = _Channel(dut, prefix, "aw", address)
            self._w = _Channel(dut, prefix, "w", ("data", "strb", "last"))
            self._b = {n: get(f"b{n}") for n in ("valid", "ready", "resp")}
            self._bytes = len(self._w.fields["data"]) // 8
        self._forget()
        self._drive_idle()
        self._task = cocotb.start_soon(self._run())

    @property
    def pending(self) -> int:
        """Bursts accepted and not answered in full."""
        return len(self._read_queue) + len(self._write_queue) + len(self._answers)

    def stop(self) -> None:
        """End the model."""
        self._task.cancel()

    def freeze(self, frozen: bool = True) -> None:
        """Give no read data any more, until called with False."""
        self._frozen = frozen

    def _forget(self) -> None:
        self._read_queue: deque[Burst] = deque()
        self._write_queue: deque[Burst] = deque()
        self._early: deque[dict[str, int]] = deque()  # data before their address
        self._answers: deque[tuple[int, int]] = deque()  # due cycle, response
        self._beat = 0
        for channel in (self._ar, self._aw, self._w if self._aw else None):
            if channel is not None:
                channel.reset()

    def _drive_idle(self) -> None:
        if self._ar is not None:
            self._ar.ready.value = 0
            self._r["valid"].value = 0
        if self._aw is not None:
            self._aw.ready.value = self._w.ready.value = self._b["valid"].value = 0

    async def _run(self) -> None:
        edge = RisingEdge(self._dut.clk)
        while True:
            await edge
            self.cycle += 1
            if int(self._dut.rst.value):
                self._forget()
                self._drive_idle()
                continue
            if self._ar is not None:
                self._take_read(self._ar)
                self._give_data()
            if self._aw is not None:
                self._take_write(self._aw)
                self._give_answer()

    def _accept(self, request: dict[str, int], what: str) -> Burst:
        """Check an address beat."""
        beats, address = request["len"] + 1, request["addr"]
        size = beats * self._bytes
        if 1 << request["size"] != self._bytes or request["burst"] != INCR:
            raise ProtocolViolation(f"{what} {request}: not an INCR burst of whole words")
        if address % self._bytes:
            raise ProtocolViolation(f"{what} {address:#x}: not aligned to the word")
        if address // AXI_LINE != (address + size - 1) // AXI_LINE:
            raise ProtocolViolation(f"{what} {address:#x} of {size} bytes crosses a 4 KiB line")
        if address + size > len(self.data):
            raise ProtocolViolation(f"{what} {address:#x} of {size} bytes: beyond the memory")
        return Burst(address, beats, self.cycle + self._rng.randint(*self._latency))

    def _take_read(self, channel: _Channel) -> None:
        request = channel.sample()
        if request is not None:
            burst = self._accept(request, "read")
            self._read_queue.append(burst)
            self.read_log.append(burst)
        channel.ready.value = int(next(self._profiles["a"]))

    def _give_data(self) -> None:
        r = self._r
        waiting = False
        if int(r["valid"].value):
            if int(r["ready"].value):
                self.reads += 1
                self._beat += 1
                if self._beat == self._read_queue[0].beats:
                    self._read_queue.popleft()
                    self._beat = 0
            else:
                waiting = True
                if self._must_accept:
                    raise ProtocolViolation("r: the manager makes read data wait")
        if waiting:
            return
        go = next(self._profiles["r"]) and not self._frozen
        if not go or not self._read_queue or self._read_queue[0].due > self.cycle:
            r["valid"].value = 0
            r["data"].value = self._rng.getrandbits(8 * self._bytes)
            return
        burst = self._read_queue[0]
        start = burst.address + self._beat * self._bytes
        bad = burst.address // AXI_LINE in self.bad_reads
        r["valid"].value = 1
        r["data"].value = int.from_bytes(self.data[start : start + self._bytes], "little")
        r["resp"].value = SLVERR if bad else OKAY
        r["last"].value = int(self._beat + 1 == burst.beats)

    def _take_write(self, channel: _Channel) -> None:
        request = channel.sample()
        if request is not None:
            burst = self._accept(request, "write")
            self._write_queue.append(burst)
            self.write_log.append(burst)
        item = self._w.sample()
        if item is not None:
            self._early.append(item)
        while self._early and self._write_queue:
            self._store(self._early.popleft())
        channel.ready.value = int(next(self._profiles["a"]))
        self._w.ready.value = int(next(self._profiles["w"]))

    def _store(self, item: dict[str, int]) -> None:
        burst = self._write_queue[0]
        if item["strb"] != (1 << self._bytes) - 1:
            raise ProtocolViolation(f"w: strobes {item['strb']:#x} are not all high")
        final = len(burst.data) + 1 == burst.beats
        if item["last"] != final:
            raise ProtocolViolation(f"w: wlast is {item['last']} in word {len(burst.data)}")
        word = item["data"].to_bytes(self._bytes, "little")
        start = burst.address + len(burst.data) * self._bytes
        burst.data.append(word)
        bad = burst.address // AXI_LINE in self.bad_writes
        if not bad:
            self.data[start : start + self._bytes] = word
        self.writes += 1
        if final:
            self._write_queue.popleft()
            due = max(burst.due, self.cycle + self._rng.randint(*self._latency))
            self._answers.append((due, SLVERR if bad else OKAY))

    def _give_answer(self) -> None:
        b = self._b
        if int(b["valid"].value):
            if not int(b["ready"].value):
                return
            self._answers.popleft()
        ready = self._answers and self._answers[0][0] <= self.cycle
        b["valid"].value = int(bool(ready))
        if ready:
            b["resp"].value = self._answers[0][1]
