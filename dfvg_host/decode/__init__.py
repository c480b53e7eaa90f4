"""The decode loop: draft on a device, verify with the target, and everything around it."""

from .engine import Engine, generate
from .loop import Interrupted, TargetFailed, decode
from .params import DecodeParams
from .result import Result

__all__ = [
    "DecodeParams",
    "Engine",
    "Interrupted",
    "Result",
    "TargetFailed",
    "decode",
    "generate",
]
