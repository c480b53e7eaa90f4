"""`dfvg distill` from text to evaluation, and its one-line refusals."""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from pathlib import Path

import pytest

from dfvg_host.cli.main import main
from dfvg_host.distill import cli, generate
from dfvg_host.distill.checkpoint import load_draft
from tests.host.distill.tiny import save_tiny, tiny_llama


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    small = partial(generate.GenerateConfig, texts=16, rows=16, turn_tokens=8, answer_tokens=16)
    monkeypatch.setattr(generate, "GenerateConfig", small)
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"kind": "a", "prompt": "hello"}\n{"kind": "b", "prompt": "what now"}\n')
    tiny = save_tiny(tmp_path / "tiny")
    flags = ["--target", str(tiny), "--work", str(tmp_path / "w"), "--blocks", "2"]
    flags += ["--head-rows", "64", "--layers", "0,2", "--epochs", "1", "--max-new-tokens", "12"]
    return [*flags, "--passes", "3", "--eval-prompts", str(prompts)]


def test_all_stages(tmp_path: Path, options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["distill", *options]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("acceptance length ")
    assert "block 2 of 2" in printed.err
    assert len(list((tmp_path / "w" / "text").glob("*.npz"))) == 2
    draft = load_draft(tmp_path / "w" / "draft", tiny_llama())
    assert len(draft.output_ids) == 64
    assert {1, 2} <= set(draft.output_ids.tolist())
    assert draft.record["layers"] == [0, 2]
    saved = json.loads((tmp_path / "w" / "evaluation.json").read_text())
    assert set(saved["kinds"]) == {"a", "b"}
    assert saved["draft_digest"] == draft.digest
    # Started again, every stage finds its work done and the draft comes out the same.
    assert main(["distill", *options]) == 0
    assert "block 1 of 2" not in capsys.readouterr().err
    assert load_draft(tmp_path / "w" / "draft", tiny_llama()).digest == draft.digest


def test_start_from_a_draft(tmp_path: Path, options: list[str]) -> None:
    assert main(["distill", "text", *options]) == 0
    assert main(["distill", "train", *options]) == 0
    first, second = tmp_path / "w" / "draft", tmp_path / "second"
    again = [*options, "--init", str(first), "--work", str(tmp_path / "w2"), "-o", str(second)]
    again += ["--head-rows", "128", "--ffn-width", "64"]
    (tmp_path / "w2").mkdir()
    (tmp_path / "w2" / "text").symlink_to(tmp_path / "w" / "text")
    assert main(["distill", "train", *again]) == 0
    one, two = load_draft(first, tiny_llama()), load_draft(second, tiny_llama())
    assert (len(one.output_ids), len(two.output_ids)) == (64, 128)
    assert set(one.output_ids.tolist()) <= set(two.output_ids.tolist())
    assert (one.config.intermediate_size, two.config.intermediate_size) == (128, 64)
    assert two.record["init"] == "draft"
    assert two.digest != one.digest


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--blocks", "0"], "--blocks is '0': expected a whole number, 1 or more"),
        (["--blocks", "\u00b2"], "--blocks is '\u00b2': expected a whole number, 1 or more"),
        (["--blocks", "1" + "0" * 5000], "(5003 characters): expected a whole number"),
        (["--layers", "0,x"], "--layers is '0,x': expected target layers such as 0,1,29"),
        (["--layers", "0,-1"], "--layers is '0,-1': expected target layers such as 0,1,29"),
        (["--layers", ""], "--layers is '': expected target layers"),
        (["--layers", "0,7"], "layer 7 is not one of the target's 0 to 2"),
        (["--head-rows", "100"], "head rows must be a multiple of 64, not 100"),
        (["--ffn-width", "100"], "FFN width must be a multiple of 64 up to 128, not 100"),
        (["--rate", "nan"], "--rate is 'nan': expected a number above 0 and up to 1"),
        (["--seed", "-1"], "--seed is '-1': expected a whole number from 0 to 4294967295"),
        (["--seed", "x"], "--seed is 'x': expected a whole number from 0"),
        (["--seed", "9" * 30], "expected a whole number from 0 to 4294967295"),
        (["--threads", "100000"], "--threads is '100000': expected a whole number from 1 to"),
        (["--tree-budget", "5000"], "expected a whole number from 1 to 4096"),
        (["--work", "/proc/none"], "--work is '/proc/none': expected a folder that can be"),
        (["--work", __file__], "expected a folder that can be written (File exists)"),
        (["-o", __file__], "--output is "),
        (["--eval-prompts", "/"], "--eval-prompts /: Is a directory"),
        (["--eval-prompts", sys.executable], "not UTF-8 text"),
        (["--eval-prompts", "/dev/null"], "/dev/null holds no prompts"),
        (["--eval-prompts", __file__], "line 1 is not of the form"),
        (["--rate", "0"], "--rate is '0': expected a number above 0"),
        (["--target", "no-such-model"], "unknown model 'no-such-model'"),
        (["--eval-prompts", "missing.jsonl"], "--eval-prompts missing.jsonl: No such file"),
        (["--init", "nowhere"], "nowhere is not a draft folder"),
        (["--blocks", "3"], "lacks block 2 of 0 to 2"),
    ],
)
def test_bad_input_is_one_line(
    options: list[str],
    arguments: list[str],
    text: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert main(["distill", "text", *options]) == 0
    capsys.readouterr()
    assert main(["distill", "train", *options, *arguments]) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
    assert len(lines) == 1
    assert text in lines[0]


def test_evaluating_nothing(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["distill", "evaluate", *options]) == 2
    assert "is not a draft folder" in capsys.readouterr().err


def test_parser_mounts() -> None:
    parser = argparse.ArgumentParser()
    cli.add_parser(parser.add_subparsers())
    args = parser.parse_args(["distill", "evaluate", "--work", "x"])
    assert args.run is cli.run
    assert (args.stage, args.work) == ("evaluate", Path("x"))
