"""From tokens to text as it comes: whole characters only, and no part of a stop string."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["TextStream"]

_BROKEN = "\ufffd"  # what a tokenizer puts for bytes that aren't a character yet


class TextStream:
    """Incremental detokenizer that withholds what may still change.

    Parameters
    ----------
    tokenizer: a transformers tokenizer; None gives no text at all.
    stops: stop strings. The text ends before the first one found; it's looked for in the text, so
        it may begin and end anywhere inside tokens.
    """

    def __init__(self, tokenizer: Any | None, stops: Sequence[str] = ()) -> None:
        self._tokenizer = tokenizer
        self._stops = tuple(stops)
        self._ids: list[int] = []
        # Tokens [_start, _done) only give context: a token's text may depend on the one before it.
        self._start = 0
        self._done = 0
        self._ahead = 0  # characters of the tokens from _done on that are released already
        self._withheld = ""
        self.stopped = False
        self.text = ""

    def push(self, token: int) -> str:
        """Take one token and return the text that's certain now.

        Sets `stopped` if a stop string is complete; nothing may be pushed after that.
        """
        self._ids.append(token)
        return self._release(self._new_text(final=False), final=False)

    def finish(self) -> str:
        """Return everything withheld: the output ends here, so nothing can change any more."""
        if self.stopped:
            return ""
        return self._release(self._new_text(final=True), final=True)

    def _decode(self, ids: Sequence[int]) -> str:
        if self._tokenizer is None or not ids:
            return ""
        text: str = self._tokenizer.decode(
            list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text

    def _new_text(self, final: bool) -> str:
        """Text of the tokens not released yet, up to a character that isn't complete."""
        before = self._decode(self._ids[self._start : self._done])
        after = self._decode(self._ids[self._start :])
        whole = final or not after.endswith(_BROKEN)
        new = (after if whole else after.rstrip(_BROKEN))[len(before) + self._ahead :]
        if not whole:
            # A token may hold the end of one character and the beginning of another.
            self._ahead += len(new)
        elif len(after) > len(before):
            self._start, self._done, self._ahead = self._done, len(self._ids), 0
        return new

    def _release(self, new: str, final: bool) -> str:
        pending = self._withheld + new
        found = min(
            (place for stop in self._stops if (place := pending.find(stop)) >= 0), default=-1
        )
        if found >= 0:
            self.stopped = True
            released, self._withheld = pending[:found], ""
        else:
            keep = 0 if final else self._possible_start(pending)
            released = pending[: len(pending) - keep]
            self._withheld = pending[len(pending) - keep :]
        self.text += released
        return released

    def _possible_start(self, text: str) -> int:
        """Length of the longest end of ``text`` that begins a stop string."""
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        for length in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[len(text) - length :]) for stop in self._stops):
                return length
        return 0
