"""GGUF to a Hugging Face folder, once: safetensors (dequantised, fp32) plus tokenizer.json.

transformers reads GGUF, but slowly (tens of seconds a load) and cannot save what it read; the
converted folder loads in about a second and is what every later run uses.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

from dfvg_hw.errors import ModelError
from sim.toolchain import cache_root

from .cache import (
    build_once,
    progress,
    quiet_transformers,
    require_disk,
    sha256_file,
)
from .complete import read_weights

__all__ = ["convert_gguf"]

_NEEDS = ("gguf", "accelerate")  # transformers asks for both, each with an error of its own kind


def _check_readable(path: Path) -> None:
    missing = [name for name in _NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        raise ModelError(
            f"reading {path.name} needs the Python package{'s' * (len(missing) > 1)} "
            f"{' and '.join(missing)}: pip install {' '.join(missing)}"
        )
    with open(path, "rb") as file:
        if file.read(4) != b"GGUF":
            raise ModelError(f"{path} is not a GGUF file (its first four bytes are not 'GGUF')")


def _has_output_head(path: Path) -> bool:
    from gguf import GGUFReader

    return any(tensor.name == "output.weight" for tensor in GGUFReader(path).tensors)


def _write(path: Path, digest: str, work: Path) -> None:
    import torch
    from safetensors.torch import save_file
    from transformers import AutoTokenizer

    source = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    try:
        with quiet_transformers():
            tokenizer = AutoTokenizer.from_pretrained(**source)
        # Without a head of its own the model is tied, whatever its config says.
        model = read_weights(path.name, source, torch.float32, ("lm_head.weight",))
    except ModelError:
        raise
    except Exception as err:  # any reader error becomes one line: the file is the culprit
        reason = str(err).strip().splitlines() or [type(err).__name__]
        raise ModelError(
            f"cannot read {path.name} as a causal language model: {reason[0]}"
        ) from err
    # A file may carry its own (separately quantised) head although the original model is tied.
    tied = not _has_output_head(path)
    model.config.tie_word_embeddings = tied
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config  # save_pretrained refuses GGUF-loaded models
    state = {name: value.contiguous() for name, value in model.state_dict().items()}
    if tied:
        state.pop("lm_head.weight", None)
    require_disk(work, sum(value.nbytes for value in state.values()) + 10**8)
    save_file(state, work / "model.safetensors", metadata={"format": "pt"})
    model.config.save_pretrained(work)
    if model.generation_config is not None:
        model.generation_config.save_pretrained(work)
    tokenizer.save_pretrained(work)
    record = {"source": path.name, "sha256": digest, "format": "gguf", "dtype": "fp32"}
    (work / "dfvg-source.json").write_text(json.dumps(record, indent=1) + "\n")


def convert_gguf(path: Path) -> Path:
    """Return the Hugging Face folder made from a GGUF file, converting it at the first call.

    The folder is named by the file's SHA-256, so a changed file is converted anew.

    Raises
    ------
    ModelError
        The file is no GGUF, needs a missing package, holds no causal language model, or the
        disk is too full.
    """
    _check_readable(path)
    digest = sha256_file(path)

    def build(work: Path) -> None:
        progress(f"converting {path.name} once (about half a minute)")
        _write(path, digest, work)
        progress(f"converted to {work.parent.parent}")

    return build_once(cache_root() / "models" / f"{path.stem.lower()}-{digest[:12]}", build)
