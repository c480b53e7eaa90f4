"""A card as its registers show it: access, names, identity, errors and the watchdog's dump."""

from __future__ import annotations

from typing import Protocol

from dfvg_hw.config import DeviceConfig
from dfvg_hw.errors import DeviceError
from dfvg_hw.messages import ABI_VERSION, IMAGE_VERSION, MESSAGE_VERSION, Capability
from dfvg_hw.registers import DEVICE_ID, REGISTERS, register

__all__ = ["LOST", "CardAccess", "CardRegisters"]

LOST = 0xFFFFFFFF
"""What reads over a dead link give."""


class CardAccess(Protocol):
    """How to reach a card."""

    @property
    def dma(self) -> memoryview:
        """Host memory that the card can read and write, writable, 4 KiB aligned."""
        ...

    @property
    def dma_base(self) -> int:
        """Bus address of its first byte."""
        ...

    @property
    def patience(self) -> int:
        """Calls of `wait` without a new line after which the card is taken for dead."""
        ...

    def read_register(self, address: int) -> int:
        """Read 32 bits of BAR0; all ones if the link is lost."""
        ...

    def write_register(self, address: int, value: int) -> None:
        """Write 32 bits of BAR0."""
        ...

    def write_mailbox(self, offset: int, data: bytes) -> None:
        """Write to BAR2; the last dword must arrive last."""
        ...

    def wait(self) -> None:
        """Let time pass until a line may have come, or a while."""
        ...

    def close(self) -> None:
        """Give the card up."""
        ...


class CardRegisters:
    """BAR0 of a card that was built with the same versions and configuration as this host.

    Parameters
    ----------
    access : CardAccess
    config : DeviceConfig
        What the card must have been built with.

    Raises
    ------
    DeviceError
        If there is no card, or one with other versions, of another config or without rings.
    """

    def __init__(self, access: CardAccess, config: DeviceConfig) -> None:
        self._access, self._config = access, config
        self._check_identity()

    def read(self, name: str) -> int:
        """Read a register, or both halves of a 64-bit one."""
        try:
            address = register(name).address
        except KeyError:
            return self.read(f"{name}_lo") | self.read(f"{name}_hi") << 32
        value = self._access.read_register(address)
        if value == LOST and self._access.read_register(register("id").address) == LOST:
            raise DeviceError("link to the device is lost: its registers read as all ones")
        return value

    def write(self, name: str, value: int) -> None:
        """Write a register, or both halves of a 64-bit one."""
        if value >> 32:
            self.write(f"{name}_lo", value & LOST)
            self.write(f"{name}_hi", value >> 32)
            return
        self._access.write_register(register(name).address, value)

    def field(self, name: str, field: str) -> int:
        """Read a field of a register."""
        part = next(f for f in register(name).fields if f.name == field)
        return self.read(name) >> part.offset & ((1 << part.width) - 1)

    def errors(self) -> list[str]:
        """Names of the error bits that are set."""
        value = self.read("error")
        return [f.name for f in register("error").fields if value >> f.offset & 1]

    def dump(self) -> dict[str, int]:
        """What the watchdog kept when it last struck: the fields of the registers `dump_*`."""
        found = {}
        for entry in REGISTERS:
            if entry.name.startswith("dump_"):
                value, name = self.read(entry.name), entry.name.removeprefix("dump_")
                for part in entry.fields:
                    key = name if part.name == "value" else f"{name}.{part.name}"
                    found[key] = value >> part.offset & ((1 << part.width) - 1)
        return found

    def clear_errors(self) -> None:
        """Clear all error bits; the device drafts again."""
        self._access.write_register(register("error").address, LOST)

    def control(self, **fields: int) -> None:
        """Write the control register: fields by name, all others 0."""
        places = {f.name: f.offset for f in register("control").fields}
        self.write("control", sum(value << places[name] for name, value in fields.items()))

    def _check_identity(self) -> None:
        found = self._access.read_register(register("id").address)
        if found == LOST:
            raise DeviceError("no device: its registers read as all ones")
        if found != DEVICE_ID:
            raise DeviceError(f"device has id 0x{found:08x}: 0x{DEVICE_ID:08x} is expected")
        for field, wanted in (
            ("abi", ABI_VERSION),
            ("message", MESSAGE_VERSION),
            ("image", IMAGE_VERSION),
        ):
            version = self.field("versions", field)
            if version != wanted:
                raise DeviceError(f"device has {field} version {version}: this host needs {wanted}")
        own = self._config.config_hash
        other = self.read("config_hash")
        if other != own:
            raise DeviceError(
                f"device has config hash 0x{other:08x}: config {self._config.name!r} needs "
                f"0x{own:08x}"
            )
        self.capabilities = Capability(self.read("capabilities"))
        self.require(Capability.RING)

    def require(self, wanted: Capability) -> None:
        """Refuse a device that lacks any of these capabilities.

        Raises
        ------
        DeviceError
            Naming what is missing.
        """
        missing = [bit.name for bit in Capability if bit in wanted & ~self.capabilities]
        if missing:
            raise DeviceError(
                f"device lacks {', '.join(map(str, missing))}: its capability word is "
                f"0x{self.capabilities:08x}"
            )
