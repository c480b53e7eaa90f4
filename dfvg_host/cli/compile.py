"""`dfvg compile`: its options. The work is in `dfvg_host.compile.cli`."""

from __future__ import annotations

import argparse
from pathlib import Path

from dfvg_hw.errors import UsageError

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="LLaMA-architecture model: a folder, a GGUF file, a hub name or a packaged model",
    )
    parser.add_argument(
        "-o", "--output", metavar="X.dfvg", type=Path, required=True, help="the image to write"
    )
    parser.add_argument("--config", metavar="C", default="sim", help="device configuration")
    parser.add_argument(
        "--target",
        metavar="M",
        default=None,
        help="take embedding and head rows from this model (default: from MODEL)",
    )
    parser.add_argument("--quiet", action="store_true", help="print nothing but errors")


def run(args: argparse.Namespace) -> int:
    """Run the command; returns the exit status."""
    folder = args.output.absolute().parent
    if args.output.is_dir() or not folder.is_dir():
        raise UsageError(
            f"--output is {str(args.output)!r}: expected a file name in an existing folder"
        )
    from dfvg_host.compile.cli import main

    return main(args)
