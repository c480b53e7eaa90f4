"""The emulator with a floating-point draft: every candidate equals plain decoding's."""

import dataclasses
import math
import random

import pytest
import torch

from dfvg_host.decode.mirror import TreeMirror
from dfvg_host.device.emulator import EmulatorDevice
from dfvg_host.device.floats import FloatBackend
from dfvg_host.device.protocol import DraftDevice, VirtualTimeDevice, check_versions
from dfvg_hw.config import PRESETS
from dfvg_hw.errors import DeviceError, ModelError, ProtocolError
from dfvg_hw.messages import (
    Capability,
    Close,
    DraftLimits,
    HitClass,
    Nodes,
    Open,
    PassDone,
    PassKind,
    Verdict,
    VerdictAck,
    context_hash,
)
from tests.host.tiny_models import VOCAB, model

TINY = PRESETS["tiny"].replace(max_ctx=512)
WIDE = DraftLimits(threshold=-(1 << 20))


@pytest.fixture(scope="module")
def llama():
    return model("llama").eval()


@pytest.fixture
def device(llama):
    return EmulatorDevice(TINY, FloatBackend(llama, TINY))


@torch.no_grad()
def plain_children(llama, context, count):
    """Best next tokens of a context by the whole model, no cache, no tree."""
    logits = llama(torch.tensor([context])).logits[0, -1].float()
    best = torch.sort(logits, descending=True, stable=True).indices[:count].tolist()
    logprobs = torch.log_softmax(logits, dim=-1)[best] / math.log(2) * 256
    return best, logprobs.tolist()


class Conversation:
    """One sequence on a device, with its mirror and context."""

    def __init__(self, device, seq, tokens, limits=WIDE):
        self.device, self.seq, self.tokens = device, seq, list(tokens)
        self.epoch = 0
        self.mirror = TreeMirror(len(tokens), VOCAB)
        device.send(Open(seq, tuple(tokens), 0, limits))

    def take(self, message):
        if isinstance(message, Nodes):
            self.mirror.apply(message)
        elif isinstance(message, VerdictAck):
            self.mirror.acknowledge(message)

    def commit(self, tokens):
        self.epoch += 1
        hit = self.mirror.reroot(tokens)
        verdict = Verdict(
            self.seq, self.epoch, len(self.tokens), context_hash(self.tokens), tuple(tokens)
        )
        self.device.send(verdict)
        self.tokens += tokens
        return hit

    def context(self, node):
        path = []
        while node is not self.mirror.root:
            path.append(node.token)
            node = node.parent
        return self.tokens + path[::-1]


def deliver(device, conversations):
    for message in device.poll():
        if not isinstance(message, PassDone):
            conversations[message.seq].take(message)


def check_tree(llama, conversation):
    """Every expanded node's children are what the model says about its whole context."""
    checked = 0
    for node in conversation.mirror.root.below():
        if node.children is None:
            continue
        tokens, logprobs = plain_children(llama, conversation.context(node), TINY.topk)
        assert [child.token for child in node.children] == tokens
        for child, logprob in zip(node.children, logprobs, strict=True):
            assert abs(child.logprob - logprob) < 1
        checked += 1
    return checked


def test_candidates_equal_plain_decoding(llama, device, seed):
    """Two sequences, random verdicts, pages with holes, misses and long grafts."""
    rng = random.Random(seed)
    talks = [
        Conversation(device, seq, [rng.randrange(VOCAB) for _ in range(length)])
        for seq, length in ((0, 70), (1, 5))
    ]
    checked, hits = 0, set()
    for _ in range(40):
        for _ in range(rng.randint(0, 6)):
            if device.next_pass_cycles() is not None:
                device.run_pass()
        deliver(device, talks)
        talk = rng.choice(talks)
        checked += check_tree(llama, talk)
        tokens, node = [], talk.mirror.root
        for _ in range(rng.choice([1, 2, 3, 12])):
            known = talk.mirror.children(node) if node is not None else ()
            node = rng.choice(known) if known and rng.random() < 0.9 else None
            tokens.append(node.token if node is not None else rng.randrange(VOCAB))
        hits.add(talk.commit(tokens))
        deliver(device, talks)
    assert hits == set(HitClass)
    assert checked > 100


def test_greedy_drafting_equals_greedy_decoding(llama, device):
    """A draft that is the target: the best path of the tree is the target's greedy text."""
    prompt = list(range(10, 30))
    expected = llama.generate(
        torch.tensor([prompt]), max_new_tokens=12, do_sample=False, eos_token_id=None
    )[0].tolist()
    talk = Conversation(device, 0, prompt)
    for _ in range(30):
        if device.next_pass_cycles() is not None:
            device.run_pass()
    deliver(device, [talk])
    node = talk.mirror.root
    for token in expected[len(prompt) :][:3]:
        node = node.child(token)
        assert node is not None
        assert node.rank == 0


def test_it_is_a_virtual_time_device(device):
    assert isinstance(device, DraftDevice)
    assert isinstance(device, VirtualTimeDevice)
    assert device.info.name == "emulator"
    assert device.info.output_vocabulary == VOCAB
    assert device.info.capabilities == Capability.VIRTUAL_TIME
    check_versions(device.info, TINY)


def test_nothing_to_do(device):
    assert device.next_pass_cycles() is None
    with pytest.raises(DeviceError, match="nothing to do"):
        device.run_pass()


def test_pass_records(device):
    Conversation(device, 0, range(1, 7))
    device.poll()
    cost = device.next_pass_cycles()
    first, second, third = (device.run_pass() for _ in range(3))
    assert (first.cycles, first.kind, first.rows, first.number) == (cost, PassKind.PREFILL, 4, 1)
    assert (second.prefill_rows, second.children) == (2, 4)
    assert (third.kind, third.growth_rows) == (PassKind.GROWTH, 4)
    messages = device.poll()
    assert [m for m in messages if isinstance(m, PassDone)] == [first, second, third]
    assert isinstance(messages[1], Nodes)
    assert device.poll() == []


def test_asking_for_the_cost_changes_nothing(device):
    Conversation(device, 0, range(1, 7))
    costs = [device.next_pass_cycles() for _ in range(3)]
    assert len(set(costs)) == 1
    before = device.tree.next_rows()
    assert device.run_pass().rows == len(before)


def test_longer_contexts_cost_more(llama):
    def cost(length):
        device = EmulatorDevice(TINY, FloatBackend(llama, TINY))
        Conversation(device, 0, [1] * length)
        while not device.run_pass().children:
            pass
        return device.next_pass_cycles()

    assert cost(10) < cost(100) < cost(200)


def test_closed_devices_refuse(device):
    device.close()
    device.close()
    for call in (
        device.poll,
        device.next_pass_cycles,
        device.run_pass,
        lambda: device.send(Close(0)),
    ):
        with pytest.raises(DeviceError, match="device emulator is closed"):
            call()


@pytest.mark.parametrize(
    ("command", "text"),
    [
        (Open(300, (1,)), r"Open\.seq is 300: 0 to 255"),
        (Open(0, (-1,)), r"Open\.token is -1: 0 to"),
        (Verdict(0, 1 << 32, 1, 0, ()), r"Verdict\.epoch is 4294967296"),
        (Verdict(0, 1, 1, 0, (0xFFFFFFFF,)), r"Verdict\.token is 4294967295: 0 to 4294967294"),
    ],
)
def test_what_no_line_can_carry_is_refused(device, command, text):
    with pytest.raises(ProtocolError, match=text):
        device.send(command)


@pytest.mark.parametrize("field", ["abi_version", "message_version", "image_version"])
def test_other_versions_are_refused(device, field):
    info = dataclasses.replace(device.info, **{field: 9})
    with pytest.raises(DeviceError, match="version 9: this host needs 1"):
        check_versions(info)


def test_other_configs_are_refused(device):
    with pytest.raises(DeviceError, match="config 'sim' needs 0x"):
        check_versions(device.info, PRESETS["sim"])


def test_other_models_are_refused():
    with pytest.raises(ModelError, match="model type 'gpt2' can't be drafted with: only 'llama'"):
        FloatBackend(model("gpt2"), TINY)
