"""Drafted text is the target's own text, token for token."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dfvg_host.bench import Report, Setting
from dfvg_host.bench.lossless import lossless

pytestmark = [pytest.mark.slow, pytest.mark.timeout(5400)]


def test_greedy_and_sampled_text_is_identical(
    setting: Setting, keep: Callable[[Report], Report]
) -> None:
    """20 prompts of 64 tokens, greedy and three seeds at T 0.8, top-p 0.9, fp32."""
    figures = keep(lossless(setting)).figures
    assert figures["runs"] == 80
    assert figures["identical"] == 80
    assert figures["degraded"] == 0
