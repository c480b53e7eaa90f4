"""The mirror against the device's tree, on links without and with delay; garbage is refused."""

import dataclasses
import random
from collections import deque

import pytest

from dfvg_host.decode.mirror import TreeMirror
from dfvg_hw.config import PRESETS
from dfvg_hw.errors import ProtocolError
from dfvg_hw.messages import (
    Child,
    HitClass,
    Nodes,
    Open,
    Opened,
    Verdict,
    VerdictAck,
    context_hash,
)
from dfvg_hw.tree import TreeModel
from tests.hw.tree.toy import VOCABULARY, random_limits, toy_children

TINY = PRESETS["tiny"].replace(max_ctx=1024)
WIDE = TINY.replace(topk=8, m_slots=32, candidates=256)


class Link:
    """A host with a mirror of one sequence of a device, and what is in flight between them."""

    def __init__(self, model, seq, rng):
        self.model, self.seq, self.rng = model, seq, rng
        self.to_host = deque()
        self.to_device = deque()
        self.unacknowledged = False
        self.hits = []
        self.epoch = 0
        self.open()

    def open(self):
        self.epoch += 1
        self.unacknowledged = False
        self.tokens = [self.rng.randrange(VOCABULARY) for _ in range(self.rng.randint(1, 20))]
        limits = random_limits(self.rng, self.model.config)
        self.to_device.append(Open(self.seq, tuple(self.tokens), self.epoch, limits))
        self.mirror = TreeMirror(len(self.tokens), VOCABULARY)
        self.opening, self.opened_with = True, self.epoch

    def send_verdict(self):
        """Commit something: a path of the mirror, perhaps with tokens it doesn't know."""
        if len(self.tokens) > self.model.config.max_ctx - 20:
            return False
        tokens, node = [], self.mirror.root
        for _ in range(self.rng.choice([0, 1, 1, 2, 3, 5])):
            known = [] if node is None else self.mirror.children(node)
            if known and self.rng.random() < 0.8:
                node = self.rng.choice(known)
                tokens.append(node.token)
            else:
                node = None
                # What the device may have found in the meantime.
                liked = toy_children(self.tokens + tokens, self.model.config.topk)
                tokens.append(self.rng.choice(liked)[0])
        self.epoch += 1
        command = Verdict(
            self.seq, self.epoch, len(self.tokens), context_hash(self.tokens), tuple(tokens)
        )
        self.expected = self.mirror.reroot(tokens)
        self.tokens += tokens
        self.to_device.append(command)
        self.unacknowledged = True
        return True

    def deliver(self, message):
        if isinstance(message, Opened):
            self.opening &= message.epoch != self.opened_with
        elif self.opening:
            pass  # left over from the context before
        elif isinstance(message, Nodes):
            self.mirror.apply(message)
        elif isinstance(message, VerdictAck):
            assert message.epoch == self.epoch
            self.mirror.acknowledge(message)
            self.unacknowledged = False
            self.hits.append((self.expected, HitClass(message.hit)))


def device_tree(model, seq):
    """Return {id: (parent id, token, path score)} of everything below the device's root."""
    tree = {}
    sequence = model.sequences[seq]
    for slot in model.slots:
        if slot is None or slot.seq != seq:
            continue
        for rank, child in enumerate(slot.children):
            tree[slot.first_child + rank] = (slot.node_id, child.token, slot.score + child.score)
    return model.slot(sequence.root).node_id, tree


def mirror_tree(mirror):
    return mirror.root.id, {
        node.id: (node.parent.id, node.token, mirror.path_score(node))
        for node in mirror.root.below()
        if node is not mirror.root
    }


def route(links, model):
    for message in model.take_messages():
        links[message.seq].to_host.append(message)


def start_pass(model):
    """Begin a pass; return its answers, which depend on the whole context of every row."""
    answers = {}
    for row in model.begin_pass():
        if row.want_children:
            tokens = model.sequences[row.seq].tokens
            path, slot = [], model.slot(row.slot)
            while slot.position >= len(tokens):
                path.append(slot.token)
                parents = slot.ancestors & ~(1 << model.slots.index(slot))
                slot = max(
                    (s for i, s in enumerate(model.slots) if parents >> i & 1),
                    key=lambda s: s.position,
                )
            context = tokens[: slot.position + 1] + path[::-1]
            answers[row.index] = toy_children(context, model.config.topk)
    return answers


@pytest.mark.parametrize("config", [TINY, WIDE], ids=["tiny", "wide"])
def test_equals_the_device_s_tree_without_delay(config, seed):
    """Virtual time: whole passes, verdicts between them, everything visible at once."""
    rng = random.Random(f"{seed} no delay")
    model = TreeModel(config, VOCABULARY)
    links = [Link(model, seq, rng) for seq in range(config.max_seqs)]
    for _ in range(3000):
        link = rng.choice(links)
        if not rng.randrange(300) or not link.send_verdict():
            link.open()
        while link.to_device:
            model.apply(link.to_device.popleft())
        for _ in range(rng.choice([0, 1, 1, 2, 4])):
            answers = start_pass(model)
            if model.running is not None:
                model.end_pass(answers)
        route(links, model)
        for each in links:
            while each.to_host:
                each.deliver(each.to_host.popleft())
            if not each.to_device:  # opened on the device, too
                assert mirror_tree(each.mirror) == device_tree(model, each.seq)
    hits = [hit for each in links for hit in each.hits]
    assert all(expected == found for expected, found in hits)
    assert {expected for expected, _ in hits} == set(HitClass)


@pytest.mark.parametrize("config", [TINY, WIDE], ids=["tiny", "wide"])
def test_equals_the_device_s_tree_after_delays(config, seed):
    """A real link: commands and records cross in flight, verdicts arrive during passes."""
    rng = random.Random(f"{seed} delay")
    model = TreeModel(config, VOCABULARY)
    links = [Link(model, seq, rng) for seq in range(config.max_seqs)]
    answers, settled = {}, 0
    for step in range(12000):
        link = rng.choice(links)
        action = rng.randrange(4)
        if action == 0 and rng.randrange(200) == 0:
            link.open()
        elif action == 0 and not link.unacknowledged:
            if not link.send_verdict():
                link.open()
        elif action == 1 and link.to_device:
            model.apply(link.to_device.popleft())
        elif action == 2 and link.to_host:
            link.deliver(link.to_host.popleft())
        elif action == 3 and model.running is None:
            answers = start_pass(model)
        elif action == 3:
            model.end_pass({} if model.aborted else answers)
        route(links, model)
        if step % 50 == 0:
            settle(model, links, answers)
            for each in links:
                assert mirror_tree(each.mirror) == device_tree(model, each.seq)
                settled += 1
    hits = [hit for each in links for hit in each.hits]
    assert any(found < expected for expected, found in hits), "nothing ever crossed in flight"
    assert settled > 400


def settle(model, links, answers):
    """Let everything in flight arrive."""
    for link in links:
        while link.to_device:
            model.apply(link.to_device.popleft())
    if model.running is not None:
        model.end_pass({} if model.aborted else answers)
    route(links, model)
    for link in links:
        while link.to_host:
            link.deliver(link.to_host.popleft())


class TestReading:
    def mirror(self):
        mirror = TreeMirror(3, VOCABULARY, stops=(7,))
        mirror.apply(record(0x8000_0003, 1, (5, -100), (6, -300), (7, -300)))
        mirror.apply(record(1, 4, (8, -100), (9, -200)))
        mirror.apply(record(3, 6, (10, 0)))
        return mirror

    def test_best_first_parents_before_children_ties_by_id(self):
        best = self.mirror().best(10)
        assert [node.id for node in best] == [1, 4, 2, 3, 5]
        assert [node.id for node in self.mirror().best(2)] == [1, 4]

    def test_nothing_below_a_stop_token(self):
        mirror = self.mirror()
        assert 6 not in [node.id for node in mirror.best(10)]
        assert [node.id for node in mirror.frontier(10)] == [4, 2, 5]

    def test_depth_limit(self):
        assert [node.id for node in self.mirror().best(10, max_depth=1)] == [1, 2, 3]
        assert self.mirror().best(10, max_depth=0) == []

    def test_probabilities_count_from_the_root(self):
        mirror = self.mirror()
        node = mirror.best(2)[1]
        assert mirror.path_score(node) == -200
        assert mirror.probability(node) == 2 ** (-200 / 256)
        mirror.reroot([5])
        assert mirror.path_score(node) == -100
        assert mirror.depth(node) == 1

    def test_hit_classes(self):
        assert self.mirror().reroot([5]) is HitClass.EXPANDED
        assert self.mirror().reroot([5, 8]) is HitClass.LEAF
        assert self.mirror().reroot([5, 8, 1]) is HitClass.MISS
        assert self.mirror().reroot([40]) is HitClass.MISS
        assert self.mirror().reroot([]) is HitClass.EXPANDED

    def test_size(self):
        mirror = self.mirror()
        assert len(mirror) == 6
        mirror.reroot([5])
        assert len(mirror) == 2


def record(parent, first_id, *children, rank=0, more=False, **changes):
    nodes = Nodes(
        seq=0,
        count=len(children),
        flags=rank | more << 4,
        parent=parent,
        first_id=first_id,
        epoch=0,
        pass_number=0,
        children=tuple(Child(token, logprob, logprob) for token, logprob in children),
    )
    return dataclasses.replace(nodes, **changes)


ROOT = 0x8000_0003


class TestGarbage:
    @pytest.mark.parametrize(
        ("nodes", "text"),
        [
            (record(ROOT, 1), "record has 0 children: 1 to 5"),
            (record(ROOT, 1, (1, -1), count=2), "record has 1 children"),
            (record(ROOT, 2, (1, -1)), "candidates start at id 2: next is 1"),
            (record(ROOT, 0, (1, -1)), "candidates start at id 0: next is 1"),
            (record(ROOT, 1, (VOCABULARY, -1)), "candidate token 50 is outside the vocabulary"),
            (record(ROOT, 1, (1, 1)), "candidate has log-probability 1: at most 0"),
            (
                record(ROOT, 1, (1, -1), rank=1),
                "candidates of node 2147483651 start at rank 1 of 0",
            ),
            (record(ROOT, 1, (1, -1), (1, -2)), "two children with token 1"),
            (record(17, 1, (1, -1)), "candidates of node 17: no such node is alive"),
            (record(0x8000_0004, 1, (1, -1)), "no such node is alive"),
        ],
    )
    def test_first_record(self, nodes, text):
        with pytest.raises(ProtocolError, match=text):
            TreeMirror(3, VOCABULARY).apply(nodes)

    @pytest.mark.parametrize(
        ("nodes", "text"),
        [
            (record(ROOT, 3, (3, -1)), "start at rank 0 of 2"),
            (record(ROOT, 3, (3, -1), rank=2), "start at rank 2 of 2"),
            (record(1, 2, (3, -1)), "candidates start at id 2: next is 3"),
        ],
        ids=["expanded twice", "children after the last", "id used again"],
    )
    def test_second_record(self, nodes, text):
        mirror = TreeMirror(3, VOCABULARY)
        mirror.apply(record(ROOT, 1, (1, -1), (2, -1)))
        with pytest.raises(ProtocolError, match=text):
            mirror.apply(nodes)

    def test_more_than_five_children(self):
        mirror = TreeMirror(3, VOCABULARY)
        mirror.apply(record(ROOT, 1, *((t, -t) for t in range(5)), more=True))
        mirror.apply(record(ROOT, 6, (5, -5), rank=5))
        assert [node.rank for node in mirror.children(mirror.root)] == list(range(6))

    @pytest.mark.parametrize(
        ("changes", "text"),
        [
            ({"length": 5}, "device has 5 committed tokens: expected 4"),
            ({"hit": 2, "root_id": 0x8000_0004}, "reports hit class 2: expected 1"),
            ({"hit": 3}, "reports hit class 3"),
            ({"root_id": 2}, "device's root is 2: expected 1"),
        ],
    )
    def test_acknowledgement(self, changes, text):
        mirror = TreeMirror(3, VOCABULARY)
        mirror.apply(record(ROOT, 1, (1, -1), (2, -1)))
        mirror.reroot([1])
        with pytest.raises(ProtocolError, match=text):
            mirror.acknowledge(ack(**changes))
        mirror.acknowledge(ack())
        with pytest.raises(ProtocolError, match="no verdict is under way"):
            mirror.acknowledge(ack())

    def test_a_missed_root_has_its_own_name(self):
        mirror = TreeMirror(3, VOCABULARY)
        mirror.reroot([9])
        for root_id in (3, 0x8000_0003):
            with pytest.raises(ProtocolError, match="a missed root is 2147483652"):
                mirror.acknowledge(ack(hit=2, root_id=root_id))
        mirror.acknowledge(ack(hit=2, root_id=0x8000_0004))

    def test_one_verdict_at_a_time(self):
        mirror = TreeMirror(3, VOCABULARY)
        mirror.reroot([9])
        with pytest.raises(ProtocolError, match="unacknowledged"):
            mirror.reroot([9])

    def test_random_damage_never_raises_anything_else(self, seed):
        rng = random.Random(seed)
        refused = 0
        for _ in range(2000):
            mirror = TreeMirror(3, VOCABULARY)
            mirror.apply(record(ROOT, 1, (1, -1), (2, -5)))
            if rng.random() < 0.3:
                mirror.reroot([rng.choice([1, 2, 3])])
            good = record(1, 3, (4, -4), (5, -9))
            name = rng.choice(["count", "flags", "parent", "first_id"])
            damaged = dataclasses.replace(
                good, **{name: rng.choice([0, 1, 6, rng.getrandbits(32)])}
            )
            try:
                mirror.apply(damaged)
            except ProtocolError:
                refused += 1
            assert len(mirror) <= 4
            assert all(node.token is not None for node in mirror.best(10))
        assert refused > 500


def ack(**changes):
    good = VerdictAck(seq=0, hit=1, epoch=1, root_id=1, length=4, context_hash=0,
                      expanded=0, candidates=0, pending=0)  # fmt: skip
    return dataclasses.replace(good, **changes)
