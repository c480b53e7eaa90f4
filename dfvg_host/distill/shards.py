"""Training texts on disk: one ``.npz`` a block, written whole or not at all.

Arrays of a shard, for T tokens in D texts and K kept logits:

============  ================  =========================================================
``tokens``    (T,) uint16/32    token ids, texts one after another
``starts``    (D + 1,) int64    first token of each text, and T
``kinds``     (T,) uint8        who wrote the token: 0 given, 1 user turn, 2 answer
``top_ids``   (T, K) as tokens  the target's K most likely ids *after* each token
``top_logp``  (T, K) float16    their log-probabilities over the full vocabulary, at T = 1;
                                a row of -inf where the target was not asked (shared prefix)
``sources``   (D,) uint8        index into `SOURCES`: what the text started from
============  ================  =========================================================
"""

from __future__ import annotations

import os
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dfvg_hw.errors import ModelError

__all__ = ["ANSWER", "GIVEN", "SOURCES", "TURN", "Shard", "read_shard", "write_shard"]

GIVEN, TURN, ANSWER = 0, 1, 2
SOURCES = ("self", "template", "plain")
_NAMES = ("tokens", "starts", "kinds", "top_ids", "top_logp", "sources")


@dataclass
class Shard:
    """The arrays of one block; see the module for their meaning."""

    tokens: np.ndarray
    starts: np.ndarray
    kinds: np.ndarray
    top_ids: np.ndarray
    top_logp: np.ndarray
    sources: np.ndarray

    @property
    def texts(self) -> int:
        """Number of texts."""
        return len(self.starts) - 1

    def span(self, text: int) -> slice:
        """Return where text number ``text`` lies in the token arrays."""
        return slice(int(self.starts[text]), int(self.starts[text + 1]))


def write_shard(path: Path, shard: Shard) -> None:
    """Write a shard by a rename, so that a file of this name is always complete."""
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    with open(temporary, "wb") as file:
        np.savez(file, **{name: getattr(shard, name) for name in _NAMES})
    temporary.rename(path)


def read_shard(path: Path) -> Shard:
    """Read a shard.

    Raises
    ------
    ModelError
        The file is damaged or no shard.
    """
    try:
        with np.load(path, allow_pickle=False) as data:
            return Shard(**{name: data[name] for name in _NAMES})
    except (KeyError, ValueError, OSError, EOFError, zipfile.BadZipFile) as err:
        raise ModelError(f"{path} is not a usable training shard: {err}") from err
