"""Acceptance lengths that the project promises, in the real decode loop on the emulator."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dfvg_host.bench import Report, Setting
from dfvg_host.bench.acceptance import acceptance, demo, noise, selfdraft
from dfvg_host.distill.heldout import eval_prompts

pytestmark = [pytest.mark.slow, pytest.mark.timeout(5400)]
Keep = Callable[[Report], Report]

HELD_OUT_PROMPTS = 104  # eight of each kind


@pytest.mark.timeout(9000)  # 208 texts
def test_shipped_draft_on_kinds_of_prompts_it_was_not_trained_on(
    setting: Setting, keep: Keep
) -> None:
    """8 lockstep passes, budget 16: at least 2.0 tokens a verify step with 95 % confidence.

    Drafting while the target verifies gets stale trees but more passes: it may accept a little
    less, and must be faster in virtual time.
    """
    assert len(eval_prompts()) >= HELD_OUT_PROMPTS >= 100
    report = keep(acceptance(setting, default=HELD_OUT_PROMPTS))
    assert report.settings["prompts"] == HELD_OUT_PROMPTS
    figures = report.figures
    assert figures["lockstep.low_95"] >= 2.0
    assert figures["overlap.acceptance_length"] >= 0.8 * figures["lockstep.acceptance_length"]
    assert (
        figures["overlap.virtual_speed_over_plain"] > figures["lockstep.virtual_speed_over_plain"]
    )


def test_demo_prompts(setting: Setting, keep: Keep) -> None:
    """The demo's eight prompts as the demo decodes them: at least 1.5 tokens a step."""
    report = keep(demo(setting))
    assert report.settings["prompts"] == 8
    assert report.figures["acceptance_length"] >= 1.5


def test_noise_in_place_of_the_draft_costs_speed_and_no_token(setting: Setting, keep: Keep) -> None:
    """The draft matters (its figure isn't the prompts' doing); the text doesn't depend on it."""
    report = keep(noise(setting))
    assert report.figures["same_text"] == report.figures["prompts"] == 8
    assert 1.0 <= report.figures["noise"] < 1.1
    assert report.figures["draft"] >= 1.5


def test_target_as_its_own_draft(setting: Setting, keep: Keep) -> None:
    """12 lockstep passes, budget 16: at least 5 tokens a step, two prompts of three kinds."""
    report = keep(selfdraft(setting, default=13))
    assert report.figures["acceptance_length"] >= 5.0
    assert report.figures["passes_per_round"] <= 12
