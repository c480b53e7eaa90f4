"""Prompts: from options and files to texts, and from texts to token ids."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dfvg_host.files import is_text, read_json
from dfvg_host.models.chat import in_template
from dfvg_hw.errors import UsageError

__all__ = ["Request", "encode", "read_jsonl", "read_text"]


@dataclass(frozen=True)
class Request:
    """One prompt.

    Attributes
    ----------
    id: what its result is called: the line's own ``id``, else its number from 1.
    prompt: the text.
    where: file and line, for error lines; "" for a prompt from the command line.
    """

    id: Any
    prompt: str
    where: str = ""


def _read(path: Path) -> str:
    """Return a file's text without the mark that some editors put in front."""
    try:
        return path.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"prompt file {path} is not readable UTF-8 text: {error}") from None


def read_text(path: Path) -> str:
    """Return a file that is one prompt; one line end at its end is not part of it."""
    return _read(path).replace("\r\n", "\n").removesuffix("\n")


def read_jsonl(path: Path) -> list[Request]:
    """Return the prompts of a file with one object a line, each with a text ``prompt``.

    Other keys than ``prompt`` and ``id`` are ignored; so are empty lines.

    Raises
    ------
    UsageError
        Naming file and line.
    """
    # Not splitlines(): JSON texts may hold U+2028 and its like.
    lines = _read(path).split("\n")
    requests = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{path} line {number}"
        try:
            item = read_json(line)
        except ValueError as error:
            raise UsageError(f"{where} is not JSON: {error}") from None
        if not isinstance(item, dict) or not isinstance(item.get("prompt"), str):
            raise UsageError(f'{where} must be an object with a text "prompt": {{"prompt": "..."}}')
        name = item.get("id", number)
        if not is_text(json.dumps(name, ensure_ascii=False)):
            raise UsageError(f"{where} has an id with lone surrogates: expected text without")
        requests.append(Request(name, item["prompt"], where))
    if not requests:
        raise UsageError(f"prompt file {path} holds no prompts")
    return requests


def encode(tokenizer: Any, prompt: str, chat: bool, name: str) -> list[int]:
    """Return the token ids of a prompt.

    Parameters
    ----------
    tokenizer: the target's.
    prompt: the text.
    chat: put it into the chat template as the user's message.
    name: the target, for error lines.

    Raises
    ------
    UsageError
        No chat template, or an empty prompt and no BOS token to begin with.
    ModelError
        The chat template fails.
    """
    if not is_text(prompt):
        raise UsageError(
            f"prompt is {prompt[:200]!r}: expected text, which holds no lone surrogates"
        )
    if chat:
        if not getattr(tokenizer, "chat_template", None):
            raise UsageError(f"--chat: the tokenizer of {name} has no chat template")
        text = in_template(tokenizer, prompt, name)
        ids = tokenizer(text, add_special_tokens=False).input_ids
    else:
        ids = tokenizer(prompt).input_ids
    if ids:
        return list(ids)
    if tokenizer.bos_token_id is None:
        raise UsageError(f"prompt is empty and the tokenizer of {name} has no BOS token")
    return [tokenizer.bos_token_id]
