"""The draft folder: ``config.json`` and an int8 ``model.safetensors`` (docs/draft-model.md)."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from dfvg_host.models.cache import sha256_file
from dfvg_hw.errors import ModelError

from .draft import Draft, llama_from_config

__all__ = ["LoadedDraft", "load_draft", "quantize_rows", "save_draft", "shipped_draft"]

FORMAT, VERSION = "dfvg-draft", 1
_SCALE = ".scale"
_SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")


@dataclass
class LoadedDraft(Draft):
    """A draft read from a folder.

    Attributes
    ----------
    int8: matrices as stored: name -> (int8 (rows, columns), fp32 scale (rows,)); the float
        weight of `model` is their product.
    record: the ``dfvg`` part of ``config.json``.
    digest: 64 hexadecimal digits over both files.
    """

    int8: dict[str, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)
    record: dict[str, Any] = field(default_factory=dict)
    digest: str = ""


def quantize_rows(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise a matrix to int8, one scale a row, symmetric, range -127 to 127.

    The largest magnitude of a row maps to 127 exactly, so quantising the product again gives
    the same integers.

    Returns
    -------
    int8 (rows, columns) and fp32 scales (rows,); a row of zeros has scale 1.
    """
    weight = weight.float()
    scale = weight.abs().amax(1) / 127
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))
    return (weight / scale[:, None]).round().clamp(-127, 127).to(torch.int8), scale


def save_draft(folder: Path, draft: Draft, record: dict[str, Any] | None = None) -> None:
    """Write a draft folder (created if absent, its two files replaced).

    Parameters
    ----------
    folder: the draft folder.
    draft: in floating point; matrices are quantised by `quantize_rows`, vectors kept in fp32.
    record: what else to remember (target name and digest, training settings, evaluation).
    """
    from safetensors.torch import save_file

    tensors = {}
    for name, value in draft.trained().items():
        if value.ndim == 2:
            tensors[name], tensors[name + _SCALE] = quantize_rows(value)
        else:
            tensors[name] = value.float().contiguous()
    config = draft.config.to_dict()
    for key in ("_name_or_path", "_model_name_or_path"):  # where the target lay on this machine
        config.pop(key, None)
    config["draft_vocab"] = draft.output_ids.tolist()
    config["dfvg"] = {"format": FORMAT, "version": VERSION, **(record or {})}
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)  # safetensors writes for the owner only
    (folder / "config.json").write_text(_dump(config))


def _dump(config: dict[str, Any]) -> str:
    """JSON with one key a line at the top and lists of numbers on one line."""
    lines = [f" {json.dumps(key)}: {json.dumps(config[key])}" for key in sorted(config)]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text())
        record = config["dfvg"]
        found = record["format"], record["version"]
        ids = config["draft_vocab"]
        sizes = [config[key] for key in _SIZES]
    except FileNotFoundError as err:
        raise ModelError(f"{folder} is not a draft folder: it has no config.json") from err
    except (OSError, ValueError, KeyError, TypeError) as err:
        raise ModelError(f"{path} is not a draft's config: no usable {err}") from err
    if found != (FORMAT, VERSION):
        raise ModelError(f"{path} has format {found[0]} {found[1]}, read is {FORMAT} {VERSION}")
    for key, size in zip(_SIZES, sizes, strict=True):
        if type(size) is not int or size < 1:
            raise ModelError(f"{path} has the {key} {size!r}: expected a whole number, 1 or more")
    whole = isinstance(ids, list) and all(type(number) is int for number in ids)
    if (
        not whole
        or not ids
        or ids != sorted(set(ids))
        or not 0 <= ids[0] <= ids[-1] < config["vocab_size"]
    ):
        raise ModelError(
            f"{path}: draft_vocab must be ascending ids below vocab_size {config['vocab_size']}"
        )
    return dict(config)


def _check_pair(config: dict[str, Any], target: Any, folder: Path) -> torch.Tensor:
    embedding = target.get_input_embeddings().weight.detach()
    ours = config["vocab_size"], config["hidden_size"]
    theirs = tuple(embedding.shape)
    if ours[0] != theirs[0]:
        raise ModelError(
            f"draft {folder.name} has vocabulary {ours[0]}, the target has {theirs[0]}: "
            "they must share a tokenizer"
        )
    if ours[1] != theirs[1]:
        raise ModelError(
            f"draft {folder.name} has hidden size {ours[1]}, the target has {theirs[1]}: the "
            "draft uses the target's embedding"
        )
    return embedding


def load_draft(folder: Path, target: Any) -> LoadedDraft:
    """Read a draft folder.

    Parameters
    ----------
    folder: the draft folder.
    target: the transformers model whose input embedding the draft uses.

    Returns
    -------
    LoadedDraft
        In fp32, eval mode, gradients off.

    Raises
    ------
    ModelError
        No draft folder, another version, damaged, or made for another vocabulary or hidden size.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file
    from transformers import LlamaConfig

    folder = Path(folder)
    config = _read_config(folder)
    embedding = _check_pair(config, target, folder)
    ids, record = torch.tensor(config.pop("draft_vocab")), config.pop("dfvg")
    try:
        draft = llama_from_config(LlamaConfig.from_dict(config), embedding, ids)
    except Exception as err:  # whatever transformers makes of a value
        reason = " ".join(str(err).split()) or type(err).__name__
        raise ModelError(f"{folder / 'config.json'} cannot be used: {reason}") from err
    path = folder / "model.safetensors"
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as err:
        raise ModelError(f"{path} cannot be read: {err}") from err
    state, int8 = {}, {}
    for name, wanted in draft.trained().items():
        value, scale = tensors.get(name), tensors.get(name + _SCALE)
        if value is None or value.shape != wanted.shape:
            raise ModelError(f"{path} lacks a usable tensor {name} of shape {tuple(wanted.shape)}")
        if value.ndim == 2 and (scale is None or scale.shape != wanted.shape[:1]):
            raise ModelError(
                f"{path} lacks a usable tensor {name}{_SCALE} of shape ({wanted.shape[0]},)"
            )
        if value.ndim == 2 and scale is not None:
            int8[name] = (value, scale)
            value = value.float() * scale[:, None]
        state[name] = value
    draft.model.load_state_dict(state, strict=False)
    draft.model.eval().requires_grad_(False)
    total = sha256_file(folder / "config.json") + sha256_file(path)
    digest = hashlib.sha256(total.encode()).hexdigest()
    return LoadedDraft(draft.model, ids, int8, record, digest)


def shipped_draft() -> Path:
    """Return the folder of the draft shipped for SmolLM2-135M-Instruct."""
    return Path(__file__).parents[1] / "data" / "draft-smollm2-135m-instruct"
