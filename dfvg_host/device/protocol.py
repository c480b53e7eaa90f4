"""What the decode loop knows of a draft device: messages in, messages out.

The emulator, the RTL in Verilator and a card all satisfy `DraftDevice`. Rings, mailboxes, CRCs and
DMA are below this level; a device hands up decoded messages in the order they were produced.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from dfvg_hw.config import DeviceConfig
from dfvg_hw.errors import DeviceError
from dfvg_hw.messages import (
    ABI_VERSION,
    IMAGE_VERSION,
    MESSAGE_VERSION,
    Capability,
    Command,
    Message,
    PassDone,
)

__all__ = ["DeviceInfo", "DraftDevice", "VirtualTimeDevice", "check_versions"]


@dataclass(frozen=True)
class DeviceInfo:
    """Who the device is; fixed while it's open.

    Parameters
    ----------
    name : str
        ``emulator``, ``rtl`` or a card's name.
    config : DeviceConfig
        The shape it was built with.
    image_digest : str
        Digest of the draft image that is loaded, "" if none.
    output_vocabulary : int
        Channels of the draft's head: the number of different tokens it can propose.
    capabilities : Capability
        What it can do.
    abi_version, message_version, image_version : int
        Versions it was built with; see :func:`check_versions`.
    """

    name: str
    config: DeviceConfig
    image_digest: str
    output_vocabulary: int
    capabilities: Capability
    abi_version: int = ABI_VERSION
    message_version: int = MESSAGE_VERSION
    image_version: int = IMAGE_VERSION

    @property
    def config_hash(self) -> int:
        """Hash that the device's ID register and the image's header must hold."""
        return self.config.config_hash


@runtime_checkable
class DraftDevice(Protocol):
    """A draft device, on wall-clock or on virtual time.

    A device never calls back and never blocks longer than a link round trip. Everything it knows
    about a sequence arrives by `send` and leaves by `poll`; if the device dies, decoding goes on
    without it.
    """

    @property
    def info(self) -> DeviceInfo:
        """Who the device is."""
        ...

    def send(self, command: Command) -> None:
        """Post a command. It takes effect in order, without an answer from this call.

        Raises
        ------
        DeviceError
            If the link is lost.
        ProtocolError
            If a value doesn't fit its field.
        """
        ...

    def poll(self, timeout: float = 0.0) -> list[Message]:
        """Return the messages that have become visible since the last call, in order.

        Devices on wall-clock time wait up to `timeout` seconds for the first; devices on virtual
        time never wait and show messages at pass boundaries.

        Raises
        ------
        DeviceError
            If the link is lost.
        ProtocolError
            If a line is corrupt.
        """
        ...

    def close(self) -> None:
        """Give up the device; further calls raise `DeviceError`. Closing twice is harmless."""
        ...


@runtime_checkable
class VirtualTimeDevice(DraftDevice, Protocol):
    """A device whose passes run only when asked for.

    The caller owns the clock: it asks what the next pass costs, decides whether the pass fits into
    the time that has gone by, and runs it. Costs come from the cycle model in every such device,
    so that all of them give the same timeline.
    """

    def next_pass_cycles(self) -> int | None:
        """Cycles of the next pass by the cycle model, None if the device has nothing to do."""
        ...

    def run_pass(self) -> PassDone:
        """Run one whole pass and return its record, which `poll` will show as well.

        Raises
        ------
        DeviceError
            If there is nothing to do, or the device failed.
        """
        ...


def check_versions(info: DeviceInfo, config: DeviceConfig | None = None) -> None:
    """Refuse a device built with other versions, or with another config than `config`.

    Raises
    ------
    DeviceError
        Naming what differs and both values.
    """
    for what, found, wanted in (
        ("ABI version", info.abi_version, ABI_VERSION),
        ("message version", info.message_version, MESSAGE_VERSION),
        ("image version", info.image_version, IMAGE_VERSION),
    ):
        if found != wanted:
            raise DeviceError(f"device {info.name} has {what} {found}: this host needs {wanted}")
    if config is not None and info.config_hash != config.config_hash:
        raise DeviceError(
            f"device {info.name} has config hash 0x{info.config_hash:08x}: "
            f"config {config.name!r} needs 0x{config.config_hash:08x}"
        )
