"""The command `dfvg`."""

from dfvg_host.cli.main import main

__all__ = ["main"]
