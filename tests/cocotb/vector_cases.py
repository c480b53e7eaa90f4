"""What the vector engine's bench feeds it: passes, vectors, gains, scores and logits."""

import numpy as np

from tests.hw.vector.model import VectorModel


def make_model(rng, config):
    """A pass with at least one row, rows of several sequences, and other rows idle."""
    valid = [rng.random() < 0.8 for _ in range(config.rows)]
    valid[rng.randrange(config.rows)] = True
    seqs = [rng.randrange(config.max_seqs) for _ in range(config.rows)]
    used = {seqs[row] for row in range(config.rows) if valid[row]}
    limit = min(config.seq_pages, 3)
    pages = [rng.randint(1, limit) if s in used else 0 for s in range(config.max_seqs)]
    return VectorModel(config, valid, seqs, pages)


def random_gain(rng, size):
    kind = rng.choice(["wide", "one", "extreme"])
    if kind == "one":
        return np.full(size, 1 << 14, dtype=np.int64)
    values = [rng.choice([-32768, 32767, 0]) for _ in range(size)] if kind == "extreme" else None
    return np.array(values or [rng.randint(-32768, 32767) for _ in range(size)], dtype=np.int64)


def extreme_vectors():
    """Vectors of two groups at which magnitude, carry or sign go wrong first."""
    top = (1 << 31) - 1
    base = np.zeros(128, dtype=np.int64)
    yield base
    for value in (1, -1, top, -top, 127, 255, (1 << 16) - 1, 1 << 16, (1 << 16) + 1, -(1 << 15)):
        yield base + value
        single = base.copy()
        single[77] = value
        yield single
    # Just below, at and above half of the maximum: the group exponent's comparison.
    for low in ((1 << 29) - 1, 1 << 29, (1 << 29) + 1, (top >> 1) + 1, top >> 15, top >> 16):
        pair = base.copy()
        pair[5], pair[100] = top, low
        yield pair
    # Rounds up to the next power of two, so mantissa and exponent carry.
    yield base + (0x1FFFF << 13) + 1
    yield base + 0x7FFF8001


def score_items(model, row, y, vs, gqa):
    """A row's scores in the array's order."""
    pages = model.pages[model.seqs[row]]
    return [
        {
            "y": int(y[row][page, g, token]),
            "g": g,
            "page": page,
            "token": token,
            "vs": int(vs[model.seqs[row]][page, token]),
            "last": int(token == 63),
            "done": int((page, g, token) == (pages - 1, gqa - 1, 63)),
        }
        for page in range(pages)
        for g in range(gqa)
        for token in range(64)
    ]


def random_scores(rng, pages, gqa):
    """Logits; close together, far apart, at the edges of the format, or equal."""
    spread = rng.choice([0, 1 << 12, 1 << 16, 1 << 20, (1 << 31) - 1])
    y = [rng.randint(-spread, spread) for _ in range(pages * gqa * 64)]
    return np.array(y, dtype=np.int64).reshape(pages, gqa, 64)


def head_items(y):
    """Logits of every row in the array's order; ``y`` has a row for each, of all channels."""
    last = y.shape[1] - 1
    return [
        [
            {"y": int(v), "channel": c, "first": int(c == 0), "last": int(c == last)}
            for c, v in enumerate(row)
        ]
        for row in y
    ]
