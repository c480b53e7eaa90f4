"""`dfvg elaborate`: writes the design as Verilog, with what an integrator needs beside it.

DIR/dfvg_sim.v          the design, top module dfvg_sim
DIR/dfvg_sim.json       the configuration, its hash, the digest of the design's source
DIR/registers.json      BAR0: every register and field, and the mailbox map
DIR/memories.txt        every memory: width, depth, bits, by module
"""

from __future__ import annotations

import argparse
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dfvg_hw.config import DeviceConfig, get_config
from dfvg_hw.errors import UsageError
from dfvg_hw.messages.line import LINE_BYTES
from dfvg_hw.registers import MAILBOX_LINES, REGISTERS
from dfvg_hw.verilog import to_verilog

__all__ = ["MemoryUse", "main", "memories", "write_design"]

_MODULE = re.compile(r"^module (\\\S+|\w+)", re.M)
_MEMORY = re.compile(r"^\s*reg \[(\d+):0\] (\\\S+|\w+) \[(\d+):0\];", re.M)


@dataclass(frozen=True)
class MemoryUse:
    """A memory of the generated Verilog."""

    module: str
    name: str
    width: int
    depth: int

    @property
    def bits(self) -> int:
        """Bits of it."""
        return self.width * self.depth


def memories(verilog: str) -> list[MemoryUse]:
    """Return the memories of a generated design; each module counts once."""
    found = []
    marks = [(m.start(), m.group(1)) for m in _MODULE.finditer(verilog)]
    ends = [start for start, _ in marks[1:]] + [len(verilog)]
    for (start, module), end in zip(marks, ends, strict=True):
        for match in _MEMORY.finditer(verilog, start, end):
            width, depth = int(match.group(1)) + 1, int(match.group(3)) + 1
            found.append(MemoryUse(module.lstrip("\\"), match.group(2).strip("\\ "), width, depth))
    return found


def _registers(config: DeviceConfig) -> dict[str, Any]:
    return {
        "registers": [
            {
                "name": entry.name,
                "address": entry.address,
                "doc": entry.doc,
                "fields": [
                    {
                        "name": field.name,
                        "offset": field.offset,
                        "width": field.width,
                        "access": field.access.value,
                        "doc": field.doc,
                    }
                    for field in entry.fields
                ],
            }
            for entry in REGISTERS
        ],
        "mailbox": {
            "bytes": config.max_seqs * MAILBOX_LINES * LINE_BYTES,
            "lines_per_sequence": MAILBOX_LINES,
            "line_bytes": LINE_BYTES,
        },
    }


def _memory_report(found: list[MemoryUse]) -> str:
    lines = [f"{'bits':>10}  {'width':>6}  {'depth':>6}  memory"]
    for use in sorted(found, key=lambda item: (-item.bits, item.module, item.name)):
        lines.append(f"{use.bits:10d}  {use.width:6d}  {use.depth:6d}  {use.module} {use.name}")
    total = sum(use.bits for use in found)
    lines.append(f"{total:10d}  in {len(found)} memories")
    return "\n".join(lines) + "\n"


def write_design(config: DeviceConfig, folder: Path) -> Path:
    """Write all files of a config and return the Verilog's path."""
    from dfvg_hw.top import DfvgTop, design_digest

    name = f"dfvg_{config.name}"
    digest = design_digest()
    build_id = int.from_bytes(bytes.fromhex(digest)[:4], "little")
    text = to_verilog(DfvgTop(config, build_id=build_id), name)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{name}.v"
    file.write_text(text)
    shape = {
        "config": config.to_dict(),
        "config_hash": f"0x{config.config_hash:08x}",
        "design_sha256": digest,
        "build_id": f"0x{build_id:08x}",
        "top": name,
    }
    (folder / f"{name}.json").write_text(json.dumps(shape, indent=2) + "\n")
    (folder / "registers.json").write_text(json.dumps(_registers(config), indent=2) + "\n")
    (folder / "memories.txt").write_text(_memory_report(memories(text)))
    return file


def main(args: argparse.Namespace) -> int:
    """Run `dfvg elaborate` with `args.config` and `args.output`; returns 0.

    Raises
    ------
    ConfigError
        If the config is unknown.
    UsageError
        If the folder can't be written.
    """
    config = get_config(args.config)
    try:
        file = write_design(config, args.output)
    except OSError as error:
        raise UsageError(f"cannot write to {str(args.output)!r}: {error.strerror}") from None
    found = memories(file.read_text())
    bits = sum(use.bits for use in found)
    print(
        f"{file}: {file.stat().st_size / 1e6:.1f} MB, {len(found)} memories, {bits / 1e6:.2f} Mbit"
    )
    return 0
