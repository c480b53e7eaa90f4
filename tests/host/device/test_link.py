"""The host's side of the link, on the simulated card."""

import dataclasses

import pytest

from dfvg_host.device.link import COMMAND_LINES, WATCHDOG_CYCLES, HostLink
from dfvg_hw.errors import DeviceError
from dfvg_hw.messages import (
    ABI_VERSION,
    IMAGE_VERSION,
    MESSAGE_VERSION,
    Capability,
    Close,
    DraftLimits,
    Event,
    EventCode,
    Open,
    Opened,
    Retune,
    Verdict,
    VerdictAck,
    context_hash,
)
from dfvg_hw.registers import DEVICE_ID, register
from tests.host.device.cards import CONFIG, image, power_up

pytestmark = [pytest.mark.verilator, pytest.mark.rtl]

PROMPT = (5, 6, 7, 8)


@pytest.fixture
def card():
    made = power_up()
    yield made
    made.close()


@pytest.fixture
def link(card):
    """A link to a card that knows its vocabulary; nothing is loaded, so no pass can run."""
    made = HostLink(card, CONFIG, ring_lines=64)
    made.write("model_vocab", image().dims.vocab)
    return made


def open_sequence(link, tokens=PROMPT, seq=0):
    link.send(Open(seq, tokens, 0, DraftLimits(topk=CONFIG.topk)))
    opened = link.expect(Opened)
    assert (opened.length, opened.context_hash) == (len(tokens), context_hash(tokens))


class Committed:
    """A context that grows by verdicts of given lengths."""

    def __init__(self, link):
        self.link, self.context, self.epoch = link, list(PROMPT), 0

    def verdict(self, count):
        self.epoch += 1
        tokens = tuple(3 + (self.epoch + i) % 100 for i in range(count))
        base, digest = len(self.context), context_hash(self.context)
        self.link.send(Verdict(0, self.epoch, base, digest, tokens))
        self.context += tokens
        ack = self.link.expect(VerdictAck)
        assert (ack.epoch, ack.length) == (self.epoch, len(self.context))
        assert ack.context_hash == context_hash(self.context)


def test_messages_go_around_the_ring(link):
    for turn in range(40):
        open_sequence(link, tuple(range(3, 4 + turn)))
        open_sequence(link, (9,), seq=1)
    assert link.read("ring_produced") == 80


def test_verdicts_of_any_length(link):
    open_sequence(link)
    committed = Committed(link)
    mails = link._mailed
    for count in (1, 8, 9, 32):
        committed.verdict(count)
    assert link._mailed == mails + 1 + 1 + 2 + 4
    posted = link._sent
    committed.verdict(33)  # more lines than a mailbox holds
    assert link._sent == posted + 5


def test_a_burst_of_commands_keeps_its_order(card, link):
    open_sequence(link)
    for depth in range(3 * COMMAND_LINES):
        link.send(Retune(0, DraftLimits(max_depth=depth)))
    link.send(Close(0))
    link.send(Close(0))  # refused: closed already
    event = link.expect(Event)
    assert event.code == EventCode.UNKNOWN_SEQUENCE
    link.settle()
    assert link.read("command_consumed") == link._sent
    assert link.read("bad_lines") == 0


def test_commands_for_unknown_sequences_reach_the_device(link):
    link.send(Retune(7, DraftLimits()))
    event = link.expect(Event)
    assert (event.code, event.seq) == (EventCode.BAD_MESSAGE, 7)


def test_long_contexts(link):
    tokens = (5,) * (CONFIG.max_ctx + 1)
    open_sequence(link, tokens)
    assert link.expect(Event).code == EventCode.CONTEXT_FULL
    with pytest.raises(DeviceError, match=r"context has 100000 tokens: at most \d+"):
        link.send(Open(0, (5,) * 100_000))


def test_another_message_than_expected(link):
    link.send(Open(0, PROMPT))
    with pytest.raises(DeviceError, match=r"device sent Opened.*: VerdictAck was expected"):
        link.expect(VerdictAck)


def test_silence_is_an_error(card, link):
    card.patience = 3
    with pytest.raises(DeviceError, match=r"sends no Opened \(error bits: none\)"):
        link.expect(Opened)
    card.kill("host")
    link.send(Open(0, PROMPT))
    with pytest.raises(DeviceError, match="does not carry out its commands"):
        link.settle()


def test_a_new_host_takes_over(card, link):
    open_sequence(link)
    again = HostLink(card, CONFIG)
    again.write("model_vocab", image().dims.vocab)
    again.send(Close(0))
    assert again.expect(Event).code == EventCode.UNKNOWN_SEQUENCE
    open_sequence(again)
    Committed(again).verdict(3)


def test_a_small_buffer_is_refused(card):
    card.dma = card.dma[: 1 << 20]
    with pytest.raises(DeviceError, match=r"DMA buffer has 1048576 bytes: at least \d+"):
        HostLink(card, CONFIG)


class NoCard:
    """What a host sees where a card should be."""

    dma, dma_base, patience = memoryview(bytearray(8 << 20)), 0, 3

    def __init__(self, value):
        self.value = value

    def read_register(self, address):
        return self.value


def test_no_card_and_a_foreign_card():
    with pytest.raises(DeviceError, match="no device: its registers read as all ones"):
        HostLink(NoCard(0xFFFFFFFF), CONFIG)
    with pytest.raises(DeviceError, match="device has id 0x00000007: 0x47564644 is expected"):
        HostLink(NoCard(7), CONFIG)


class Registers(NoCard):
    """A card that is nothing but registers."""

    def __init__(self, **values):
        self.values = {
            "id": DEVICE_ID,
            "versions": ABI_VERSION | MESSAGE_VERSION << 8 | IMAGE_VERSION << 16,
            "config_hash": CONFIG.config_hash,
            "capabilities": int(Capability.RING),
        } | values
        self.values = {register(name).address: value for name, value in self.values.items()}

    def read_register(self, address):
        return self.values.get(address, 0)

    def write_register(self, address, value):
        self.values[address] = value


def test_what_a_card_must_say_of_itself():
    HostLink(Registers(), CONFIG)
    for field, shift in (("abi", 0), ("message", 8), ("image", 16)):
        own = ABI_VERSION | MESSAGE_VERSION << 8 | IMAGE_VERSION << 16
        other = own & ~(0xFF << shift) | 99 << shift
        with pytest.raises(DeviceError, match=f"device has {field} version 99: this host needs"):
            HostLink(Registers(versions=other), CONFIG)
    with pytest.raises(DeviceError, match=r"config hash 0x00000001: config 'tiny' needs 0x\w+"):
        HostLink(Registers(config_hash=1), CONFIG)


def test_missing_capabilities_are_refused():
    with pytest.raises(DeviceError, match=r"lacks RING: its capability word is 0x00000002"):
        HostLink(Registers(capabilities=int(Capability.VIRTUAL_TIME)), CONFIG)
    link = HostLink(Registers(), CONFIG)
    with pytest.raises(DeviceError, match="lacks VIRTUAL_TIME: "):
        link.require(Capability.RING | Capability.VIRTUAL_TIME)
    # One head row less than tokens: the device would have to map its channels to token ids.
    truncated = image()
    truncated = dataclasses.replace(
        truncated, dims=dataclasses.replace(truncated.dims, out_vocab=truncated.dims.vocab - 1)
    )
    with pytest.raises(DeviceError, match="lacks TRUNCATED_HEAD: "):
        link.load(truncated)


def test_the_watchdog_is_armed():
    link = HostLink(Registers(), CONFIG)
    assert link.read("watchdog") == WATCHDOG_CYCLES > 0
