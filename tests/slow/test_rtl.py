"""The design itself, simulated cycle by cycle at full size, against its models and promises."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dfvg_host.bench import Report, Setting
from dfvg_host.bench.acceptance import DEMO_PASSES
from dfvg_host.bench.rtl import agree, eta, same_passes
from dfvg_host.bench.speed import simspeed
from dfvg_host.compile import draft_image
from dfvg_host.distill.heldout import demo_prompts, eval_prompts
from dfvg_hw.config import get_config

pytestmark = [
    pytest.mark.slow,
    pytest.mark.rtl,
    pytest.mark.verilator,
    pytest.mark.timeout(5400),
]
Keep = Callable[[Report], Report]


def test_emulator_and_rtl_agree_in_every_statistic(setting: Setting, keep: Keep) -> None:
    """Four prompts, greedy and sampled; only device, wall_seconds and rtl may differ."""
    figures = keep(agree(setting)).figures
    assert figures["runs"] == 8
    assert figures["agree"] == 8
    assert abs(figures["model_error"]) <= 0.02


def test_memory_is_hardly_ever_idle(setting: Setting, keep: Keep) -> None:
    """Context 128 to 256, default memory model: eta at least 0.80, cycle model within 2 %."""
    figures = keep(eta(setting)).figures
    assert figures["eta"] >= 0.80
    assert abs(figures["model_error"]) <= 0.02


def test_simulation_is_fast_enough_to_decode_with(setting: Setting, keep: Keep) -> None:
    """At least a sixth of a bare array's speed in the same run.

    Cycles a second depend on the machine, so the benchmark reports them and no test asks.
    """
    figures = keep(simspeed(setting)).figures
    assert figures["ratio"] >= 1 / 6


def test_two_passes_of_a_large_draft(setting: Setting) -> None:
    """The target as its own draft: prompt and one growth pass give the emulator's messages."""
    target = setting.load()
    config = get_config("sim")
    image = draft_image(target.name, config, target)
    tokens = target.tokenizer(eval_prompts()[0].text).input_ids[: config.rows]
    assert len(tokens) == config.rows
    assert same_passes(image, tokens, 2) == []


def test_demo(tmp_path: Path) -> None:
    """The demo's command: at least 64 tokens, identical, in less than four minutes of one core."""
    stats = tmp_path / "stats.json"
    command = [
        sys.executable, "-m", "dfvg_host.cli", "decode", "--device", "rtl", "--config", "sim",
        "--check", "--chat", "--max-new-tokens", "64", "--passes-per-round", str(DEMO_PASSES),
        "--stats", str(stats),
        "--prompt", demo_prompts()[0].text,
    ]  # fmt: skip
    place = command.index("--max-new-tokens") + 1
    first = [*command[:place], "1", *command[place + 1 :]]  # builds the simulator if need be
    subprocess.run(first, check=True, capture_output=True)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    ended = subprocess.run(command, check=True, capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    found = json.loads(stats.read_text())
    print(ended.stdout, ended.stderr)
    assert len(found["tokens"]) >= 64
    assert found["text"].strip() == ended.stdout.strip()
    assert found["degraded"] == 0
    assert "identical to target-only: yes" in ended.stderr
    assert "acceptance length" in ended.stderr
    assert "hits" in ended.stderr
    assert "draft passes" in ended.stderr
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 240
