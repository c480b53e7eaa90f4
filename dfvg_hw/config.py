"""The one description of a device, shared by hardware, emulator, compiler and driver.

A `DeviceConfig` is frozen and validated; its `config_hash` sits in an ID register and is checked
when a device is opened, so host code can never talk to hardware of another shape.

"Word" always means one memory-bus word of `bus_bytes` bytes, "group" the 64 activation elements
that share one power-of-two scale, "page" the 64 tokens that share one KV page.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass, field

from .errors import ConfigError

__all__ = [
    "GROUP",
    "LANES_PER_CELL",
    "PAGE",
    "PRESETS",
    "DeviceConfig",
    "LinkModel",
    "MemoryModel",
    "get_config",
]

GROUP = 64
"""Elements of an activation vector that share one power-of-two scale."""
PAGE = 64
"""Tokens in one page of the KV cache."""
LANES_PER_CELL = 8
"""int8 multipliers of one array cell: the longest chain of packed products that can't overflow."""


def _require(condition: bool, field_name: str, value: object, accepted: str) -> None:
    if not condition:
        raise ConfigError(f"config field {field_name} is {value!r}: {accepted}")


@dataclass(frozen=True, kw_only=True)
class MemoryModel:
    """Timing of the device memory that the cycle model and the simulated card assume.

    Parameters
    ----------
    latency_cycles : int
        Core cycles from an accepted read address to its first data word.
    stall_percent : int
        Chance in percent, per cycle, that the memory delivers no word although it could (refresh,
        bank conflicts).
    outstanding : int
        Read bursts in flight that the memory accepts.
    """

    latency_cycles: int = 64
    stall_percent: int = 5
    outstanding: int = 16

    def __post_init__(self) -> None:
        _require(
            1 <= self.latency_cycles <= 4096,
            "memory.latency_cycles",
            self.latency_cycles,
            "1 to 4096 cycles",
        )
        _require(
            0 <= self.stall_percent <= 90,
            "memory.stall_percent",
            self.stall_percent,
            "0 to 90 percent",
        )
        _require(
            1 <= self.outstanding <= 64, "memory.outstanding", self.outstanding, "1 to 64 bursts"
        )


@dataclass(frozen=True, kw_only=True)
class LinkModel:
    """Timing of the host link in virtual time.

    Parameters
    ----------
    latency_ns : int
        One-way latency of a posted write, nanoseconds.
    """

    latency_ns: int = 1000

    def __post_init__(self) -> None:
        _require(0 <= self.latency_ns <= 10**9, "link.latency_ns", self.latency_ns, "0 to 1e9 ns")


@dataclass(frozen=True, kw_only=True)
class DeviceConfig:
    """Shape of one DFVG device.

    Parameters
    ----------
    name : str
        Name shown to users; not part of the hash.
    bus_bytes : int
        Bytes of one memory word and of one weight word of the array (8, 16, 32 or 64).
    rows : int
        Hardware rows: tree nodes or catch-up tokens that share one pass over the weights (1 to 16).
    lanes : int
        Elements that the vector unit handles per cycle and row (1, 2, 4 or 8).
    m_slots : int
        Uncommitted tree nodes that may hold KV at once (8 to 128).
    candidates : int
        Entries of the candidate table (nodes without KV): each tree slot owns `topk`.
    topk : int
        Children kept per expanded node (1 to 16).
    max_ctx : int
        Tokens of committed context per sequence; a multiple of the page size.
    max_seqs : int
        Sequences that may be open at once (1 to 16).
    vm_depth : int
        32-bit elements of vector memory per row.
    act_groups : int
        64-byte groups of activation memory per row.
    score_depth : int
        Attention scores kept per row (GQA group size x tokens of the padded context).
    acc_depth : int
        Accumulators per row for attention outputs (padded head size x GQA group size).
    prefetch_words : int
        Words of the prefetch FIFO; hides the memory latency if larger than latency plus a burst.
    prog_depth : int
        Instructions of program memory.
    addr_bits : int
        Bits of a device-memory byte address.
    clock_hz : int
        Core clock that turns cycles into seconds in virtual time.
    memory : MemoryModel
    link : LinkModel

    Raises
    ------
    ConfigError
        Naming the field, its value and the values accepted.
    """

    name: str = "custom"
    bus_bytes: int
    rows: int
    lanes: int
    m_slots: int
    candidates: int
    topk: int
    max_ctx: int
    max_seqs: int = 2
    vm_depth: int
    act_groups: int
    score_depth: int
    acc_depth: int
    prefetch_words: int
    prog_depth: int = 128
    addr_bits: int = 32
    clock_hz: int = 200_000_000
    memory: MemoryModel = field(default_factory=MemoryModel)
    link: LinkModel = field(default_factory=LinkModel)

    def __post_init__(self) -> None:
        _require(
            self.bus_bytes in (8, 16, 32, 64), "bus_bytes", self.bus_bytes, "8, 16, 32 or 64 bytes"
        )
        _require(1 <= self.rows <= 16, "rows", self.rows, "1 to 16 rows")
        _require(self.lanes in (1, 2, 4, 8), "lanes", self.lanes, "1, 2, 4 or 8")
        _require(
            8 <= self.m_slots <= 128 and self.m_slots >= self.rows,
            "m_slots",
            self.m_slots,
            "8 to 128, at least rows",
        )
        _require(1 <= self.topk <= 16, "topk", self.topk, "1 to 16 children")
        _require(
            self.candidates == self.m_slots * self.topk,
            "candidates",
            self.candidates,
            f"m_slots * topk = {self.m_slots * self.topk}, as each slot owns its children",
        )
        _require(
            self.max_ctx % PAGE == 0 and PAGE <= self.max_ctx <= 1 << 17,
            "max_ctx",
            self.max_ctx,
            "a multiple of 64, 64 to 131072",
        )
        _require(1 <= self.max_seqs <= 16, "max_seqs", self.max_seqs, "1 to 16 sequences")
        for name, low in (
            ("vm_depth", 128),
            ("act_groups", 4),
            ("score_depth", PAGE),
            ("acc_depth", GROUP),
            ("prefetch_words", 16),
            ("prog_depth", 32),
        ):
            value = getattr(self, name)
            _require(low <= value <= 1 << 20, name, value, f"{low} to 1048576")
        _require(self.vm_depth % 64 == 0, "vm_depth", self.vm_depth, "a multiple of 64")
        _require(24 <= self.addr_bits <= 40, "addr_bits", self.addr_bits, "24 to 40 bits")
        _require(
            1_000_000 <= self.clock_hz <= 2_000_000_000, "clock_hz", self.clock_hz, "1 MHz to 2 GHz"
        )

    @property
    def cells(self) -> int:
        """Cells of one array row (each multiplies 8 int8 lanes per cycle)."""
        return self.bus_bytes // LANES_PER_CELL

    @property
    def group_words(self) -> int:
        """Weight words of one 64-element group."""
        return GROUP // self.bus_bytes

    @property
    def seq_pages(self) -> int:
        """KV pages that one sequence may hold: its committed context plus its uncommitted tree."""
        return self.max_ctx // PAGE + -(-self.m_slots // PAGE)

    @property
    def pool_pages(self) -> int:
        """Physical KV pages shared by all sequences."""
        return self.seq_pages * self.max_seqs

    @property
    def macs_per_cycle(self) -> int:
        """int8 multiply-accumulates of the array per cycle."""
        return self.rows * self.bus_bytes

    def to_dict(self) -> dict[str, object]:
        """Plain dict of every field, as stored in image headers and build folders."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, object]) -> DeviceConfig:
        """Inverse of :meth:`to_dict`; unknown or missing fields raise :class:`ConfigError`."""
        known = {f.name for f in dataclasses.fields(cls)}
        unknown = sorted(set(data) - known)
        _require(
            not unknown,
            ", ".join(unknown),
            "present",
            f"known fields are {', '.join(sorted(known))}",
        )
        values = dict(data)
        try:
            if isinstance(values.get("memory"), dict):
                values["memory"] = MemoryModel(**values["memory"])  # type: ignore[arg-type]
            if isinstance(values.get("link"), dict):
                values["link"] = LinkModel(**values["link"])  # type: ignore[arg-type]
            return cls(**values)  # type: ignore[arg-type]
        except TypeError as error:
            raise ConfigError(f"config is incomplete: {error}") from None

    @property
    def config_hash(self) -> int:
        """32-bit hash of all fields that shape hardware or timing (everything but the name)."""
        data = self.to_dict()
        del data["name"]
        text = json.dumps(data, sort_keys=True, separators=(",", ":"))
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "little")

    def replace(self, **changes: object) -> DeviceConfig:
        """Copy with some fields changed; the name becomes ``custom`` unless given."""
        changes.setdefault("name", "custom")
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]


PRESETS: dict[str, DeviceConfig] = {
    preset.name: preset
    for preset in (
        DeviceConfig(
            name="tiny",
            bus_bytes=16,
            rows=4,
            lanes=2,
            m_slots=16,
            candidates=64,
            topk=4,
            max_ctx=256,
            vm_depth=1024,
            act_groups=64,
            score_depth=1536,
            acc_depth=256,
            prefetch_words=128,
        ),
        DeviceConfig(
            name="sim",
            bus_bytes=64,
            rows=8,
            lanes=4,
            m_slots=64,
            candidates=512,
            topk=8,
            max_ctx=2048,
            vm_depth=4096,
            act_groups=256,
            score_depth=8192,
            acc_depth=512,
            prefetch_words=512,
        ),
    )
}
"""``tiny`` suits unit tests and small FPGAs, ``sim`` is the core of the simulated card."""


def get_config(name: str) -> DeviceConfig:
    """Return the preset called `name`; unknown names raise `ConfigError` listing them all."""
    try:
        return PRESETS[name]
    except KeyError:
        raise ConfigError(
            f"unknown config {name!r}: accepted are {', '.join(sorted(PRESETS))}"
        ) from None
