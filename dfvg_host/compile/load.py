"""One way in for every draft: a `.dfvg` image, a draft folder, or a model."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dfvg_host.files import is_file
from dfvg_hw.config import DeviceConfig
from dfvg_hw.errors import ModelError

from .compiler import compile_model
from .image import MAGIC, DraftImage, read_image
from .source import float_model
from .vocabulary import difference, fingerprint

__all__ = ["draft_image", "is_draft_folder", "is_image"]


def is_image(name: str) -> bool:
    """Whether a name means a compiled image: by its ending or its first bytes."""
    path = Path(name)
    if path.suffix == ".dfvg":
        return True
    if not is_file(path):
        return False
    try:
        with open(path, "rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def is_draft_folder(name: str) -> bool:
    """Whether a name means a draft made by `dfvg distill`: without embedding, own head ids."""
    path = Path(name) / "config.json"
    try:
        return "draft_vocab" in json.loads(path.read_text())
    except (OSError, ValueError):
        return False


def draft_image(
    name: str,
    config: DeviceConfig,
    target: Any = None,
    embedding_from_target: bool = False,
    progress: Callable[[str], None] = lambda _: None,
) -> DraftImage:
    """Read or compile a draft.

    Parameters
    ----------
    name : str
        A `.dfvg` file, a draft folder, or anything that `load_target` takes.
    config : DeviceConfig
    target : LoadedTarget, optional
        The pair's target. A draft folder takes its embedding from it and needs it; a model called
        like the target isn't read twice.
    embedding_from_target : bool
        Take a plain model's embedding rows, and its head rows if tied, from the target as well.
    progress : callable
        Gets one line per step.

    Raises
    ------
    ImageError
        If an image is unusable or a model doesn't fit the config.
    ModelError
        If a model is missing, no LLaMA, or doesn't match the target.
    """
    if is_image(name):
        image = read_image(Path(name), config)
        _check_image(name, image, target)
        return image
    if is_draft_folder(name):
        return _from_folder(name, config, target, progress)
    return _from_model(name, config, target, embedding_from_target, progress)


def _from_folder(
    name: str, config: DeviceConfig, target: Any, progress: Callable[[str], None]
) -> DraftImage:
    from dfvg_host.distill.checkpoint import load_draft

    if target is None:
        raise ModelError(f"draft {name} has no embedding of its own: it needs a target")
    draft = load_draft(Path(name), target.model)
    source = {"name": Path(name).name, "digest": draft.digest, "target": target.digest}
    if target.tokenizer is not None:
        source["tokenizer"] = fingerprint(target.tokenizer)
    model = float_model(draft.model, draft.output_ids, name)
    limit = draft.config.max_position_embeddings
    return compile_model(model, config, limit, source, progress)


def _check_image(name: str, image: DraftImage, target: Any) -> None:
    """Refuse an image whose ids mean other texts than the target's."""
    ours = image.source.get("tokenizer")
    if ours is None or target is None or target.tokenizer is None:
        return
    block = difference(ours, target.tokenizer)
    if block is not None:
        raise ModelError(
            f"{name} was compiled for a tokenizer of {ours['tokens']} tokens, {target.name} has "
            f"one of {len(target.tokenizer.get_vocab())}: they must share a tokenizer, but differ "
            f"in the 256 ids from {block} on"
        )


def _check_tokenizers(name: str, tokenizer: Any, target: Any) -> None:
    """Refuse a pair whose ids mean different texts; one may know more ids at the end."""
    if tokenizer is None or target.tokenizer is None:
        return
    ours, theirs = (
        {number: token for token, number in each.get_vocab().items()}
        for each in (tokenizer, target.tokenizer)
    )
    shared = sorted(ours.keys() & theirs.keys())
    different = [number for number in shared if ours[number] != theirs[number]]
    if different:
        raise ModelError(
            f"{name} has a tokenizer of {len(ours)} tokens, {target.name} one of {len(theirs)}: "
            f"they must share a tokenizer, but differ from id {different[0]} on"
        )


def _from_model(
    name: str,
    config: DeviceConfig,
    target: Any,
    embedding_from_target: bool,
    progress: Callable[[str], None],
) -> DraftImage:
    from dfvg_host.models import load_target

    same = target is not None and target.name == name and target.dtype == "fp32"
    loaded = target if same else load_target(name)
    if target is not None and not same:
        _check_tokenizers(name, loaded.tokenizer, target)
    model = float_model(loaded.model, name=name)
    source: dict[str, Any] = {"name": name, "digest": loaded.digest}
    if loaded.tokenizer is not None:
        source["tokenizer"] = fingerprint(loaded.tokenizer)
    if embedding_from_target and not same:
        theirs = target.model.get_input_embeddings().weight.detach()
        if theirs.shape != model.embedding.shape:
            raise ModelError(
                f"{name} has an embedding of {tuple(model.embedding.shape)}, {target.name} of "
                f"{tuple(theirs.shape)}: they must agree to be exchanged"
            )
        tied = loaded.model.config.tie_word_embeddings
        head = theirs.cpu() if tied else model.head
        model = dataclasses.replace(model, embedding=theirs.cpu(), head=head)
        source["target"] = target.digest
    limit = loaded.model.config.max_position_embeddings
    return compile_model(model, config, limit, source, progress)
