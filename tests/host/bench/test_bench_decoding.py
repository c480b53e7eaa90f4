"""Benchmarks over the real decode loop, with a random target of three layers as its own draft."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from dfvg_host.bench import Setting, acceptance, lossless, rtl
from dfvg_host.bench.decoding import decode_all, summarise
from dfvg_host.compile import compile_model
from dfvg_host.compile.source import float_model
from dfvg_host.decode import DecodeParams
from dfvg_host.decode.engine import Engine, open_device
from dfvg_host.distill.heldout import EvalPrompt
from dfvg_host.models import LoadedTarget
from dfvg_hw.config import get_config
from dfvg_hw.messages import Nodes
from tests.host import tiny_models

PROMPTS = [EvalPrompt("short", "hello"), EvalPrompt("long", "a text of some length")]


@pytest.fixture(scope="module")
def target() -> LoadedTarget:
    tokenizer = tiny_models.tokenizer()
    model = tiny_models.model(seed=4, vocab_size=len(tokenizer))
    return LoadedTarget(model, tokenizer, "tiny", "fp32", None, "digest")


@pytest.fixture(scope="module")
def image(target: LoadedTarget) -> object:
    made = compile_model(float_model(target.model), get_config("tiny"))
    made.seal()
    return made


@pytest.fixture
def engine(target: LoadedTarget, image: object) -> Engine:
    return Engine(target, image, config="tiny")


def test_results_have_kinds_and_statistics(engine: Engine) -> None:
    requests = {"a": DecodeParams(6), "b": DecodeParams(4, schedule="lockstep")}
    found = decode_all("x", Setting(), engine, PROMPTS, requests)
    assert [result["kind"] for result in found["a"]] == ["short", "long"]
    assert [len(result["tokens"]) for result in found["b"]] == [4, 4]
    figures = summarise(found["a"])
    lengths = [result["acceptance_length"] for result in found["a"]]
    assert figures["acceptance_length"] == sum(lengths) / 2
    assert figures["low_95"] <= figures["acceptance_length"] <= figures["high_95"]
    steps = sum(result["verify_steps"] for result in found["a"])
    assert figures["pooled"] == 12 / steps


def test_an_interrupted_run_goes_on(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting, requests = Setting(out=tmp_path), {"a": DecodeParams(4)}
    first = decode_all("x", setting, engine, PROMPTS[:1], requests)
    decoded: list[list[int]] = []
    original = engine.decode

    def watch(prompt: list[int], params: DecodeParams) -> object:
        decoded.append(prompt)
        return original(prompt, params)

    monkeypatch.setattr(engine, "decode", watch)
    both = decode_all("x", setting, engine, PROMPTS, requests)
    assert decoded == [engine.encode(PROMPTS[1].text)]
    assert both["a"][0] == first["a"][0]
    decode_all("x", setting, engine, PROMPTS[:1], {"a": DecodeParams(5)})
    assert len(decoded) == 2


@pytest.fixture
def tiny_bench(
    target: LoadedTarget, image: object, monkeypatch: pytest.MonkeyPatch
) -> pytest.MonkeyPatch:
    """Benchmarks use the tiny pair and two prompts."""

    def open_tiny(setting: Setting, draft: object = None, device: str = "emulator") -> Engine:
        return Engine(target, image, config="tiny")

    for module in (acceptance, lossless, rtl):
        monkeypatch.setattr(module, "open_engine", open_tiny)
        monkeypatch.setattr(module, "eval_prompts", lambda: PROMPTS)
    return monkeypatch


def test_acceptance_by_schedule_and_kind(tiny_bench: pytest.MonkeyPatch) -> None:
    report = acceptance.acceptance(Setting(tokens=8))
    assert [row["kind"] for row in report.rows] == ["short", "long"]
    assert report.figures["lockstep.acceptance_length"] > 1.5  # it's its own draft
    assert report.figures["overlap.acceptance_length"] > 1
    assert report.settings["prompts"] == 2
    one = acceptance.acceptance(Setting(tokens=8, limit=1), ["lockstep"])
    assert one.settings["prompts"] == 1
    assert "overlap.acceptance_length" not in one.figures


def test_lossless_counts_identical_runs_and_names_others(tiny_bench: pytest.MonkeyPatch) -> None:
    report = lossless.lossless(Setting(tokens=8))
    figures = report.figures
    assert (figures["runs"], figures["identical"], figures["wrong"]) == (8, 8, 0)
    assert figures["tokens"] > 0

    def broken(*arguments: object) -> dict[str, list[dict[str, object]]]:
        found = decode_all(*arguments)  # type: ignore[arg-type]
        found["greedy"][0] |= {"identical": False, "divergence": {"position": 3}, "tie": False}
        found["greedy"][1] |= {"identical": False, "divergence": {"position": 4}, "tie": True}
        return found

    tiny_bench.setattr(lossless, "decode_all", broken)
    report = lossless.lossless(Setting(tokens=8))
    figures = report.figures
    assert (figures["identical"], figures["ties"], figures["wrong"]) == (6, 1, 1)
    assert "token 3" in report.notes[0]


def test_same_passes_sees_one_bit(image: object, monkeypatch: pytest.MonkeyPatch) -> None:
    def emulators(name: str, *rest: object) -> object:
        return open_device("emulator", *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(rtl, "open_device", emulators)
    assert rtl.same_passes(image, [5, 6, 7], 3) == []

    def flipped(name: str, *rest: object) -> object:
        device = emulators(name, *rest)
        original = device.poll

        def poll() -> list[object]:
            messages = original()
            last = max(i for i, m in enumerate(messages) if isinstance(m, Nodes))
            children = messages[last].children
            bad = dataclasses.replace(children[-1], logprob=children[-1].logprob ^ 1)
            messages[last] = dataclasses.replace(messages[last], children=(*children[:-1], bad))
            return messages

        if name == "rtl":
            device.poll = poll
        return device

    monkeypatch.setattr(rtl, "open_device", flipped)
    assert len(rtl.same_passes(image, [5, 6, 7], 3)) == 1
