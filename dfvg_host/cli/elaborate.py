"""`dfvg elaborate`: its options, and the checks of `--check`.

The Verilog is written by `dfvg_hw.elaborate`, which knows no simulator.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from dfvg_host.cli.values import working_folder
from dfvg_hw.errors import UsageError

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--config", metavar="C", default="sim", help="device configuration")
    parser.add_argument(
        "-o",
        "--output",
        metavar="DIR",
        type=Path,
        required=True,
        help="folder for the Verilog, made if it is missing",
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="lint with Verilator, and look with Yosys for latches, combinational loops and "
        "memories dissolved into flip-flops",
    )


def run(args: argparse.Namespace) -> int:
    """Run the command; returns the exit status."""
    working_folder("--output", args.output)
    from dfvg_hw.elaborate import main

    status = main(args)
    if status == 0 and args.check:
        check_folder(args.output)
    return status


def check_folder(folder: Path) -> None:
    """Check every Verilog file in `folder`; NAME.v has the top module NAME.

    Raises
    ------
    BuildError
        On the first finding, or if a tool is missing.
    """
    from sim.synthesis import check_design
    from sim.verilate import lint

    files = sorted(folder.glob("*.v"))
    if not files:
        raise UsageError(f"--check: no Verilog file in {str(folder)!r}")
    for file in files:
        lint(file, file.stem)
        check_design(file, file.stem)
        print(f"{file}: no lint finding, no latch, no loop, no dissolved memory")
