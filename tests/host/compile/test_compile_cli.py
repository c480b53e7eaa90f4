"""`dfvg compile` and the one door for drafts: models, draft folders, images."""

import json

import pytest
import torch

from dfvg_host.cli.main import main
from dfvg_host.compile import draft_image, is_image, read_image
from dfvg_host.distill.checkpoint import save_draft
from dfvg_host.distill.draft import Draft
from dfvg_host.models import load_target
from dfvg_hw.errors import ModelError
from tests.host import tiny_models
from tests.host.small_drafts import llama, tiny


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A target folder with tokenizer."""
    path = tmp_path_factory.mktemp("target")
    llama(vocab_size=259, hidden_size=64).save_pretrained(path)
    tiny_models.tokenizer().save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def draft_folder(folder, tmp_path_factory):
    """A draft folder for it: one layer, every third id."""
    target = load_target(str(folder))
    ids = torch.arange(0, 259, 3)
    model = llama(7, vocab_size=259, num_hidden_layers=1)
    head = torch.nn.Linear(64, len(ids), bias=False)
    head.weight.data = model.lm_head.weight.data[ids]
    model.lm_head = head
    model.set_input_embeddings(target.model.get_input_embeddings())
    path = tmp_path_factory.mktemp("draft")
    save_draft(path, Draft(model, ids))
    return path


def test_compile_writes_a_readable_image(folder, tmp_path, capsys):
    out = tmp_path / "x.dfvg"
    assert main(["compile", str(folder), "-o", str(out), "--config", "tiny"]) == 0
    image = read_image(out, tiny())
    assert image.dims.layers == 2
    text = capsys.readouterr()
    assert text.out == ""
    assert "2 layers of hidden size 64, 256 of 259 tokens" in text.err
    assert main(["compile", str(folder), "-o", str(out), "--config", "tiny", "--quiet"]) == 0
    assert capsys.readouterr().err == ""
    assert is_image(str(out))


def test_a_draft_folder_takes_its_embedding_from_the_target(folder, draft_folder, tmp_path):
    out = tmp_path / "d.dfvg"
    arguments = ["compile", str(draft_folder), "-o", str(out), "--config", "tiny"]
    assert main([*arguments, "--target", str(folder), "--quiet"]) == 0
    image = read_image(out, tiny())
    assert image.dims.out_vocab == 80
    assert image.dims.layers == 1
    assert image.output_ids[:3].tolist() == [0, 3, 6]
    own = draft_image(str(folder), tiny())
    assert (image.segment("embedding").data == own.segment("embedding").data).all()
    assert image.source["target"] == load_target(str(folder)).digest


def test_a_draft_folder_without_target_is_refused(draft_folder):
    with pytest.raises(ModelError, match="needs a target"):
        draft_image(str(draft_folder), tiny())


def test_embedding_rows_from_another_target(folder, tmp_path):
    other = tmp_path / "other"
    llama(9, vocab_size=259).save_pretrained(other)
    tiny_models.tokenizer().save_pretrained(other)
    target = load_target(str(other))
    mixed = draft_image(str(folder), tiny(), target, embedding_from_target=True)
    theirs = draft_image(str(other), tiny())
    ours = draft_image(str(folder), tiny())
    assert (mixed.segment("embedding").data == theirs.segment("embedding").data).all()
    assert (mixed.segment("head").data == ours.segment("head").data).all()
    assert (mixed.segment("layer0").data == ours.segment("layer0").data).all()


def test_an_image_is_read_not_compiled(folder, tmp_path):
    out = tmp_path / "x.dfvg"
    main(["compile", str(folder), "-o", str(out), "--config", "tiny", "--quiet"])
    assert draft_image(str(out), tiny()).digest == draft_image(str(folder), tiny()).digest


def _fails(arguments, capsys, *parts):
    assert main(arguments) == 2
    text = capsys.readouterr()
    assert text.out == ""
    assert "Traceback" not in text.err
    line = text.err.strip().splitlines()[-1]  # above it: transformers' own progress bars
    for part in parts:
        assert part in line


def test_errors_are_one_line_and_exit_2(folder, draft_folder, tmp_path, capsys):
    out = ["-o", str(tmp_path / "x.dfvg"), "--quiet"]
    _fails(["compile", str(folder), *out, "--config", "huge"], capsys, "'huge'", "sim, tiny")
    _fails(["compile", str(tmp_path / "no"), *out], capsys, "no")
    qwen = tmp_path / "qwen"
    tiny_models.model("qwen2").save_pretrained(qwen)
    tiny_models.tokenizer().save_pretrained(qwen)
    _fails(["compile", str(qwen), *out], capsys, "'qwen2' model", "'llama'")
    big = tmp_path / "big"
    llama(intermediate_size=2000).save_pretrained(big)
    tiny_models.tokenizer().save_pretrained(big)
    _fails(["compile", str(big), *out, "--config", "tiny"], capsys, "vm_depth 2112", "has 1024")
    image = tmp_path / "x.dfvg"
    assert main(["compile", str(folder), "-o", str(image), "--config", "tiny", "--quiet"]) == 0
    _fails(["compile", str(image), *out, "--config", "tiny"], capsys, "compiled already")


def test_another_vocabulary_is_refused(draft_folder, tmp_path):
    other = tmp_path / "other"
    llama(vocab_size=300).save_pretrained(other)
    tiny_models.tokenizer().save_pretrained(other)
    with pytest.raises(ModelError, match=r"259.*300"):
        draft_image(str(draft_folder), tiny(), load_target(str(other)))


def test_a_config_of_a_draft_folder_may_be_damaged(folder, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"draft_vocab": [1]}))
    with pytest.raises(ModelError, match=r"config\.json"):
        draft_image(str(tmp_path), tiny(), load_target(str(folder)))
