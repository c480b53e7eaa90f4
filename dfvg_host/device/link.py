"""The host's side of the link: rings, mailboxes, image loading, over an abstract access to a card.

`HostLink` knows lines and tags, `CardRegisters` the registers; how bytes get to a card is a
`CardAccess`: the simulated card's ports, or a driver's mapped BARs and DMA buffer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np

from dfvg_host.compile.image import DraftImage
from dfvg_host.device.card_registers import LOST, CardAccess, CardRegisters
from dfvg_host.device.checksum import block_crc
from dfvg_hw.config import DeviceConfig
from dfvg_hw.errors import DeviceError
from dfvg_hw.messages import (
    LINE_BYTES,
    Capability,
    Command,
    Event,
    EventCode,
    LoadLine,
    Message,
    Open,
    context_hash,
    decode,
    encode,
    next_tag,
    open_line,
    seal_line,
)
from dfvg_hw.registers import MAILBOX_LINES, mailbox_offset, register

__all__ = ["CardAccess", "HostLink"]

RING_LINES = 1024
COMMAND_LINES = 64
CHUNK_BYTES = 2 << 20
WATCHDOG_CYCLES = 1 << 20
"""Cycles that a pass may stand still: 5 ms at 200 MHz, far above any wait for memory."""

_PAGE = 4096
_MessageT = TypeVar("_MessageT", bound=Message)


class HostLink(CardRegisters):
    """A card that speaks the tree protocol.

    Parameters
    ----------
    access : CardAccess
    config : DeviceConfig
        What the card must have been built with.
    ring_lines : int
        Size of the device-to-host ring, a power of two from 64. The device starts no pass unless
        all that it can lead to fits.

    Raises
    ------
    DeviceError
        If there is no card, or one with other versions, of another config or without rings.
    """

    def __init__(
        self, access: CardAccess, config: DeviceConfig, ring_lines: int = RING_LINES
    ) -> None:
        super().__init__(access, config)
        self._ring_lines, self._dma = ring_lines, access.dma
        self._ring_index, self._ring_tag = 0, 1
        self._sent, self._sent_tag = 0, 1
        self._mailed = 0
        self._mail_tags = [1] * config.max_seqs
        self._token_user: int | None = None
        self._inbox: list[Message] = []
        self._command_at = ring_lines * LINE_BYTES
        self._token_at = self._command_at + COMMAND_LINES * LINE_BYTES
        self._chunk_at = -(-(self._token_at + self._token_room()) // _PAGE) * _PAGE
        if len(self._dma) < self._chunk_at + CHUNK_BYTES:
            raise DeviceError(
                f"DMA buffer has {len(self._dma)} bytes: at least {self._chunk_at + CHUNK_BYTES}"
            )
        self._set_up()

    def _token_room(self) -> int:
        """Bytes for the tokens of one OPEN: contexts that are too long are sent all the same."""
        return 4 * (2 * self._config.max_ctx + 16384)

    # ---- opening --------------------------------------------------------------------------------

    def _set_up(self) -> None:
        self.soft_reset()
        # Not less than the device may write of an old ring: blank lines have tag 0.
        self._dma[: self._token_at] = bytes(self._token_at)
        base = self._access.dma_base
        for name, at, lines in (
            ("ring", 0, self._ring_lines),
            ("command", self._command_at, COMMAND_LINES),
        ):
            # A ring without lines is at rest: index and base can't be taken for those of the old.
            self.write(f"{name}_lines", 0)
            self._access.write_register(register(f"{name}_lo").address, (base + at) & LOST)
            self._access.write_register(register(f"{name}_hi").address, (base + at) >> 32)
            self.write("ring_consumed" if name == "ring" else "command_produced", 0)
            self.write(f"{name}_lines", lines)
        self.write("watchdog", WATCHDOG_CYCLES)

    def soft_reset(self) -> None:
        """Stop whatever runs and forget all sequences; image and rings stay.

        Raises
        ------
        DeviceError
            If the device doesn't come to rest.
        """
        self.control(soft_reset=1)
        for _ in range(1000):
            if not self.field("status", "resetting"):
                self.clear_errors()
                return
        raise DeviceError("device does not come to rest after a soft reset")

    # ---- to the device --------------------------------------------------------------------------

    def send(self, command: Command) -> None:
        """Post a command."""
        if isinstance(command, Open):
            self._place_tokens(command)
            digest = context_hash(command.tokens)
            self._post([command.line(self._access.dma_base + self._token_at, digest)])
            self._token_user = self._sent
            return
        lines: list[Message] = list(command.lines())
        if len(lines) <= MAILBOX_LINES and command.seq < self._config.max_seqs and self._ready():
            self._mail(command.seq, lines)
        else:
            self._post(lines)

    def _ready(self) -> bool:
        """Whether mailboxes are empty and nothing in the command ring could be overtaken."""
        return (
            self.read("mailbox_consumed") == self._mailed
            and self.read("command_consumed") == self._sent
        )

    def _mail(self, seq: int, lines: list[Message]) -> None:
        for line in lines:
            tag = self._mail_tags[seq]
            self._access.write_mailbox(mailbox_offset(seq, tag), seal_line(encode(line), tag))
            self._mail_tags[seq] = next_tag(tag)
            self._mailed = (self._mailed + 1) & LOST

    def _post(self, lines: list[Message]) -> None:
        for line in lines:
            self._until(
                lambda: (self._sent - self.read("command_consumed")) & LOST < COMMAND_LINES,
                "takes no commands",
            )
            at = self._command_at + self._sent % COMMAND_LINES * LINE_BYTES
            self._dma[at : at + LINE_BYTES] = seal_line(encode(line), self._sent_tag)
            self._sent = (self._sent + 1) & LOST
            self._sent_tag = next_tag(self._sent_tag)
        self.write("command_produced", self._sent)

    def _place_tokens(self, command: Open) -> None:
        data = np.asarray(command.tokens, "<u4").tobytes()
        if len(data) > self._token_room():
            raise DeviceError(
                f"context has {len(command.tokens)} tokens: at most {self._token_room() // 4}"
            )
        if self._token_user is not None:
            self._until(
                lambda: self.read("command_consumed") == self._sent, "does not fetch the tokens"
            )
        self._dma[self._token_at : self._token_at + len(data)] = data

    def settle(self) -> None:
        """Wait until everything posted has been carried out."""
        self._until(
            lambda: (
                self.read("command_consumed") == self._sent
                and self.read("mailbox_consumed") == self._mailed
            ),
            "does not carry out its commands",
        )

    def load(self, image: DraftImage, progress: Callable[[int, int], None] | None = None) -> None:
        """Copy an image into device memory and set the model registers; `progress(done, total)`.

        Raises
        ------
        DeviceError
            If the device can't run such an image, or a block arrives damaged.
        """
        if image.dims.out_vocab < image.dims.vocab:
            self.require(Capability.TRUNCATED_HEAD)
        total = sum(len(data) for _, data in image.writes())
        done = number = 0
        for address, data in image.writes():
            for start in range(0, len(data), CHUNK_BYTES):
                chunk = data[start : start + CHUNK_BYTES]
                number += 1
                self._load_block(number, address + start, chunk)
                done += len(chunk)
                if progress is not None:
                    progress(done, total)
        for name, value in sorted(image.registers.items()):
            if name != "model_program_length":
                self.write(name, value)
        self.write("model_program_length", image.registers["model_program_length"])

    def _load_block(self, number: int, address: int, data: np.ndarray) -> None:
        size = -(-len(data) // LINE_BYTES) * LINE_BYTES
        block = np.zeros(size, np.uint8)
        block[: len(data)] = data
        self._dma[self._chunk_at : self._chunk_at + size] = block.data
        crc = block_crc(block)
        self._post(
            [
                LoadLine(
                    command=number,
                    address=self._access.dma_base + self._chunk_at,
                    dest=address,
                    size=size,
                    crc=crc,
                )
            ]
        )
        event = self.expect(Event)
        if event.code != EventCode.LOAD_DONE or event.info0 != number:
            raise DeviceError(
                f"block {number} of the image arrived damaged: device reports "
                f"{EventCode(event.code).name}, CRC 0x{event.info1:08x} instead of 0x{crc:08x}"
            )

    # ---- from the device ------------------------------------------------------------------------

    def poll(self) -> list[Message]:
        """Return the messages that have come since the last call.

        Raises
        ------
        ProtocolError
            If a line is corrupt.
        """
        self._fetch()
        messages, self._inbox = self._inbox, []
        return messages

    def _fetch(self) -> bool:
        """Read the ring up to the first line that hasn't come; whether there was any."""
        begin = self._ring_index
        while True:
            at = self._ring_index % self._ring_lines * LINE_BYTES
            payload = open_line(self._dma[at : at + LINE_BYTES], self._ring_tag)
            if payload is None:
                break
            self._inbox.append(decode(payload))
            self._ring_index = (self._ring_index + 1) & LOST
            self._ring_tag = next_tag(self._ring_tag)
        if self._ring_index == begin:
            return False
        self.write("ring_consumed", self._ring_index)
        return True

    def expect(self, kind: type[_MessageT]) -> _MessageT:
        """Wait for the next message and return it.

        Raises
        ------
        DeviceError
            If none comes, or one of another kind.
        """
        self._until(lambda: bool(self._inbox) or self._fetch(), f"sends no {kind.__name__}")
        message = self._inbox.pop(0)
        if not isinstance(message, kind):
            raise DeviceError(f"device sent {message}: {kind.__name__} was expected")
        return message

    def _until(self, condition: Callable[[], bool], complaint: str) -> None:
        for _ in range(self._access.patience):
            if condition():
                return
            self._access.wait()
        if condition():
            return
        errors = ", ".join(self.errors()) or "none"
        raise DeviceError(f"device {complaint} (error bits: {errors})")

    def close(self) -> None:
        """Stop the device and give it up."""
        self.control()
        self._access.close()
