"""A toy language model and a random host, to drive trees through long lives.

The toy draft's answer depends on the whole context, so a row that sees a token too many, one too
few or a foreign one answers differently.
"""

import random
import zlib

from dfvg_hw.messages import Close, DraftLimits, Open, Resync, Retune, Verdict, context_hash

VOCABULARY = 50


def toy_children(context, count):
    """Return the `count` best next tokens of a context with their log-probabilities."""
    rng = random.Random(zlib.crc32(repr(tuple(context)).encode()))
    tokens = rng.sample(range(VOCABULARY), count)
    # Few distinct values on purpose: ties must be broken the same way everywhere.
    logprobs = sorted((-128 * rng.randint(0, 8) for _ in range(count)), reverse=True)
    return list(zip(tokens, logprobs, strict=True))


def random_limits(rng, config):
    return DraftLimits(
        threshold=rng.choice([-256, -1024, -4096, -(1 << 20)]),
        max_depth=rng.choice([0, 1, 2, 5, 0xFFFF]),
        max_slots=rng.choice([0, 2, config.m_slots // 2, 0xFFFF]),
        topk=rng.choice([1, 2, config.topk, 16]),
    )


class RandomHost:
    """Sends random commands about each sequence, as a host that knows the tree might.

    Parameters
    ----------
    rng : random.Random
    config : DeviceConfig
    follow : float
        Chance that a committed token is one that the draft likes.
    faults : float
        Chance of a command that the device must refuse.
    """

    def __init__(self, rng, config, follow=0.8, faults=0.0):
        self.rng = rng
        self.config = config
        self.follow = follow
        self.faults = faults
        self.contexts = [None] * config.max_seqs
        self.lost = [False] * config.max_seqs
        self.epochs = [0] * config.max_seqs

    def command(self):
        """Return the next command."""
        seq = self.rng.randrange(self.config.max_seqs)
        if self.contexts[seq] is None or self.lost[seq]:
            return self._open(seq)
        draw = self.rng.random()
        if draw < 0.01:
            self.contexts[seq] = None
            return Close(seq)
        if draw < 0.03:
            return self._open(seq)
        if draw < 0.08:
            return Retune(seq, random_limits(self.rng, self.config))
        if self.rng.random() < self.faults:
            return self._fault(seq)
        return self._verdict(seq)

    def _open(self, seq):
        kind = Open if self.contexts[seq] is None or self.rng.random() < 0.5 else Resync
        length = self.rng.choice([1, 2, self.rng.randint(1, 30), self.rng.randint(1, 100)])
        if self.rng.random() < 0.1:
            length = self.config.max_ctx - self.rng.randint(-1, 10)
        tokens = tuple(self.rng.randrange(VOCABULARY) for _ in range(length))
        self.contexts[seq], self.lost[seq] = list(tokens), False
        self.epochs[seq] = self.rng.randrange(1000)
        stops = tuple(self.rng.sample(range(VOCABULARY), self.rng.randint(0, 4)))
        return kind(seq, tokens, self.epochs[seq], random_limits(self.rng, self.config), stops)

    def _fault(self, seq):
        context = self.contexts[seq]
        self.lost[seq] = True
        length, hash_, tokens = len(context), context_hash(context), (1,)
        kind = self.rng.randrange(3)
        if kind == 0:
            length += self.rng.choice([-1, 1])
        elif kind == 1:
            hash_ ^= 1 << self.rng.randrange(32)
        else:
            tokens = (1, VOCABULARY + self.rng.randrange(5))
        return Verdict(seq, 0, length, hash_, tokens)

    def _verdict(self, seq):
        context = self.contexts[seq]
        base, hash_ = len(context), context_hash(context)
        count = self.rng.choice([0, 1, 1, 2, 2, 3, 4, 9, 20])
        tokens = []
        for _ in range(count):
            if self.rng.random() < self.follow:
                liked = toy_children(context + tokens, self.config.topk)
                tokens.append(liked[min(self.rng.randrange(self.config.topk),
                                        self.rng.randrange(self.config.topk))][0])  # fmt: skip
            else:
                tokens.append(self.rng.randrange(VOCABULARY))
        context += tokens
        self.epochs[seq] += 1
        return Verdict(seq, self.epochs[seq], base, hash_, tuple(tokens))
