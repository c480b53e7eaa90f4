"""`dfvg distill`: training a draft. Options and work are in `dfvg_host.distill.cli`."""

from __future__ import annotations

import argparse

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    from dfvg_host.distill.cli import add_arguments as declare

    declare(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command; returns the exit status."""
    from dfvg_host.distill.cli import run as distill

    return distill(args) or 0
