"""The committed output: stop rules are applied to every token, in one place."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from .params import DecodeParams
from .text import TextStream

__all__ = ["Output", "stop_ids"]


class Output:
    """Tokens of one request, cut at the first of stop token, stop string, length, context.

    Parameters
    ----------
    params: the request.
    stop_tokens: ids that end it.
    room: tokens that fit behind the prompt into the target's context; None without limit.
    tokenizer: for text and stop strings.
    on_text: called with each piece of text as soon as it can't change any more.

    Attributes
    ----------
    tokens: committed ids. An end-of-text id is the last one; so is the token that completed a stop
        string, whose text is cut.
    finish_reason: ``stop``, ``length`` or ``context``; None while the output goes on.
    """

    def __init__(
        self,
        params: DecodeParams,
        stop_tokens: Collection[int],
        room: int | None,
        tokenizer: Any | None = None,
        on_text: Callable[[str], None] | None = None,
    ) -> None:
        self.tokens: list[int] = []
        self.finish_reason: str | None = None
        self._stop_tokens = frozenset(stop_tokens)
        self._limit = params.max_new_tokens
        self._limit_name = "length"
        if room is not None and room < self._limit:
            self._limit, self._limit_name = room, "context"
        self._on_text = on_text
        self._stream = TextStream(tokenizer, params.stop)
        if self._limit <= 0:
            self._finish(self._limit_name)

    @property
    def text(self) -> str:
        """The text released so far; all of it once the output is finished."""
        return self._stream.text

    @property
    def remaining(self) -> int:
        """Most tokens that may still be appended."""
        return 0 if self.finish_reason else self._limit - len(self.tokens)

    def append(self, token: int) -> bool:
        """Commit one token; returns True if the output ends with it."""
        if self.finish_reason:
            raise RuntimeError("the output has ended")
        self.tokens.append(token)
        self._emit(self._stream.push(token))
        if token in self._stop_tokens or self._stream.stopped:
            self._finish("stop")
        elif len(self.tokens) == self._limit:
            self._finish(self._limit_name)
        return self.finish_reason is not None

    def flush(self) -> None:
        """Release withheld text although the output hasn't ended (it was interrupted)."""
        self._emit(self._stream.finish())

    def _finish(self, reason: str) -> None:
        self.finish_reason = reason
        self.flush()
        if self._stream.stopped:  # in what was withheld until now
            self.finish_reason = "stop"

    def _emit(self, piece: str) -> None:
        if piece and self._on_text is not None:
            self._on_text(piece)


def stop_ids(model: Any, tokenizer: Any | None, params: DecodeParams) -> tuple[int, ...]:
    """Return the ids that end the output, ascending.

    The model's end-of-text ids unless the request names its own, and any stop string that is a
    special token: such tokens have no text that a stop string could be found in.
    """
    ids: set[int] = set()
    if params.stop_tokens is not None:
        ids.update(params.stop_tokens)
    else:
        for source in (getattr(model, "generation_config", None), model.config, tokenizer):
            value = getattr(source, "eos_token_id", None)
            ids.update([value] if isinstance(value, int) else value or [])
    special = set(getattr(tokenizer, "all_special_ids", ()))
    for stop in params.stop:
        token = tokenizer.convert_tokens_to_ids(stop) if tokenizer is not None else None
        if token is not None and token in special:
            ids.add(token)
    # Configs hold odd values, -1 for instance; such an id is never drawn.
    return tuple(sorted(token for token in ids if isinstance(token, int) and token >= 0))
