"""`dfvg compile`: its options. The work is in `dfvg_host.compile.cli`."""

from __future__ import annotations

import argparse

from dfvg_host.cli.values import parse

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="LLaMA-architecture model: a folder, a GGUF file, a hub name or a packaged model",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="X.dfvg",
        type=parse("output"),
        required=True,
        help="the image to write",
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
    from dfvg_host.compile.cli import main

    return main(args)
