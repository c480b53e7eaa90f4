"""Ports of the vector unit that carry items without back-pressure."""

from __future__ import annotations

from amaranth.lib import wiring
from amaranth.lib.wiring import Out

from ..interfaces import logit, score

__all__ = ["logit_port", "score_port"]


def score_port() -> wiring.Signature:
    """Attention logits of a row: ``payload`` counts while ``valid``, at most one per cycle."""
    return wiring.Signature({"valid": Out(1), "payload": Out(score())})


def logit_port() -> wiring.Signature:
    """Output channels of a row: ``payload`` counts while ``valid``, at most one per cycle."""
    return wiring.Signature({"valid": Out(1), "payload": Out(logit())})
