"""`DraftImage`: everything a device needs to run a draft, and its `.dfvg` file.

File: 8 bytes magic, u32 version, u32 header length, JSON header, padding to 64, then segments in
the header's order, each padded to 64. The header lists every segment's SHA-256; the image's
digest is taken over the header and stored in front of it, so that one hash names all contents.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfvg_host.files import replacing
from dfvg_host.quantize.integer import ModelDims
from dfvg_hw.config import DeviceConfig
from dfvg_hw.errors import ImageError
from dfvg_hw.isa import Instruction, disassemble
from dfvg_hw.messages import IMAGE_VERSION

from .layout import ALIGN, align

__all__ = ["MAGIC", "DraftImage", "Segment", "read_image", "write_image"]

MAGIC = b"DFVGIMG\0"
_FIXED = struct.Struct("<8sII32s")  # magic, version, header length, digest of the header
_MAX_HEADER = 1 << 26


@dataclass
class Segment:
    """Bytes at an address of device memory."""

    name: str
    address: int
    data: NDArray[np.uint8]


@dataclass
class DraftImage:
    """A compiled draft.

    Attributes
    ----------
    config : DeviceConfig
        The device it was compiled for; no other will do.
    dims : ModelDims
    registers : dict of str to int
        Model registers by their names in `dfvg_hw.registers`.
    segments : list of Segment
        Contents of device memory, ascending addresses. KV pages are not part of it.
    memory_bytes : int
        Device memory that weights and KV pages take together.
    context : int
        Committed tokens that a sequence may have: the config's and the model's limit.
    source : dict
        Where the weights came from (name, digest), for people.
    digest : str
        64 hexadecimal digits over all contents; "" until written or sealed.
    """

    config: DeviceConfig
    dims: ModelDims
    registers: dict[str, int]
    segments: list[Segment]
    memory_bytes: int
    context: int
    source: dict[str, Any] = field(default_factory=dict)
    digest: str = ""

    def segment(self, name: str) -> Segment:
        """The segment called `name`; `KeyError` if there's none."""
        for segment in self.segments:
            if segment.name == name:
                return segment
        raise KeyError(name)

    @property
    def program(self) -> list[Instruction]:
        """The program, decoded from its segment."""
        length = 16 * self.registers["model_program_length"]
        return disassemble(self.segment("program").data[:length].tobytes())

    @property
    def output_ids(self) -> NDArray[np.int32]:
        """Token id of each head channel."""
        data = self.segment("ids").data[: 4 * self.dims.out_vocab]
        return data.view("<u4").astype(np.int32)

    def writes(self) -> Iterator[tuple[int, NDArray[np.uint8]]]:
        """(address, bytes) of everything to load into device memory."""
        for segment in self.segments:
            yield segment.address, segment.data

    def seal(self) -> bytes:
        """Set the digest and return the encoded header."""
        header = {
            "config": self.config.to_dict(),
            "config_hash": self.config.config_hash,
            "context": self.context,
            "dims": vars(self.dims),
            "memory_bytes": self.memory_bytes,
            "registers": self.registers,
            "segments": [
                {
                    "name": s.name,
                    "address": s.address,
                    "bytes": len(s.data),
                    "sha256": hashlib.sha256(s.data.data).hexdigest(),
                }
                for s in self.segments
            ],
            "source": self.source,
        }
        text = json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
        self.digest = hashlib.sha256(text).hexdigest()
        return text


def write_image(image: DraftImage, path: Path) -> None:
    """Write a `.dfvg` file; it appears under its name only when complete."""
    header = image.seal()
    try:
        with replacing(path) as file:
            digest = bytes.fromhex(image.digest)
            file.write(_FIXED.pack(MAGIC, IMAGE_VERSION, len(header), digest))
            file.write(header)
            file.write(bytes(-file.tell() % ALIGN))
            for segment in image.segments:
                file.write(segment.data.data)
                file.write(bytes(align(len(segment.data)) - len(segment.data)))
    except OSError as error:
        raise ImageError(f"cannot write {path}: {error.strerror}") from None


def _header(path: Path, raw: NDArray[np.uint8]) -> tuple[dict[str, Any], str, int]:
    """Check the fixed part and decode the header: (header, digest, offset of segments)."""
    if len(raw) < 8 or raw[:8].tobytes() != MAGIC:
        raise ImageError(f"{path} is not a draft image: it doesn't begin with {MAGIC[:7].decode()}")
    if len(raw) < _FIXED.size:
        raise ImageError(f"{path} is truncated: it has {len(raw)} bytes")
    _, version, length, digest = _FIXED.unpack(raw[: _FIXED.size].tobytes())
    if version != IMAGE_VERSION:
        raise ImageError(f"{path} has image version {version}: this program reads {IMAGE_VERSION}")
    end = _FIXED.size + length
    if length > _MAX_HEADER or end > len(raw):
        raise ImageError(f"{path} is truncated: its header ends at byte {end} of {len(raw)}")
    text = raw[_FIXED.size : end].tobytes()
    if hashlib.sha256(text).digest() != digest:
        raise ImageError(f"{path} is corrupt: its header doesn't match its digest")
    if raw[end : align(end)].any():
        raise ImageError(f"{path} is corrupt: the padding behind its header isn't zero")
    return json.loads(text), digest.hex(), align(end)


def _segments(
    path: Path, raw: NDArray[np.uint8], table: list[dict[str, Any]], offset: int
) -> list[Segment]:
    end = offset + sum(align(entry["bytes"]) for entry in table)
    if len(raw) != end:
        state = "truncated" if len(raw) < end else "corrupt"
        raise ImageError(f"{path} is {state}: it has {len(raw)} bytes instead of {end}")
    segments = []
    for entry in table:
        data = raw[offset : offset + entry["bytes"]]
        if hashlib.sha256(data.data).hexdigest() != entry["sha256"]:
            raise ImageError(f"{path} is corrupt: segment {entry['name']} fails its digest")
        segments.append(Segment(entry["name"], entry["address"], data))
        if raw[offset + entry["bytes"] : offset + align(entry["bytes"])].any():
            raise ImageError(
                f"{path} is corrupt: the padding behind segment {entry['name']} isn't zero"
            )
        offset += align(entry["bytes"])
    return segments


def read_image(path: Path, config: DeviceConfig | None = None) -> DraftImage:
    """Read and verify a `.dfvg` file.

    Parameters
    ----------
    path : Path
    config : DeviceConfig, optional
        Refuse an image compiled for another.

    Raises
    ------
    ImageError
        If the file is absent, foreign, of another version, truncated or corrupt, or compiled
        for another config.
    """
    try:
        raw = np.memmap(path, np.uint8, "r") if path.stat().st_size else np.zeros(0, np.uint8)
    except OSError as error:
        raise ImageError(f"cannot read {path}: {error.strerror}") from None
    header, digest, offset = _header(path, raw)
    try:
        return _image(path, raw, header, digest, offset, config)
    except ImageError:
        raise
    # Its digest is right, so nothing was damaged: another program wrote it.
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        reason = (str(error).splitlines() or [""])[0]
        raise ImageError(
            f"{path} is not an image of this program: its header has no usable {reason}"
        ) from None


def _image(
    path: Path,
    raw: NDArray[np.uint8],
    header: dict[str, Any],
    digest: str,
    offset: int,
    config: DeviceConfig | None,
) -> DraftImage:
    """Put together what the header describes; errors of any kind if it isn't one of ours."""
    found = DeviceConfig.from_dict(header["config"])
    if header["config_hash"] != found.config_hash:
        raise ValueError(f"config hash: {header['config_hash']!r}")
    if config is not None and header["config_hash"] != config.config_hash:
        raise ImageError(
            f"{path} was compiled for config {found.name!r} (hash "
            f"0x{header['config_hash']:08x}): {config.name!r} has 0x{config.config_hash:08x}"
        )
    return DraftImage(
        config=found,
        dims=ModelDims(**header["dims"]),
        registers=header["registers"],
        segments=_segments(path, raw, header["segments"], offset),
        memory_bytes=int(header["memory_bytes"]),
        context=int(header["context"]),
        source=dict(header["source"]),
        digest=digest,
    )
