"""The target's side: tree attention over a KV cache, its compaction, and the samplers."""

from .cache import RowCache
from .engine import TreeVerifier
from .philox import philox4x32, uniform
from .sampler import Draw, Sampler, SamplingParams

__all__ = [
    "Draw",
    "RowCache",
    "Sampler",
    "SamplingParams",
    "TreeVerifier",
    "philox4x32",
    "uniform",
]
