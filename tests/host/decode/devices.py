"""Draft devices for tests: an honest one over the tree unit's model, and hostile ones."""

from __future__ import annotations

import math
import random
from typing import ClassVar

import torch

from dfvg_host.device.protocol import DeviceInfo
from dfvg_hw.config import get_config
from dfvg_hw.errors import DeviceError, ProtocolError
from dfvg_hw.messages import (
    Capability,
    Child,
    Event,
    EventCode,
    Nodes,
    Opened,
    PassDone,
    Verdict,
    VerdictAck,
)
from dfvg_hw.tree import TreeModel

PASS_CYCLES = 800_000  # 4 ms at 200 MHz: four passes in one verify pass of the default profile


class ModelDevice:
    """Virtual-time device: the real tree, and a transformers model that sees each row's whole text.

    There is no cache and no integer arithmetic, so it's an independent way to the same messages.

    Parameters
    ----------
    model: the draft, or a callable from texts (lists of ids) to logits [texts, V].
    """

    def __init__(self, model, config=None, cycles=PASS_CYCLES, vocabulary=None):
        config = config or get_config("tiny")
        self._logits = logits_of(model) if isinstance(model, torch.nn.Module) else model
        self.vocabulary = vocabulary or 1 << 20
        self.info = DeviceInfo(
            name="model",
            config=config,
            image_digest="",
            output_vocabulary=self.vocabulary,
            capabilities=Capability.VIRTUAL_TIME,
        )
        self.tree = TreeModel(config, self.vocabulary)
        self.cycles = cycles
        self.sent = []
        self._paths = {}
        self._inbox = []

    def send(self, command):
        self.sent.append(command)
        self.tree.apply(command)
        self._inbox += self.tree.take_messages()

    def next_pass_cycles(self):
        return self.cycles if self.tree.next_rows() else None

    def run_pass(self):
        rows = self.tree.begin_pass()
        if not rows:
            raise DeviceError("nothing to do")
        results = self._children([row for row in rows if row.slot is not None])
        summary = self.tree.end_pass(results)
        done = PassDone(
            **{**vars(summary), "kind": int(summary.kind)},
            cycles=self.cycles,
            ideal=self.cycles * 9 // 10,
            ideal_bytes=self.cycles * 8 // 10,
        )
        self._inbox += [*self.tree.take_messages(), done]
        return done

    def _children(self, rows):
        """Best tokens of each row, and their log-probabilities in 1/256 log2."""
        for row in rows:
            if row.parent is None:
                text = tuple(self.tree.sequences[row.seq].tokens[: row.position + 1])
            else:
                text = (*self._paths[row.parent], row.token)
            self._paths[row.slot] = text
        if not rows:
            return {}
        logits = self._logits([list(self._paths[row.slot]) for row in rows])
        best = torch.topk(torch.log_softmax(logits.double(), 1), self.info.config.topk)
        edges = (best.values * (256 / math.log(2))).round().clamp(min=-32768).int().tolist()
        return {
            row.index: list(zip(tokens, edge, strict=True))
            for row, tokens, edge in zip(rows, best.indices.tolist(), edges, strict=True)
        }

    def poll(self, timeout=0.0):
        messages, self._inbox = self._inbox, []
        return messages

    def close(self):
        pass


def logits_of(model):
    """Return a model's logits behind each text, by one padded pass without a cache."""

    @torch.no_grad()
    def logits(texts):
        longest = max(map(len, texts))
        ids = torch.tensor([text + [0] * (longest - len(text)) for text in texts])
        rows = model(input_ids=ids, use_cache=False).logits
        return rows[torch.arange(len(texts)), torch.tensor([len(text) - 1 for text in texts])]

    return logits


def noise(vocabulary, seed=0):
    """Return a draft that knows nothing: random logits that depend on the text alone."""

    def one(text):
        generator = torch.Generator().manual_seed(hash((seed, *text)) & 0xFFFFFFFF)
        return 3 * torch.randn(vocabulary, generator=generator)

    return lambda texts: torch.stack([one(text) for text in texts])


def child(token, logprob=-1):
    return Child(token=token, logprob=logprob, score=logprob)


def record(kind, children=0, **rows):
    """Return a PASS_DONE that claims these rows."""
    return PassDone(
        kind=kind, rows=sum(rows.values()), number=9, children=children, sequences=1, **rows,
        cycles=1, ideal=1, ideal_bytes=1,
    )  # fmt: skip


class Hostile(ModelDevice):
    """An honest device until pass ``after``, then one that misbehaves in the way named."""

    # Kind of fault, and what the one warning must say.
    KINDS: ClassVar = {
        "raises": "card fell off the bus",
        "raises in next_pass_cycles": "bus error$",
        "raises in send": "link lost",
        "raises in poll": "line 17 has CRC 0xdead",
        "no answer": "not acknowledged|runs passes that find nothing",
        "free passes": "next pass takes 0 cycles",
        "endless passes": "runs passes that find nothing",
        "float cycles": "next pass takes 1.5 cycles",
        "None instead of a record": "ended a pass with None",
        "token outside the vocabulary": "token 999999 is outside",
        "unknown parent": "no such node is alive",
        "parent of the past": "no such node is alive|start at rank",
        "repeated ids": "candidates start at id 1",
        "ids from nowhere": "candidates start at id",
        "positive log-probability": "log-probability 100: at most 0",
        "twins among siblings": "two children with token",
        "wrong count of children": "record has",
        "wrong hash acknowledged": "context hash",
        "wrong hit acknowledged": "hit class|root is",
        "wrong epoch acknowledged": "acknowledgement of epoch",
        "no acknowledgement": "not acknowledged|unacknowledged",
        "acknowledgement unasked": "no verdict is under way",
        "repeats OPENED": "device sent Opened",
        "loses the context": "hash mismatch",
        "memory error": "memory error",
        "watchdog": "watchdog",
        "unknown event": "event 99",
        "garbage objects": "device sent 'NODES'",
        "random messages": "candidate|children",
        "more rows than pending": "more rows than tokens were pending",
    }

    def __init__(self, kind, model, after=6, seed=0):
        super().__init__(model)
        self.kind = kind
        self.left = after
        self.random = random.Random(seed)

    @property
    def bad(self):
        return self.left <= 0

    def send(self, command):
        if self.bad and self.kind == "raises in send":
            raise DeviceError("link lost")
        super().send(command)

    def next_pass_cycles(self):
        if self.bad:
            if self.kind == "raises in next_pass_cycles":
                raise RuntimeError("bus error\nsecond line")
            if self.kind == "free passes":
                return 0
            if self.kind == "float cycles":
                return 1.5
            if self.kind == "endless passes":
                return 1
            if self.kind == "no answer":
                return self.cycles
        return super().next_pass_cycles()

    def run_pass(self):
        self.left -= 1
        if self.bad:
            if self.kind == "raises":
                raise DeviceError("card fell off the bus")
            if self.kind == "None instead of a record":
                return None
            if self.kind in ("endless passes", "no answer"):
                return record(kind=2, growth_rows=1)
            if self.kind == "more rows than pending":
                return record(kind=1, catchup_rows=40)
        return super().run_pass()

    def poll(self, timeout=0.0):
        messages = super().poll()
        if not self.bad:
            return messages
        if self.kind == "raises in poll":
            raise ProtocolError("line 17 has CRC 0xdead")
        if self.kind == "no answer":
            return []
        if self.kind == "no acknowledgement":
            return [m for m in messages if not isinstance(m, VerdictAck)]
        return [self._spoil(message) for message in messages] + self._extra()

    def _spoil(self, message):
        if isinstance(message, Nodes):
            first = message.children[0]
            changes = {
                "token outside the vocabulary": {
                    "children": (child(999_999),),
                    "count": 1,
                },
                "unknown parent": {"parent": 0x7FFFFFF},
                "parent of the past": {"parent": 1},
                "repeated ids": {"first_id": 1},
                "ids from nowhere": {"first_id": message.first_id + 1000},
                "positive log-probability": {
                    "children": (child(first.token, 100),),
                    "count": 1,
                },
                "twins among siblings": {
                    "children": (first, first),
                    "count": 2,
                },
                "wrong count of children": {"count": 60},
            }.get(self.kind, {})
            return Nodes(**{**vars(message), **changes})
        if isinstance(message, VerdictAck):
            changes = {
                "wrong hash acknowledged": {"context_hash": message.context_hash ^ 1},
                "wrong hit acknowledged": {"hit": (message.hit + 1) % 3},
                "wrong epoch acknowledged": {"epoch": message.epoch + 1},
            }.get(self.kind, {})
            return VerdictAck(**{**vars(message), **changes})
        return message

    def _extra(self):
        number = self.random.randrange
        if self.kind == "acknowledgement unasked":
            return [
                VerdictAck(
                    seq=0, hit=0, epoch=77, root_id=5, length=5, context_hash=5,
                    expanded=0, candidates=0, pending=0,
                )
            ]  # fmt: skip
        if self.kind == "repeats OPENED":
            return [Opened(seq=0, epoch=0, length=5, context_hash=5)]
        if self.kind == "loses the context":
            return [Event(code=int(EventCode.HASH_MISMATCH), seq=0)]
        if self.kind == "memory error":
            return [Event(code=int(EventCode.MEMORY_ERROR), seq=0)]
        if self.kind == "watchdog":
            return [Event(code=int(EventCode.WATCHDOG), seq=0)]
        if self.kind == "unknown event":
            return [Event(code=99, seq=0)]
        if self.kind == "garbage objects":
            return ["NODES", 5, None]
        if self.kind == "random messages":
            return [
                Nodes(
                    seq=0,
                    count=1,
                    flags=0,
                    parent=number(60) if number(2) else 0x80000000 | number(90),
                    first_id=number(1, 200),
                    epoch=0,
                    pass_number=0,
                    children=(child(number(150), -number(900)),),
                )
                for _ in range(number(3))
            ]
        return []


def verdicts(device):
    """Verdicts that a device was sent."""
    return [command for command in device.sent if isinstance(command, Verdict)]
