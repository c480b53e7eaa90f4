"""`dfvg decode` and `dfvg_host.generate` from end to end, on small models read from disk."""

import dataclasses
import json
import sys
import types

import pytest

import dfvg_host
from dfvg_host.cli import main
from dfvg_host.decode import Result
from tests.host import tiny_models
from tests.host.decode.cli_models import decode, save, stats

KEYS = """tokens text finish_reason identical divergence degraded verify_steps acceptance_length
acceptance_per_depth candidates nodes_run nodes_verified passes hits device_cycles
device_cycles_ideal eta eta_bytes idle virtual_seconds virtual_tokens_per_second rtl baseline
wall_seconds device config config_hash verifier_profile dtype target draft seed versions""".split()


def test_the_stats_file_has_exactly_the_documented_keys(models, tmp_path, capsys):
    path = tmp_path / "s.json"
    assert decode(models, "--check", "--stats", path) == 0
    found = stats(path)
    assert list(found) == KEYS
    assert found["identical"] is True
    assert found["divergence"] is None
    assert found["rtl"] is None
    assert found["passes"].keys() == {"prefill", "catchup", "growth", "aborted"}
    assert found["hits"].keys() == {"expanded", "leaf", "miss"}
    assert found["baseline"].keys() == {"plain", "same_device_draft"}
    assert found["versions"].keys() == {"dfvg", "python", "torch", "transformers"}
    assert found["acceptance_length"] == len(found["tokens"]) / found["verify_steps"] > 1
    assert found["eta"] == found["device_cycles_ideal"] / found["device_cycles"] <= 1
    assert (found["device"], found["config"], found["seed"]) == ("emulator", "tiny", 0)
    out, err = capsys.readouterr()
    assert out == found["text"] + "\n"
    assert "identical to target-only: yes" in err
    assert f"acceptance length {found['acceptance_length']:.2f}" in err
    assert "only virtual speed means anything" in err
    assert {item.name for item in dataclasses.fields(Result)} == {*KEYS, "tie"}


def test_the_documentation_lists_the_same_keys():
    from pathlib import Path

    text = (Path(__file__).parents[3] / "docs" / "stats.md").read_text()
    rows = [line.split("`")[1] for line in text.splitlines() if line.startswith("| `")]
    assert rows == KEYS


@pytest.mark.parametrize("sampling", [(), ("--temperature", "0.8", "--top-p", "0.9", "--seed", 5)])
def test_every_draft_gives_the_same_text(models, tmp_path, capsys, sampling):
    texts, lengths = set(), {}
    for draft in ("none", "draft", "noise"):
        path = tmp_path / f"{draft}.json"
        assert decode(models, *sampling, "--quiet", "--stats", path, draft=draft) == 0
        found = stats(path)
        texts.add(tuple(found["tokens"]))
        lengths[draft] = found["acceptance_length"]
        out, err = capsys.readouterr()
        assert (out.rstrip("\n"), err) == (found["text"].rstrip("\n"), "")
    assert len(texts) == 1
    assert lengths["none"] == 1 <= lengths["noise"] < 1.2 < lengths["draft"]


def test_generate_is_the_same_in_python(models, tmp_path):
    path = tmp_path / "s.json"
    decode(models, "--quiet", "--stats", path)
    pieces = []
    result = dfvg_host.generate(
        "Hello",
        target=models["target"],
        draft=models["draft"],
        config="tiny",
        max_new_tokens=30,
        on_text=pieces.append,
    )
    mine, theirs = result.to_dict(), stats(path)
    mine.pop("wall_seconds"), theirs.pop("wall_seconds")
    assert json.loads(json.dumps(mine)) == theirs
    assert "".join(pieces) == result.text


def test_image_and_model_draft_alike(models, tmp_path):
    image = tmp_path / "d.dfvg"
    assert main(["compile", models["draft"], "-o", str(image), "--config", "tiny", "--quiet"]) == 0
    found = {}
    for name in (models["draft"], str(image)):
        path = tmp_path / "s.json"
        assert decode(models, "--quiet", "--stats", path, draft=name) == 0
        found[name] = stats(path)
        assert found[name].pop("draft") == name
        del found[name]["wall_seconds"]
    assert found[models["draft"]] == found[str(image)]


def test_jsonl_gives_one_line_per_prompt(models, tmp_path, capsys):
    prompts = tmp_path / "p.jsonl"
    prompts.write_text('{"prompt": "one", "id": "a"}\n\n{"prompt": "two", "kind": "x"}\n')
    path = tmp_path / "s.json"
    assert decode(models, "--jsonl", prompts, "--check", "--stats", path, prompt=None) == 0
    out, err = capsys.readouterr()
    lines = [json.loads(line) for line in out.splitlines()]
    assert [line["id"] for line in lines] == ["a", 3]
    assert [list(line) for line in lines] == [["id", *KEYS]] * 2
    assert [{k: v for k, v in line.items() if k != "id"} for line in lines] == stats(path)
    assert "2 prompts, 60 tokens" in err
    results = json.loads(path.read_text())
    hits = {kind: sum(r["hits"][kind] for r in results) for kind in results[0]["hits"]}
    rounds = sum(r["verify_steps"] - 1 for r in results)
    shares = " + ".join(f"{count / rounds:.2f}" for count in hits.values())
    assert f"{hits['expanded']} expanded, {hits['leaf']} leaf" in err
    assert f"{shares} a round" in err
    ratio = sum(r["device_cycles_ideal"] for r in results) / sum(
        r["device_cycles"] for r in results
    )
    assert f"eta                {ratio:.3f}" in err
    speed = 60 / sum(r["virtual_seconds"] for r in results)
    assert f"virtual speed      {speed:.1f} tokens/s" in err
    assert "The device is simulated" in err
    assert "identical to target-only: 2 of 2" in err


def test_any_json_value_is_an_id(models, tmp_path, capsys):
    prompts, ids = tmp_path / "p.jsonl", [None, [1, {"a": True}], False, "é\u2028", 0.5, 7, 7]
    lines = [json.dumps({"prompt": "x", "id": name}, ensure_ascii=False) for name in ids]
    prompts.write_text("\n \t\n".join(lines) + "\n\n")
    words = ("--jsonl", prompts, "--max-new-tokens", 1, "--quiet")
    assert decode(models, *words, prompt=None) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.split("\n")[:-1]]
    assert [line["id"] for line in found] == ids


def test_prompt_file_and_chat_template(models, tmp_path, capsys):
    file = tmp_path / "p.txt"
    file.write_text("[Hello]>\n")
    assert decode(models, "--prompt-file", file, "--quiet", prompt=None) == 0
    plain = capsys.readouterr().out
    assert decode(models, "--chat", "--quiet") == 0
    assert capsys.readouterr().out == plain


def test_no_tokens_prints_nothing(models, capsys):
    assert decode(models, "--max-new-tokens", 0) == 0
    assert capsys.readouterr() == ("", "")


def test_interrupt_keeps_partial_statistics(models, tmp_path, capsys, monkeypatch):
    from dfvg_host.decode import loop

    original, calls = loop.walk, []

    def walk(*arguments):
        calls.append(1)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return original(*arguments)

    monkeypatch.setattr(loop, "walk", walk)
    path = tmp_path / "s.json"
    assert decode(models, "--stats", path) == 130
    found = stats(path)
    assert found["finish_reason"] is None
    assert len(found["tokens"]) >= 4
    out, err = capsys.readouterr()
    assert out.rstrip("\n") == found["text"].rstrip("\n")
    assert "ended by interruption" in err


@pytest.mark.parametrize("tie", [False, True])
def test_check_fails_the_command_if_text_differs(models, capsys, monkeypatch, tie):
    from dfvg_host.decode.check import Divergence, Reference

    def observe(self, draw, row):
        self.divergence = Divergence(3, 0.5, 0.25, tie)

    monkeypatch.setattr(Reference, "observe", observe)
    assert decode(models, "--check") == (0 if tie else 1)
    err = capsys.readouterr().err
    assert "identical to target-only: no, from token 3 on (margin 0.5" in err
    assert ("rounding explains it" in err) == tie


def test_empty_prompt_begins_with_bos(models, tmp_path, capsys):
    target = save(tmp_path / "bos", tiny_models.model("llama", vocab_size=259), bos=True)
    assert decode({"target": target, "draft": "none"}, "--quiet", prompt="") == 0
    assert capsys.readouterr().out


def test_prompt_beyond_the_drafts_context_goes_on_alone(models, tmp_path, capsys):
    path = tmp_path / "s.json"
    assert decode(models, "--check", "--stats", path, prompt="y" * 300) == 0
    found = stats(path)
    assert (found["acceptance_length"], found["degraded"], found["identical"]) == (1, 0, True)
    assert "does not fit the draft's context of 256" in capsys.readouterr().err


def test_rtl_is_opened_with_its_options_and_reports(models, tmp_path, capsys, monkeypatch):
    from dfvg_host.decode.engine import open_device

    seen, module = [], types.ModuleType("dfvg_host.device.rtl")

    def open_rtl(image, progress, **options):
        seen.append(options)
        device = open_device("emulator", image, progress, {})
        device.rtl_report = lambda: {"cycles": 5, "eta": 0.5}
        return device

    module.open_rtl = open_rtl
    monkeypatch.setitem(sys.modules, "dfvg_host.device.rtl", module)
    wave, path = tmp_path / "w.vcd", tmp_path / "s.json"
    assert decode(models, "--device", "rtl", "--vcd", wave, "--stats", path) == 0
    assert seen == [{"vcd": wave, "vcd_passes": (0, 1)}]
    assert stats(path)["rtl"] == {"cycles": 5, "eta": 0.5}
    assert "eta in the RTL     0.500" in capsys.readouterr().err


def test_jsonl_lines_end_at_line_ends_only(models, tmp_path, capsys):
    path = tmp_path / "p.jsonl"
    path.write_bytes('\ufeff{"prompt": "a\u2028b\u0085c"}\r\n{"prompt": "x"}'.encode())
    assert decode(models, "--jsonl", path, "--quiet", prompt=None) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_options_without_effect_are_mentioned(models, capsys):
    assert decode(models, "--top-k", 5) == 0
    assert "--top-k 5 can't change anything at temperature 0" in capsys.readouterr().err


@pytest.mark.parametrize("error", [BrokenPipeError(), OSError(28, "No space left on device")])
def test_a_reader_that_is_gone_leaves_the_statistics(models, tmp_path, capsys, monkeypatch, error):
    class Gone:
        def __init__(self):
            self.calls = 0

        def write(self, text):
            self.calls += 1
            if self.calls > 3:
                raise error

        def flush(self):
            pass

        def fileno(self):
            raise OSError

    monkeypatch.setattr(sys, "stdout", Gone())
    path = tmp_path / "s.json"
    broken = isinstance(error, BrokenPipeError)
    assert decode(models, "--stats", path) == (141 if broken else 2)
    found = stats(path)
    assert found["finish_reason"] is None
    assert found["tokens"]
    assert ("No space left" in capsys.readouterr().err) != broken


def test_an_interrupted_walk_counts_as_a_step(models, tmp_path, monkeypatch):
    from dfvg_host.decode.output import Output

    original = Output.append

    def append(self, token):
        ended = original(self, token)
        if len(self.tokens) == 2:
            raise KeyboardInterrupt
        return ended

    monkeypatch.setattr(Output, "append", append)
    path = tmp_path / "s.json"
    assert decode(models, "--stats", path) == 130
    found = stats(path)
    assert (len(found["tokens"]), found["verify_steps"]) == (2, 2)
    assert found["acceptance_length"] == 1
