"""A tokenizer's chat template: a program of the model's author, which may be wrong in any way."""

from __future__ import annotations

from typing import Any

from dfvg_hw.errors import ModelError

__all__ = ["in_template"]


def in_template(tokenizer: Any, message: str, name: str) -> str:
    """Return a user's message in the chat template, up to where the answer begins.

    Parameters
    ----------
    tokenizer: one with a chat template.
    message: the user's turn.
    name: the model, for error lines.

    Raises
    ------
    ModelError
        The template fails.
    """
    turns = [{"role": "user", "content": message}]
    try:
        return str(tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True))
    except Exception as error:
        reason = (str(error).strip().splitlines() or ["no reason given"])[0]
        raise ModelError(
            f"the chat template of {name} fails: {type(error).__name__}: {reason}"
        ) from None
