"""Keeping evaluation prompts out of the training text, and repeated texts too."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

__all__ = ["Deduper", "word_ngrams"]

NGRAM = 8


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())


def word_ngrams(text: str, size: int = NGRAM) -> set[tuple[str, ...]]:
    """Return the word n-grams of ``text``, case and punctuation ignored.

    A text of fewer than ``size`` words is one gram of its own (all of its words).
    """
    words = _words(text)
    if len(words) < size:
        return {tuple(words)} if words else set()
    return {tuple(words[i : i + size]) for i in range(len(words) - size + 1)}


class Deduper:
    """Decides which training texts may be used.

    Parameters
    ----------
    evaluation: prompts that training must not hold. A training text is refused if its prompt
        equals one, or if the text holds any of their word 8-grams (a prompt shorter than eight
        words counts as one gram of its own length).
    """

    def __init__(self, evaluation: Iterable[str]) -> None:
        self._grams: dict[int, set[tuple[str, ...]]] = {}
        for prompt in evaluation:
            for gram in word_ngrams(prompt):
                self._grams.setdefault(len(gram), set()).add(gram)
        self._seen: set[bytes] = set()
        self.overlapping, self.repeated = 0, 0

    def overlaps(self, text: str) -> bool:
        """Say whether ``text`` shares a gram with the evaluation prompts."""
        words = _words(text)
        for size, grams in self._grams.items():
            if any(tuple(words[i : i + size]) in grams for i in range(len(words) - size + 1)):
                return True
        return False

    def accept(self, text: str) -> bool:
        """Say whether ``text`` is to be used; counts what is refused, remembers what is not."""
        if self.overlaps(text):
            self.overlapping += 1
            return False
        digest = hashlib.sha256(" ".join(_words(text)).encode()).digest()
        if digest in self._seen:
            self.repeated += 1
            return False
        self._seen.add(digest)
        return True
