"""The reference model against a naive tree, and against what its rows must be able to see."""

import random

import pytest

from dfvg_hw.config import PRESETS
from dfvg_hw.messages import (
    Event,
    EventCode,
    HitClass,
    Nodes,
    Opened,
    PassKind,
    VerdictAck,
)
from dfvg_hw.tree import Phase, TreeModel
from tests.hw.tree.naive import NaiveTree
from tests.hw.tree.toy import VOCABULARY, RandomHost, toy_children

TINY = PRESETS["tiny"]
CONFIGS = {
    "tiny": TINY,
    "one row": TINY.replace(rows=1, max_ctx=128),
    "few slots": TINY.replace(m_slots=8, candidates=32, rows=8, max_ctx=64),
    "three sequences": TINY.replace(max_seqs=3, m_slots=24, candidates=96, max_ctx=128),
    "wide": PRESETS["sim"].replace(max_ctx=256),
}


class KvShadow:
    """What every physical KV slot holds, to check what rows really attend to."""

    def __init__(self):
        self.memory = {}

    def run(self, model, rows):
        """Write the rows' KV, then return each row's context as its visible slots spell it."""
        for row in rows:
            self.memory[row.phys, row.offset] = (row.position, row.token)
        contexts = []
        for row in rows:
            table = model.sequences[row.seq].pages.phys
            seen = {}
            for page, bits in enumerate(row.visible):
                for offset in range(64):
                    if bits >> offset & 1:
                        position, token = self.memory[table[page], offset]
                        assert position not in seen, "two tokens for one position"
                        seen[position] = token
            assert sorted(seen) == list(range(row.position + 1)), "a hole or a token of the future"
            assert seen[row.position] == row.token
            contexts.append([seen[position] for position in range(row.position + 1)])
        return contexts


def check_rows(rows, naive_rows):
    assert len(rows) == len(naive_rows)
    for row, naive in zip(rows, naive_rows, strict=True):
        assert row.kind.name.lower() == naive["kind"]
        for name in ("seq", "token", "position", "phys", "slot"):
            assert getattr(row, name) == naive[name], name
        assert (row.page, row.offset) == naive["kv"]
        assert row.want_children == naive["wants_children"]
        seen = {(p, o) for p, bits in enumerate(row.visible) for o in range(64) if bits >> o & 1}
        assert seen == naive["visible"]


def simplify(messages):
    """Bring messages into the naive tree's form, records of one parent joined."""
    log = []
    for message in messages:
        if isinstance(message, Event):
            log.append(("event", message.code, message.seq))
        elif isinstance(message, Opened):
            log.append(("opened", message.seq, message.length, message.context_hash))
        elif isinstance(message, VerdictAck):
            log.append(("ack", message.seq, message.hit, message.root_id, message.length,
                        message.expanded, message.candidates, message.pending,
                        bool(message.flags & 1), bool(message.flags & 2)))  # fmt: skip
        else:
            assert isinstance(message, Nodes)
            children = tuple((c.token, c.logprob) for c in message.children)
            assert all(c.score == c.logprob for c in message.children)
            if message.flags & 15:
                kind, seq, parent, first, before = log.pop()
                assert (kind, seq, parent) == ("nodes", message.seq, message.parent)
                assert message.flags & 15 == len(before)
                assert message.first_id == first + len(before)
                log.append((kind, seq, parent, first, before + children))
            else:
                log.append(("nodes", message.seq, message.parent, message.first_id, children))
    return log


def check_invariants(model):
    """Used slots are exactly the committed and the live ones; nothing is shared or leaked."""
    owners = [p for s in model.sequences for p in s.pages.phys]
    assert len(owners) == len(set(owners)), "a page belongs to two sequences"
    free = {p for p in range(model.config.pool_pages) if model.free_pages >> p & 1}
    assert free | set(owners) == set(range(model.config.pool_pages))
    assert not free & set(owners)
    in_use = {i for i, slot in enumerate(model.slots) if slot is not None}
    for index in range(model.config.max_seqs, model.config.m_slots):
        assert (index in in_use) != bool(model.free_slots >> index & 1)
    for seq, sequence in enumerate(model.sequences):
        live = {
            (s.page, s.offset) for s in model.slots if s is not None and s.seq == seq and s.has_kv
        }
        used = bits(sequence.pages.used)
        committed = bits(sequence.pages.committed)
        assert committed <= used
        assert used == committed | live, "a KV slot leaked or was lost"
        if sequence.phase == Phase.OPEN:
            assert len(committed) == sequence.done
            root = model.slot(sequence.root)
            assert (root.token, root.position) == (sequence.tokens[-1], sequence.length - 1)
            assert root.score == 0


def bits(maps):
    return {(page, o) for page, word in enumerate(maps) for o in range(64) if word >> o & 1}


def random_life(config, seed, steps, in_pass, **host_options):
    """Run both trees through the same random life, comparing everything at every step."""
    rng = random.Random(f"{seed}:{config}")
    host = RandomHost(rng, config, **host_options)
    model, naive = TreeModel(config, VOCABULARY), NaiveTree(config, VOCABULARY)
    shadow, seen = KvShadow(), set()
    for _ in range(steps):
        for _ in range(rng.choice([0, 0, 1, 1, 2])):
            send(host, model, naive)
        planned = model.next_rows()
        rows, naive_rows = model.begin_pass(), naive.begin_pass()
        assert rows == planned
        check_rows(rows, naive_rows)
        if not rows:
            send(host, model, naive)
            continue
        contexts = shadow.run(model, rows)
        while rng.random() < in_pass:
            send(host, model, naive)
        if model.aborted:
            assert naive.all_dead()
            summary = model.end_pass({})
            naive.end_pass({})
        else:
            assert not naive.all_dead()
            answers = {
                row.index: toy_children(context, config.topk)
                for row, context in zip(rows, contexts, strict=True)
                if row.want_children
            }
            summary = model.end_pass(answers)
            assert summary.children == naive.end_pass(answers)
        messages = model.take_messages()
        assert simplify(messages) == naive.take_log()
        assert model.pass_number == summary.number == naive.passes
        check_invariants(model)
        seen.add(summary.kind)
        seen |= {HitClass(m.hit) for m in messages if isinstance(m, VerdictAck)}
        seen |= {EventCode(m.code) for m in messages if isinstance(m, Event)}
    return seen


def send(host, model, naive):
    command = host.command()
    model.apply(command)
    naive.apply(command)
    check_invariants(model)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("in_pass", [0.0, 0.5], ids=["between passes", "in passes"])
def test_equals_the_naive_tree(name, in_pass, seed):
    seen = random_life(CONFIGS[name], seed, 800, in_pass)
    assert set(HitClass) <= seen
    assert {PassKind.PREFILL, PassKind.CATCHUP, PassKind.GROWTH} <= seen
    assert (PassKind.ABORTED in seen) == (in_pass > 0)


def test_refusals_equal_the_naive_tree(seed):
    seen = random_life(TINY, seed, 1000, 0.3, faults=0.1)
    assert {
        EventCode.HASH_MISMATCH,
        EventCode.LENGTH_MISMATCH,
        EventCode.BAD_MESSAGE,
        EventCode.CONTEXT_FULL,
    } <= seen


def test_long_contexts_fill_their_pages(seed):
    """A draft that is mostly right: contexts grow to the limit and drafting stops gracefully."""
    seen = random_life(CONFIGS["few slots"], seed, 600, 0.2, follow=0.95)
    assert EventCode.CONTEXT_FULL in seen


@pytest.mark.parametrize(
    ("method", "broken"),
    [
        ("_free_slot", lambda tables, index, keep_kv: tables.slots.__setitem__(index, None)),
        ("calibrate", staticmethod(lambda logprob: logprob // 2)),
        ("aborted", property(lambda model: False)),
    ],
    ids=["leaks slots", "scores wrongly", "never aborts"],
)
def test_the_comparison_can_fail(monkeypatch, method, broken, seed):
    monkeypatch.setattr(TreeModel, method, broken)
    with pytest.raises((AssertionError, KeyError)):
        random_life(TINY, seed, 300, 0.5)
