"""Checks on generated Verilog that need synthesis: latches, loops, memories, and what it costs.

Yosys runs as a module of another Python process, so that its memory is bounded and given back.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import dataclass
from pathlib import Path

from dfvg_hw.errors import BuildError
from sim.cache import BuildCache
from sim.verilate import failure_log, run_tool

__all__ = ["CellCounts", "check_design", "run_yosys", "synthesize_ecp5"]

_RUNNER = """
import sys
from pyosys import libyosys as ys
ys.run_pass("script " + sys.argv[1], ys.Design())
"""


_ECP5_MEMORIES = ("lutrams_trellis", "brams_16kd")
_DISTRIBUTED_WORDS = 32
"""Words of the deepest memory that may be distributed RAM without asking for it."""


@dataclass(frozen=True)
class CellCounts:
    """Cells of a design after synthesis, by type, over the whole hierarchy."""

    cells: dict[str, int]

    def total(self, *kinds: str) -> int:
        """Return the number of cells whose type starts with one of `kinds`."""
        return sum(count for kind, count in self.cells.items() if kind.startswith(kinds))


def run_yosys(script: str, folder: Path, what: str) -> str:
    """Run a Yosys script in `folder` and return its log.

    Raises
    ------
    BuildError
        If Yosys is missing or an assertion or command of the script fails.
    """
    if importlib.util.find_spec("pyosys") is None:
        raise BuildError(f"{what}: Yosys is missing; to mend: pip install pyosys==0.70")
    log = failure_log(BuildCache(), "yosys")
    file = folder / "yosys.ys"
    file.write_text(script)
    try:
        run_tool([sys.executable, "-c", _RUNNER, file.name], folder, what, log)
    except BuildError as error:
        # `check -assert` only counts its findings; the first of them was a warning before.
        text = log.read_text(errors="replace").rpartition("Executing CHECK pass")[2]
        lines = text.splitlines()
        found = next((line for line in lines if line.startswith("Warning:")), "")
        raise BuildError(
            f"{error}: {found}" if "'check -assert'" in str(error) else error
        ) from None
    text = log.read_text(errors="replace")
    log.unlink()
    return text


def _read(verilog: Path, top: str) -> list[str]:
    return [f"read_verilog {verilog.name}", f"hierarchy -check -top {top}"]


def _check_memories() -> list[str]:
    """Return the commands that fail unless each memory becomes RAM; they use up the design.

    Of `synth_ecp5` only what memories need, and module by module: a memory and the registers of
    its ports share one, and a flat core takes far longer.
    """
    # What brings enables of ports and of their registers into the form that memory cells have.
    script = ["opt_expr", "opt_clean", "opt -nodffe -nosdff", "opt_dff", "opt_clean"]
    script += ["memory -nomap"]
    libmap = "memory_libmap " + " ".join(f"-lib +/lattice/{name}.txt" for name in _ECP5_MEMORIES)
    # Block RAM, or distributed RAM where the design asks for it. A deep memory that is left would
    # be a heap of distributed RAM and multiplexers at best.
    script += [
        f"{libmap} -no-auto-distributed",
        f"select -assert-none t:$mem_v2 r:SIZE>{_DISTRIBUTED_WORDS} %i",
        f"{libmap} -no-auto-block",
        # What is still there and never written is a table of a few words: LUTs in disguise.
        "select -assert-none t:$mem_v2 r:WR_PORTS>0 %i",
    ]
    return script


def check_design(verilog: Path, top: str) -> None:
    """Check generated Verilog: fails on a latch, a combinational loop or a dissolved memory.

    A memory is dissolved if no block or distributed RAM of the ECP5 can hold it, so that it would
    become flip-flops and multiplexers (a third port, or an asynchronous read of a memory of more
    than 32 words). Its registers must be in its own module, as Amaranth writes them. The whole of
    the `sim` core takes about 5 GB of memory.

    Parameters
    ----------
    verilog : Path
        The file.
    top : str
        Its top module.

    Raises
    ------
    BuildError
        Naming the first finding.
    """
    latches = "t:$dlatch t:$adlatch t:$dlatchsr t:$_DLATCH_*"
    script = [
        *_read(verilog, top),
        # No tables made of constant cases: the only memories are those of the design.
        "proc -noopt -norom",
        "design -push-copy",
        "flatten",
        "opt_clean",
        f"select -assert-none {latches}",
        # Loops, wires with two drivers or none: all of them errors here.
        "check -assert",
        "design -pop",
        *_check_memories(),
    ]
    run_yosys("\n".join(script) + "\n", verilog.parent, f"checking {top}")


def synthesize_ecp5(verilog: Path, top: str) -> CellCounts:
    """Synthesise for the ECP5, without placement, and count the cells.

    Parameters
    ----------
    verilog : Path
        The file; the result is written beside it as `ecp5.json`.
    top : str
        Its top module.

    Returns
    -------
    CellCounts

    Raises
    ------
    BuildError
        If a tool is missing, a command fails or the result has a fault `check` knows.
    """
    script = [*_read(verilog, top), f"synth_ecp5 -top {top}", "check -assert"]
    script += ["tee -q -o stat.json stat -json", "write_json ecp5.json"]
    run_yosys("\n".join(script) + "\n", verilog.parent, f"synthesising {top}")
    report = json.loads((verilog.parent / "stat.json").read_text())
    return CellCounts(dict(report["design"]["num_cells_by_type"]))
