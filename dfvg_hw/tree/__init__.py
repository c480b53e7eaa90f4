"""The tree unit: candidates, tree slots, KV slots, choice of rows, re-rooting."""

from .model import PassSummary, TreeModel
from .state import Phase, Row, RowKind

__all__ = ["PassSummary", "Phase", "Row", "RowKind", "TreeModel"]
