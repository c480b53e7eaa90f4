"""Whether two tokenizers give ids the same meaning, also when one of them is long gone.

A compiled image carries a fingerprint of its model's tokenizer, so that a draft of another family
is refused when it's opened instead of drafting nonsense for ever. A tokenizer may know more ids at
its end than the other one (added tokens, padding); what both know must agree.
"""

from __future__ import annotations

import hashlib
from typing import Any

__all__ = ["difference", "fingerprint"]

_BLOCK = 256  # ids per hash
_DIGITS = 8


def _blocks(tokenizer: Any) -> list[tuple[int, str]]:
    """(ids known, hash) of every block of ids."""
    tokens = {number: token for token, number in tokenizer.get_vocab().items()}
    found = []
    for start in range(0, max(tokens, default=-1) + 1, _BLOCK):
        known = [(i, tokens[i]) for i in range(start, start + _BLOCK) if i in tokens]
        digest = hashlib.sha256(repr(known).encode(errors="surrogatepass")).hexdigest()
        found.append((len(known), digest[:_DIGITS]))
    return found


def fingerprint(tokenizer: Any) -> dict[str, Any]:
    """Return what `difference` needs to know of a tokenizer: tokens, and hashes of its blocks."""
    blocks = _blocks(tokenizer)
    return {
        "tokens": sum(known for known, _ in blocks),
        "last_block": blocks[-1][0] if blocks else 0,
        "hashes": "".join(digest for _, digest in blocks),
    }


def difference(ours: dict[str, Any], tokenizer: Any) -> int | None:
    """Return the first id of the first block in which a tokenizer differs, None if none does.

    Parameters
    ----------
    ours : dict
        Fingerprint of the other tokenizer.
    tokenizer : transformers tokenizer
    """
    theirs = fingerprint(tokenizer)
    count = min(len(ours["hashes"]), len(theirs["hashes"])) // _DIGITS
    for number in range(count):
        place = slice(number * _DIGITS, (number + 1) * _DIGITS)
        if ours["hashes"][place] == theirs["hashes"][place]:
            continue
        # The last block of the shorter one may hold fewer ids: not comparable.
        ends = [number == len(each["hashes"]) // _DIGITS - 1 for each in (ours, theirs)]
        if any(ends) and not (all(ends) and ours["last_block"] == theirs["last_block"]):
            continue
        return number * _BLOCK
    return None
