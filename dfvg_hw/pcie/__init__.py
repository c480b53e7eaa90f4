"""The way to the host: rings, mailboxes and registers on AXI, and the bulk copy of images."""

from .engine import RingEngine

__all__ = ["RingEngine"]
