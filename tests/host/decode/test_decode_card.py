"""The whole chain on the simulated card, which fails in the middle: the text must not change."""

import re

import pytest

from dfvg_host.decode import DecodeParams, decode
from dfvg_host.models import LoadedTarget
from tests.host import tiny_models
from tests.host.device.cards import emulator, image, rtl

pytestmark = [pytest.mark.verilator, pytest.mark.rtl]

PROMPT = tiny_models.prompt(11)
TOKENS = 40


def kill_memory(device):
    device.link.write("watchdog", 5000)
    device.card.kill("memory")


def spoil_the_next_record(device):
    """Let the device write its next line, then flip a bit of it before the host looks."""
    link, card = device.link, device.card
    fetch = link._fetch

    def spoilt():
        at = link._ring_index % link._ring_lines * 64
        if card.dma[at + 0x3C : at + 0x40] == link._ring_tag.to_bytes(4, "little"):
            card.corrupt("host", at + 9)
        return fetch()

    link._fetch = spoilt


FAULTS = {
    "link dies": (lambda d: d.card.kill("host"), "device sends no|does not carry out|takes no"),
    "memory dies": (kill_memory, "watchdog ended it: place.pc .*busy.reading 1"),
    "memory answers with an error": (
        lambda d: d.card.fail("memory", after=50),
        "device sent Event",
    ),
    "memory refuses a write": (lambda d: d.card.fail("memory", write=True), "device sent Event"),
    "host refuses a write": (lambda d: d.card.fail("host", write=True), "sends no .*host_write"),
    "a spoilt record": (spoil_the_next_record, r"line \d+ has CRC"),
}


def target():
    """The model that the card's draft was compiled from."""
    return LoadedTarget(tiny_models.model(num_hidden_layers=2), None, "tiny", "fp32", None)


def run(device, warnings):
    params = DecodeParams(TOKENS, tree_budget=8, passes_per_round=3, stop_tokens=(), check=True)
    return decode(target(), device, PROMPT, params, warn=warnings.append)


def fail_after(device, passes, fault):
    """Have something happen to the card before one of its passes."""
    plain, done = device._run, []

    def run_pass(*arguments):
        done.append(1)
        if len(done) == passes:
            fault(device)
        return plain(*arguments)

    device._run = run_pass


@pytest.fixture(scope="module")
def sound():
    """What the emulator gives, to compare with."""
    return run(emulator(), [])


@pytest.mark.parametrize("name", FAULTS)
def test_text_survives_a_card_that_fails(name, sound):
    fault, complaint = FAULTS[name]
    assert sound.identical
    assert sound.acceptance_length > 1.5
    device, warnings = rtl(), []
    device.card.patience = 64
    fail_after(device, 12, fault)
    got = run(device, warnings)
    device.close()
    assert got.identical
    assert got.tokens == sound.tokens
    assert got.degraded == len(warnings) == 1
    assert re.search(complaint, warnings[0]), warnings
    assert 0 < got.nodes_verified < sound.nodes_verified


def test_stalls_and_wrong_weights_are_no_faults(sound):
    device, warnings = rtl(), []
    fail_after(device, 12, lambda d: (d.card.stall("memory", 5000), d.card.stall("host", 5000)))
    got = run(device, warnings)
    assert {
        k: v for k, v in got.to_dict().items() if k not in ("device", "rtl", "wall_seconds")
    } == {k: v for k, v in sound.to_dict().items() if k not in ("device", "rtl", "wall_seconds")}
    device.close()
    # Bits that flip in the weights make another draft: other trees, the same text.
    device = rtl()
    start, data = max(image().writes(), key=lambda item: len(item[1]))
    for place in range(0, len(data), 7):
        device.card.corrupt("memory", start + place, 0x40)
    got = run(device, warnings)
    device.close()
    assert got.identical
    assert got.tokens == sound.tokens
    assert got.acceptance_length != sound.acceptance_length
    assert warnings == []
