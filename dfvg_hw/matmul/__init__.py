"""The systolic array with its sequencer and output lanes."""

from .control import array_latency, drain_latency
from .engine import MatmulEngine

__all__ = ["MatmulEngine", "array_latency", "drain_latency"]
