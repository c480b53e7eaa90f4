"""What `dfvg decode` refuses, each in one line, and what it keeps then."""

import sys

import pytest

from dfvg_host.cli import main
from dfvg_host.decode import Engine
from dfvg_hw.errors import ConfigError, ModelError, UsageError
from tests.host import tiny_models
from tests.host.decode.cli_models import decode, refused, save, stats


@pytest.mark.parametrize(
    ("options", "texts"),
    [
        (("--verifier-profile", "gpu-1t"), ("'gpu-1t'", "gpu-24g")),
        (("--config", "huge"), ("'huge'", "sim", "tiny")),
        (("--device", "fpga"), ("fpga", "emulator")),
        (("--temperature", "-1"), ("-1",)),
        (("--top-p", "0"), ("0",)),
        (("--tree-budget", "-1"), ("-1",)),
        (("--max-new-tokens", "-1"), ("-1",)),
        (("--draft", "/nowhere/x.dfvg"), ("/nowhere/x.dfvg",)),
        (("--target", "/nowhere"), ("/nowhere",)),
        (("--target", ""), ("model '' does not exist",)),
        (("--draft", "a" * 300), ("unknown model",)),
        (("--draft", "~no-such-user/x"), ("does not exist",)),
        (("--verifier-profile", ""), ("unknown verifier profile ''",)),
        (("--prompt", "a\udcff"), ("no lone surrogates",)),
        (("--prompt", "x" * 600), ("600 tokens", "512")),
        (("--prompt", ""), ("prompt is empty", "no BOS")),
    ],
)
def test_bad_options(models, capsys, options, texts):
    refused(capsys, decode(models, *options), *texts)


def test_bad_pairs(models, tmp_path, capsys):
    small = save(tmp_path / "small", tiny_models.model("llama", vocab_size=128))
    refused(capsys, decode(models, draft=small), "128", "259", "share a tokenizer")
    large = tiny_models.model("llama", vocab_size=400)
    large = save(tmp_path / "large", large, vocabulary=400)
    refused(capsys, decode(models, draft=large), "400", "259", "share a tokenizer")
    other = save(tmp_path / "other", tiny_models.model("llama", vocab_size=259), reverse=True)
    refused(capsys, decode(models, draft=other), "259", "differ from id 3", "share a tokenizer")
    qwen = save(tmp_path / "qwen", tiny_models.model("qwen2", vocab_size=259))
    refused(capsys, decode(models, draft=qwen), "qwen2", "llama")
    refused(capsys, decode(models, "--chat", target="draft"), "no chat template")
    refused(capsys, main(["decode", "--target", models["target"], "--prompt", "x"]), "no draft is")


@pytest.mark.parametrize(
    ("content", "texts"),
    [
        ("", ("holds no prompts",)),
        ("{", ("line 1 is not JSON",)),
        ('{"prompt": "x"}\n{"text": "y"}', ("line 2 must be an object",)),
        ("[" * 100_000, ("line 1 is not JSON: nested too deeply",)),
        ('{"prompt": "x", "id": 1' + "0" * 5000 + "}", ("line 1 is not JSON",)),
        ('{"prompt": "x", "id": NaN}', ("line 1 is not JSON: NaN",)),
        ('{"prompt": "x", "id": 1e999}', ("line 1 is not JSON: 1e999",)),
        ('{"prompt": "x", "id": [{"a": -1e999}]}', ("line 1 is not JSON: -1e999",)),
        ('{"prompt": "x", "id": ["\\ud800"]}', ("line 1 has an id with lone surrogates",)),
        ('{"prompt": 5}', ("line 1 must be an object",)),
        ('[{"prompt": "x"}]', ("line 1 must be an object",)),
        (b'{"prompt": "caf\xe9"}', ("p.jsonl is not readable UTF-8 text",)),
        ('{"prompt": "x\\ud800"}', ("line 1: prompt is", "no lone surrogates")),
        ('{"prompt": "' + "x" * 600 + '"}', ("line 1: prompt of 600 tokens",)),
    ],
)
def test_bad_prompt_files(models, tmp_path, capsys, content, texts):
    path = tmp_path / "p.jsonl"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    refused(capsys, decode(models, "--jsonl", path, prompt=None), *texts)


def test_what_was_finished_before_an_error_is_kept(models, tmp_path, capsys):
    prompts, path = tmp_path / "p.jsonl", tmp_path / "s.json"
    prompts.write_text('{"prompt": "one"}\n{"prompt": "' + "x" * 600 + '"}')
    code = decode(models, "--jsonl", prompts, "--stats", path, prompt=None)
    assert code == 2
    assert len(stats(path)) == 1
    assert "line 2: prompt of 600 tokens" in capsys.readouterr().err


def test_rtl_without_its_simulator_is_one_line(models, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "dfvg_host.device.rtl", None)
    refused(capsys, decode(models, "--device", "rtl"), "device rtl cannot be simulated here")


def test_cheap_checks_come_before_models():
    with pytest.raises(UsageError, match="gpu-1t"):
        Engine("/nowhere", verifier_profile="gpu-1t")
    with pytest.raises(ConfigError, match="huge"):
        Engine("/nowhere", config="huge")
    with pytest.raises(UsageError, match="device"):
        Engine("/nowhere", device="abacus")
    with pytest.raises(ModelError, match="/nowhere"):
        Engine("/nowhere")


def test_image_for_another_tokenizer_is_refused(models, tmp_path, capsys):
    other = save(tmp_path / "o", tiny_models.model("llama", vocab_size=259), reverse=True)
    image = str(tmp_path / "o.dfvg")
    assert main(["compile", other, "-o", image, "--config", "tiny", "--quiet"]) == 0
    capsys.readouterr()
    refused(capsys, decode(models, draft=image), "259 tokens", "must share a tokenizer")
