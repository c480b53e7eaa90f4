"""Reading weights with transformers, which makes up whatever is missing in silence."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from dfvg_hw.errors import ModelError

from .cache import progress, quiet_transformers

__all__ = ["read_weights"]


def read_weights(name: str, source: Mapping[str, Any], dtype: Any, spare: Collection[str]) -> Any:
    """Return a causal language model of which every tensor was read.

    Says so if the file holds others.

    Parameters
    ----------
    name: the model, as the user knows it.
    source: arguments of ``from_pretrained`` that say where it lies.
    dtype: torch dtype of the weights.
    spare: tensors that may be missing. A head that the config ties to the embedding is never
        counted as missing.

    Raises
    ------
    ModelError
        A tensor is missing or has another shape than the config says; in one line.
    Exception
        Whatever transformers raises on a file that it can't read.
    """
    from transformers import AutoModelForCausalLM

    with quiet_transformers():
        model, found = AutoModelForCausalLM.from_pretrained(
            **source, dtype=dtype, output_loading_info=True, ignore_mismatched_sizes=True
        )
    # Each entry: name, shape in the file, shape in the model.
    for tensor, stored, wanted in sorted(found["mismatched_keys"]):
        raise ModelError(
            f"model {name!r} is damaged: its tensor {tensor} has the shape {tuple(stored)}, its "
            f"config says {tuple(wanted)}"
        )
    missing = set(found["missing_keys"]) - set(spare)
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ModelError(f"model {name!r} is incomplete: it lacks the tensor {min(missing)}{more}")
    unused = found["unexpected_keys"]
    if unused:  # parts that text doesn't need, or a config of another model
        kind = type(model).__name__
        progress(f"model {name!r}: {len(unused)} tensors, such as {min(unused)}, are not of {kind}")
    return model
