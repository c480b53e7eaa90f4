"""`dfvg elaborate`: its options. The work is in `dfvg_hw.elaborate`."""

from __future__ import annotations

import argparse
from pathlib import Path

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
    if args.output.exists() and not args.output.is_dir():
        raise UsageError(f"--output is {str(args.output)!r}: expected a folder")
    from dfvg_hw.elaborate import main

    return main(args)
