"""Targets and drafts that are damaged, or start to compute nonsense on the way."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from dfvg_host.cli import main
from dfvg_host.verify import TreeVerifier
from tests.host import tiny_models
from tests.host.decode.cli_models import CHAT, decode, refused, save, stats


@pytest.fixture
def nonsense(monkeypatch):
    """Return a function: from the pass of that number on, all logits are this value."""

    def after(passes, value):
        score, calls = TreeVerifier.score, []

        def spoiled(self, *arguments):
            logits = score(self, *arguments)
            calls.append(1)
            return torch.full_like(logits, value) if len(calls) > passes else logits

        monkeypatch.setattr(TreeVerifier, "score", spoiled)

    return after


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("sampling", [(), ("--temperature", "0.8")])
@pytest.mark.parametrize("option", ["--quiet", "--exact"])
def test_logits_that_are_no_numbers(models, tmp_path, capsys, nonsense, value, sampling, option):
    path = tmp_path / "s.json"
    assert decode(models, "--quiet", *sampling, "--stats", path, draft="none") == 0
    whole = stats(path)
    capsys.readouterr()
    nonsense(9, value)
    assert decode(models, *sampling, "--stats", path, option) == 2
    out, err = capsys.readouterr()
    found = stats(path)
    count = len(found["tokens"])
    assert 2 < count < 30
    assert found["tokens"] == whole["tokens"][:count]
    assert found["finish_reason"] is None
    assert found["verify_steps"] <= 10
    assert out.removesuffix("\n") == found["text"].removesuffix("\n")
    errors = [line for line in err.splitlines() if line.startswith("dfvg: error")]
    assert len(errors) == 1
    assert f"NaN or no finite value (after {count} tokens of output)" in errors[0]
    assert "Traceback" not in err


def test_a_batch_keeps_what_came_before_nonsense(models, tmp_path, capsys, nonsense):
    prompts, path = tmp_path / "p.jsonl", tmp_path / "s.json"
    prompts.write_text('{"prompt": "one"}\n{"prompt": "two"}\n{"prompt": "three"}\n')
    nonsense(40, float("nan"))
    words = ("--jsonl", prompts, "--stats", path)
    assert decode(models, *words, draft="none", prompt=None) == 2
    out, err = capsys.readouterr()
    lines = [json.loads(line) for line in out.splitlines()]
    assert [line.pop("id") for line in lines] == [1, 2]
    assert lines == stats(path)
    assert [line["finish_reason"] for line in lines] == ["length", None]
    assert "p.jsonl line 2: the target's logits" in err


def test_damaged_weights(tmp_path, capsys):
    model = tiny_models.model("llama", vocab_size=259)
    model.model.norm.weight[3] = float("nan")
    names = {"target": save(tmp_path / "nan", model)}
    refused(capsys, decode(names, draft="none"), "logits that are NaN: its weights are damaged")


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{% for m in messages %}", "TemplateSyntaxError: "),
        ("{{ messages[7].content.upper() }}", "UndefinedError: "),
        ("{{ raise_exception('system\nturn missing') }}", "TemplateError: system"),
    ],
)
def test_a_chat_template_that_fails(tmp_path, capsys, template, text):
    model = tiny_models.model("llama", vocab_size=259)
    names = {"target": save(tmp_path / "t", model, chat=template)}
    refused(capsys, decode(names, "--chat", draft="none"), "the chat template of ", text)


def without(folder, *tensors):
    """Take tensors out of a checkpoint."""
    path = folder / "model.safetensors"
    state = {name: value for name, value in load_file(path).items() if name not in tensors}
    save_file(state, path, metadata={"format": "pt"})


def test_missing_tensors(models, tmp_path, capsys):
    folder = tmp_path / "t"
    names = {**models, "damaged": save(folder, tiny_models.model("llama", vocab_size=259))}
    without(folder, "model.layers.1.mlp.up_proj.weight")
    line = ("is incomplete", "lacks the tensor model.layers.1.mlp.up_proj.weight")
    refused(capsys, decode(names, target="damaged", draft="none"), *line)
    refused(capsys, decode(names, draft="damaged"), *line)
    without(folder, "lm_head.weight")
    refused(capsys, decode(names, target="damaged", draft="none"), "lm_head.weight and 1 more")
    image = str(tmp_path / "x.dfvg")
    refused(capsys, main(["compile", str(folder), "-o", image, "--config", "tiny"]), line[0])


def test_a_tied_head_is_not_missing(tmp_path):
    model = tiny_models.model("llama", vocab_size=259, tie_word_embeddings=True)
    names = {"target": save(tmp_path / "tied", model)}
    assert "lm_head.weight" not in load_file(tmp_path / "tied" / "model.safetensors")
    assert decode(names, "--quiet", draft="none") == 0


def test_tensors_of_other_shapes(tmp_path, capsys):
    folder = tmp_path / "t"
    names = {"target": save(folder, tiny_models.model("llama", vocab_size=259))}
    path = folder / "model.safetensors"
    state = load_file(path)
    state["model.norm.weight"] = state["model.norm.weight"][:40].clone()
    save_file(state, path, metadata={"format": "pt"})
    refused(
        capsys,
        decode(names, draft="none"),
        "is damaged",
        "model.norm.weight has the shape (40,)",
        "(64,)",
    )


@pytest.mark.parametrize(
    ("file", "content", "texts"),
    [
        ("model.safetensors", 5000, ("cannot load model",)),
        ("model.safetensors", 0, ("cannot load model",)),
        ("model.safetensors", None, ("cannot load model", "no file named")),
        ("config.json", 5, ("the config.json of model", "cannot be used", "not a valid JSON")),
        ("config.json", {"num_attention_heads": 0}, ("the config.json of model",)),
        ("config.json", {"vocab_size": 200}, ("is damaged", "(259, 64)", "(200, 64)")),
        ("config.json", {"num_hidden_layers": 4}, ("lacks the tensor model.layers.3",)),
        ("tokenizer.json", 5, ("cannot load the tokenizer of model",)),
        ("tokenizer.json", None, ("cannot load the tokenizer of model",)),
    ],
)
def test_a_damaged_folder(tmp_path, capsys, file, content, texts):
    """Cut a file, take it away, or change it."""
    folder = tmp_path / "t"
    names = {"target": save(folder, tiny_models.model("llama", vocab_size=259))}
    path = folder / file
    if content is None:
        path.unlink()
    elif isinstance(content, int):
        path.write_bytes(path.read_bytes()[:content])
    else:
        path.write_text(json.dumps({**json.loads(path.read_text()), **content}))
    refused(capsys, decode(names, draft="none"), *texts)


def test_tensors_that_the_model_has_no_use_for(tmp_path, capsys):
    folder = tmp_path / "t"
    names = {"target": save(folder, tiny_models.model("llama", vocab_size=259))}
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 2}))
    assert decode(names, draft="none") == 0
    text = "9 tensors, such as model.layers.2.input_layernorm.weight, are not of LlamaForCausalLM"
    assert text in capsys.readouterr().err


def test_more_padded_rows_than_the_target(models, tmp_path, capsys):
    padded = save(tmp_path / "p", tiny_models.model("llama", vocab_size=320))
    refused(capsys, decode(models, draft=padded), "320", "can propose id 319", "259", "padded")


@pytest.mark.parametrize(
    ("place", "change", "text"),
    [
        (0, b"GGUF", "is not a draft image"),
        (8, b"\x07\0\0\0", "version 7"),
        (20, b"\0\0\0\0", "digest"),
        (-64, b"damaged!", "digest"),
        (None, b"", "truncated"),
    ],
)
def test_images_that_are_damaged(models, tmp_path, capsys, place, change, text):
    path = tmp_path / "d.dfvg"
    assert main(["compile", models["draft"], "-o", str(path), "--config", "tiny", "--quiet"]) == 0
    data = bytearray(path.read_bytes())
    if place is None:
        del data[len(data) // 2 :]
    else:
        place %= len(data)
        data[place : place + len(change)] = change
    path.write_bytes(data)
    refused(capsys, decode(models, draft=str(path)), str(path), text)


def test_an_image_for_another_config(models, tmp_path, capsys):
    path = tmp_path / "d.dfvg"
    assert main(["compile", models["draft"], "-o", str(path), "--config", "tiny", "--quiet"]) == 0
    refused(capsys, decode(models, "--config", "sim", draft=str(path)), "'tiny'", "'sim'")


def test_an_image_made_for_another_target(models, tmp_path, capsys):
    """With the embedding of another model of the same tokenizer: slower at worst, and said so."""
    image, path = str(tmp_path / "d.dfvg"), tmp_path / "s.json"
    words = ["-o", image, "--config", "tiny", "--quiet"]
    assert main(["compile", models["draft"], "--target", models["noise"], *words]) == 0
    assert decode(models, "--check", draft=image) == 0
    assert "compiled for another target than" in capsys.readouterr().err
    twin = save(tmp_path / "twin", tiny_models.model("llama", 99, 0.25, vocab_size=259), chat=CHAT)
    assert main(["compile", models["draft"], "--target", models["target"], *words]) == 0
    assert decode(models, "--check", "--stats", path, draft=image) == 0
    assert "another target" not in capsys.readouterr().err
    assert decode({**models, "target": twin}, "--check", "--quiet", draft=image) == 0
    assert "compiled for another target than" in capsys.readouterr().err
