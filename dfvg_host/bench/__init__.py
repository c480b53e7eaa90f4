"""Benchmarks: `python -m dfvg_host.bench`, described in docs/benchmarks.md.

Every benchmark prints a table and writes JSON. Figures that depend on this machine's speed are
ratios of two things measured in the same run; all others are functions of the models and the code.
"""

from .report import Report
from .setting import Setting

__all__ = ["Report", "Setting"]
