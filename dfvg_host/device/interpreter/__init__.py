"""Instruction-level reference: executes an image's program from the image's own bytes.

Slow, for tiny models: it proves compiler, instruction set and image layout against
`dfvg_host.device.compute`, and its per-instruction results are what RTL is debugged against.
"""

from .machine import Interpreter, Record

__all__ = ["Interpreter", "Record"]
