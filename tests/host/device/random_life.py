"""A host that drives any virtual-time device through a random life and writes down what it says."""

import random

from dfvg_hw.messages import (
    Close,
    DraftLimits,
    HitClass,
    Nodes,
    Open,
    Opened,
    Resync,
    Retune,
    Verdict,
    VerdictAck,
    context_hash,
)


class RandomLife:
    """Two open sequences, verdicts of every hit class, passes in between.

    Parameters
    ----------
    device : VirtualTimeDevice
    seed : int
    vocabulary : int
    prompt : tuple of int
        Shortest and longest prompt.
    """

    def __init__(self, device, seed, vocabulary, prompt=(3, 20)):
        self.device, self.vocabulary, self.prompt = device, vocabulary, prompt
        self.rng = random.Random(seed)
        self.config = device.info.config
        self.contexts = {}
        self.epochs = {}
        self.roots = {}
        self.children = {}
        self.log = []
        self.hits = dict.fromkeys(HitClass, 0)
        self.passes = 0

    def run(self, steps):
        for seq in range(self.config.max_seqs):
            self.open(seq)
        for _ in range(steps):
            self.step()
        return self.log

    def step(self):
        draw = self.rng.random()
        seq = self.rng.randrange(self.config.max_seqs)
        if draw < 0.03:
            self.open(seq)
        elif draw < 0.06:
            self.send(Retune(seq, self.limits()))
        elif draw < 0.25:
            self.verdict(seq)
        elif self.device.next_pass_cycles() is None:
            self.log.append("nothing to do")
            self.verdict(seq)
        else:
            self.log.append(("cost", self.device.next_pass_cycles()))
            self.device.run_pass()
            self.passes += 1
            self.collect()

    def limits(self):
        return DraftLimits(
            threshold=self.rng.choice([-1024, -4096, -(1 << 20)]),
            max_depth=self.rng.choice([1, 3, 0xFFFF]),
            topk=self.rng.choice([1, 2, self.config.topk]),
        )

    def send(self, command):
        self.device.send(command)
        self.collect()

    def open(self, seq):
        kind = Resync if seq in self.contexts and self.rng.random() < 0.7 else Open
        if seq in self.contexts and self.rng.random() < 0.3:
            self.send(Close(seq))
            kind = Open
        tokens = tuple(
            self.rng.randrange(3, self.vocabulary) for _ in range(self.rng.randint(*self.prompt))
        )
        self.contexts[seq], self.epochs[seq] = list(tokens), self.rng.randrange(100)
        limits = DraftLimits(threshold=-(1 << 20), topk=self.config.topk)
        self.children = {k: v for k, v in self.children.items() if k[0] != seq}
        self.send(kind(seq, tokens, self.epochs[seq], limits, stops=(2,)))
        self.roots[seq] = 0x8000_0000 | len(tokens)

    def verdict(self, seq):
        context, node = self.contexts[seq], self.roots[seq]
        tokens = []
        for _ in range(self.rng.choice([1, 1, 1, 2, 2, 3, 5, 11])):
            known = self.children.get((seq, node), [])
            if known and self.rng.random() < 0.9:
                # The likeliest half: some of these are expanded.
                node, token = self.rng.choice(known[: max(1, len(known) // 2)])
            else:
                node, token = None, self.rng.randrange(3, self.vocabulary)
            tokens.append(token)
        if len(context) + len(tokens) > self.config.max_ctx - 8:
            self.open(seq)
            return
        self.epochs[seq] += 1
        command = Verdict(seq, self.epochs[seq], len(context), context_hash(context), tuple(tokens))
        context += tokens
        self.send(command)

    def collect(self):
        for message in self.device.poll():
            self.log.append(message)
            if isinstance(message, Nodes):
                entry = self.children.setdefault((message.seq, message.parent), [])
                entry += [
                    (message.first_id + i, child.token) for i, child in enumerate(message.children)
                ]
            elif isinstance(message, VerdictAck):
                self.roots[message.seq] = message.root_id
                self.hits[HitClass(message.hit)] += 1
            elif isinstance(message, Opened):
                self.children = {k: v for k, v in self.children.items() if k[0] != message.seq}
