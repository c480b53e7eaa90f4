"""Python's view of the simulated card: ctypes around `card.cpp`."""

from __future__ import annotations

import ctypes
import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dfvg_hw.config import DeviceConfig, MemoryModel
from dfvg_hw.errors import DeviceError
from sim.verilate import VerilatorOptions, build_shared_library, cached_verilog

__all__ = ["CardOptions", "SimCard", "build_card"]

_HERE = Path(__file__).parent
_STEP = 2048


class _Timing(ctypes.Structure):
    _fields_ = (
        ("latency", ctypes.c_uint32),
        ("stall_percent", ctypes.c_uint32),
        ("outstanding", ctypes.c_uint32),
    )

    @classmethod
    def of(cls, model: MemoryModel) -> _Timing:
        """Return the model's figures."""
        return cls(model.latency_cycles, model.stall_percent, model.outstanding)


class _Options(ctypes.Structure):
    _fields_ = (
        ("memory_bytes", ctypes.c_uint64),
        ("host_bytes", ctypes.c_uint64),
        ("host_base", ctypes.c_uint64),
        ("seed", ctypes.c_uint64),
        ("memory", _Timing),
        ("host", _Timing),
        ("poison", ctypes.c_uint32),
    )


@dataclass(frozen=True)
class CardOptions:
    """What surrounds the design.

    Parameters
    ----------
    memory_bytes : int
        Device memory.
    host_bytes : int
        Host memory that the device can reach, from bus address `host_base`.
    memory : MemoryModel, optional
        Timing of device memory; the config's by default.
    host : MemoryModel
        Timing of host memory over the link.
    seed : int
        Of stalls and of what memory holds at power-up.
    trace : bool
        Build with waveforms.
    poison : bool
        Random values in everything without a reset, too.
    """

    memory_bytes: int
    host_bytes: int = 8 << 20
    host_base: int = 0x12_3450_0000
    memory: MemoryModel | None = None
    host: MemoryModel = field(
        default_factory=lambda: MemoryModel(latency_cycles=120, stall_percent=0, outstanding=8)
    )
    seed: int = 1
    trace: bool = False
    poison: bool = False


def build_card(config: DeviceConfig, trace: bool = False, poison: bool = False) -> Path:
    """Return the simulator of a config as a shared library, built if need be.

    Raises
    ------
    BuildError
        Without what a build needs.
    """

    def make() -> Any:
        from dfvg_hw.top import DfvgTop

        return DfvgTop(config)

    shape = json.dumps(config.to_dict() | {"name": "", "memory": None, "link": None})
    parameters = f"{shape} {config.config_hash} {config.memory.outstanding}"
    text = cached_verilog(make, "dfvg_top", parameters)
    return build_shared_library(
        text,
        "dfvg_top",
        [SimCard.HARNESS],
        defines={"BUS_BYTES": config.bus_bytes},
        options=VerilatorOptions(trace=trace, poison=poison, assertions=False),
    )


def _load(path: Path) -> Any:
    library = ctypes.CDLL(str(path))
    card, u32, u64, number = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_int
    text, data = ctypes.c_char_p, ctypes.c_char_p
    for name, result, arguments in (
        ("new", card, [ctypes.POINTER(_Options)]),
        ("delete", None, [card]),
        ("reset", None, [card]),
        ("run", u64, [card, u64, number]),
        ("now", u64, [card]),
        ("read", number, [card, u32, ctypes.POINTER(u32)]),
        ("write", number, [card, u32, u32]),
        ("mail", number, [card, u32, data, u32, u32]),
        ("bytes", ctypes.c_void_p, [card, number]),
        ("words", u64, [card, number, number]),
        ("violations", u64, [card]),
        ("violation", text, [card]),
        ("stall", None, [card, number, u64]),
        ("kill", None, [card, number, number]),
        ("fail", None, [card, number, number, u64]),
        ("trace", number, [card, text]),
    ):
        function = getattr(library, f"card_{name}")
        function.restype, function.argtypes = result, arguments
    return library


class SimCard:
    """A card with power on and nothing loaded. Also the host's access to it, see `CardAccess`.

    Parameters
    ----------
    config : DeviceConfig
    options : CardOptions
    library : Path, optional
        Another simulator than `build_card` makes.

    Attributes
    ----------
    dma : memoryview
        Host memory that the device can reach; its first byte has bus address `dma_base`.
    seconds, cycles : float, int
        Wall time spent in `run`, cycles simulated there.
    memory : memoryview
        Device memory, for tests: a host can't see it.
    """

    HARNESS = _HERE / "card.cpp"
    patience = 1 << 12
    """Calls of `wait` in which nothing comes, until the card is taken for dead."""

    def __init__(
        self, config: DeviceConfig, options: CardOptions, library: Path | None = None
    ) -> None:
        self.config, self.options = config, options
        self._library = _load(library or build_card(config, options.trace, options.poison))
        raw = _Options(
            options.memory_bytes,
            options.host_bytes,
            options.host_base,
            options.seed,
            _Timing.of(options.memory or config.memory),
            _Timing.of(options.host),
            options.poison,
        )
        self._card: int | None = self._library.card_new(ctypes.byref(raw))
        self.memory = self._view(0, options.memory_bytes)
        self.dma = self._view(1, options.host_bytes)
        self.dma_base = options.host_base
        self.seconds, self.cycles = 0.0, 0

    def _view(self, host: int, size: int) -> memoryview:
        address = self._library.card_bytes(self._card, host)
        return memoryview((ctypes.c_uint8 * size).from_address(address)).cast("B")

    def _call(self, name: str, *arguments: Any) -> Any:
        if self._card is None:
            raise DeviceError("simulated card is closed")
        return getattr(self._library, f"card_{name}")(self._card, *arguments)

    # ---- the host's access ------------------------------------------------------------------

    def read_register(self, address: int) -> int:
        """Read BAR0."""
        value = ctypes.c_uint32()
        if not self._call("read", address, ctypes.byref(value)):
            return 0xFFFFFFFF  # what a read over a dead link gives
        return value.value

    def write_register(self, address: int, value: int) -> None:
        """Write BAR0."""
        self._call("write", address, value & 0xFFFFFFFF)

    def write_mailbox(self, offset: int, data: bytes, beat: int | None = None) -> None:
        """Write BAR2 in one burst of beats of `beat` bytes, by default as wide as the bus."""
        self._call("mail", offset, data, len(data), beat or min(len(data), self.config.bus_bytes))

    def wait(self) -> None:
        """Let time pass until a line arrives in host memory, but no more than 2048 cycles."""
        self.run(_STEP, stop=True)

    def close(self) -> None:
        """Switch off."""
        if self._card is not None:
            self.memory = self.dma = memoryview(b"")
            self._library.card_delete(self._card)
            self._card = None

    # ---- what only a simulation can do --------------------------------------------------------

    def run(self, cycles: int, stop: bool = False) -> int:
        """Simulate; with `stop`, only until a line has been written to host memory.

        Returns
        -------
        int
            Cycles simulated.

        Raises
        ------
        DeviceError
            If the design has broken a rule of AXI.
        """
        start = time.perf_counter()
        done: int = self._call("run", cycles, int(stop))
        self.seconds += time.perf_counter() - start
        self.cycles += done
        self.check()
        return done

    @property
    def now(self) -> int:
        """Cycles since power-up."""
        return int(self._call("now"))

    @property
    def violations(self) -> tuple[int, str]:
        """Number of AXI rules broken, and the first."""
        return int(self._call("violations")), self._call("violation").decode()

    def check(self) -> None:
        """Raise `DeviceError` if a rule of AXI was broken."""
        count, first = self.violations
        if count:
            raise DeviceError(f"design broke the bus protocol {count} times, first: {first}")

    def reset(self) -> None:
        """Pull the reset line; memories keep their contents."""
        self._call("reset")

    def words(self, bus: str, written: bool) -> int:
        """Words that went over a bus (``memory`` or ``host``) so far."""
        return int(self._call("words", _bus(bus), int(written)))

    def stall(self, bus: str, cycles: int) -> None:
        """A bus takes and answers nothing for some cycles."""
        self._call("stall", _bus(bus), cycles)

    def kill(self, bus: str, dead: bool = True) -> None:
        """A bus stops answering; or starts again."""
        self._call("kill", _bus(bus), int(dead))

    def fail(self, bus: str, write: bool = False, after: int = 0) -> None:
        """Answer a word with an error: the one `after` this many others."""
        self._call("fail", _bus(bus), int(write), after)

    def corrupt(self, bus: str, at: int, mask: int = 1) -> None:
        """Flip bits of a byte of device or host memory, from its own first byte on.

        Raises
        ------
        ValueError
            If there is no such byte.
        """
        memory = (self.memory, self.dma)[_bus(bus)]
        if not 0 <= at < len(memory):
            raise ValueError(f"{bus} memory has {len(memory)} bytes: there is no byte {at}")
        memory[at] ^= mask

    def trace(self, path: Path | None) -> None:
        """Write a waveform from now on, or end it; needs `CardOptions.trace`."""
        if not self._call("trace", None if path is None else str(path).encode()):
            raise DeviceError(f"cannot write a waveform to {path}")


def _bus(name: str) -> int:
    return ("memory", "host").index(name)
