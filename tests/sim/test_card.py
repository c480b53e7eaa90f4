"""The simulated card under faults: of lines, of memories, of the link, of the design itself."""

import pytest

from dfvg_host.device.link import HostLink
from dfvg_host.device.rtl import RtlDevice
from dfvg_hw.errors import DeviceError, ProtocolError
from dfvg_hw.messages import (
    Close,
    DraftLimits,
    Event,
    EventCode,
    Message,
    Nodes,
    Open,
    Opened,
    PassDone,
    PassKind,
    Resync,
    Stats,
    Verdict,
    VerdictAck,
    context_hash,
)
from sim.card import CardOptions, SimCard
from sim.verilate import VerilatorOptions, build_shared_library
from tests.host.device.cards import CONFIG, VOCABULARY, emulator, image, power_up
from tests.host.device.random_life import RandomLife
from tests.sim.faulty_card import FAULTS, FaultyCard

pytestmark = [pytest.mark.verilator, pytest.mark.rtl]

PROMPT = tuple(range(3, 9))
LIMITS = DraftLimits(threshold=-(1 << 20), topk=CONFIG.topk)


@pytest.fixture
def card():
    made = power_up()
    yield made
    made.close()


@pytest.fixture
def link(card):
    """A link with the image loaded, no sequence open, passes by grant."""
    made = HostLink(card, CONFIG)
    made.load(image())
    made.control(enable=1)
    return made


def run_pass(link):
    """Grant a pass and return all that it says, PASS_DONE last."""
    link.settle()
    link.write("pass_grant", 1)
    found = []
    while not found or not isinstance(found[-1], PassDone):
        found.append(link.expect(Message))
    return found


def events(messages):
    return [EventCode(m.code) for m in messages if isinstance(m, Event)]


def open_sequence(link, kind=Open, seq=0):
    link.send(kind(seq, PROMPT, 0, LIMITS))
    assert link.expect(Opened).seq == seq


def without_times(messages):
    return [
        (m.kind, m.rows, m.children, m.number) if isinstance(m, PassDone) else m for m in messages
    ]


def reference_passes(count):
    """What the emulator says to the same prompt."""
    device = emulator()
    device.send(Open(0, PROMPT, 0, LIMITS))
    device.poll()
    for _ in range(count):
        device.run_pass()
    return without_times(device.poll())


def test_memory_is_poisoned_at_power_up(card):
    assert len(set(card.memory[:4096])) > 200
    other = SimCard(CONFIG, CardOptions(memory_bytes=4096, seed=2))
    assert bytes(other.memory[:64]) != bytes(card.memory[:64])
    with pytest.raises(ValueError, match="memory has 4096 bytes: there is no byte 4096"):
        other.corrupt("memory", 4096)
    other.close()


def test_identity_and_registers(card):
    link = HostLink(card, CONFIG)
    for value in (0, 0xFFFFFFFF, 0x12345678):
        card.write_register(0x014, value)
        assert card.read_register(0x014) == value
    assert link.read("clock_khz") == 200_000
    first = link.read("cycles")
    card.run(100)
    assert link.read("cycles") - first >= 100
    with pytest.raises(DeviceError, match=r"config hash 0x\w+: config 'custom' needs 0x\w+"):
        HostLink(card, CONFIG.replace(addr_bits=33))


def test_image_arrives_in_device_memory(card, link):
    for address, data in image().writes():
        assert bytes(card.memory[address : address + len(data)]) == data.tobytes()
    assert card.violations == (0, "")


def test_a_damaged_block_is_refused(card, monkeypatch):
    link = HostLink(card, CONFIG)
    monkeypatch.setattr("dfvg_host.device.link.block_crc", lambda data: 0x1234)
    with pytest.raises(
        DeviceError, match=r"block 1 .* LOAD_ERROR, CRC 0x\w+ instead of 0x00001234"
    ):
        link.load(image())


def test_a_spoilt_mailbox_line_is_reported_and_the_sequence_recovers(card, link):
    open_sequence(link)
    write = card.write_mailbox
    card.write_mailbox = lambda offset, data: write(offset, data[:9] + b"\xff" + data[10:])
    link.send(Verdict(0, 1, len(PROMPT), context_hash(PROMPT), (5,)))
    card.write_mailbox = write
    link.settle()
    event = link.expect(Event)
    assert (event.code, event.info0) == (EventCode.BAD_LINE, 1)
    assert link.errors() == ["line"]
    assert link.read("bad_lines") == 1
    link.write("pass_grant", 1)
    card.run(3000)
    assert link.poll() == []  # drafting has stopped
    link.clear_errors()
    run_pass(link)
    # The verdict is lost: the next one doesn't fit.
    longer = (*PROMPT, 5)
    link.send(Verdict(0, 2, len(longer), context_hash(longer), (6,)))
    assert link.expect(Event).code == EventCode.LENGTH_MISMATCH
    open_sequence(link, Resync)
    assert isinstance(run_pass(link)[-1], PassDone)


def test_a_spoilt_command_line(card, link):
    at = link._command_at + link._sent % 64 * 64
    link.send(Open(0, PROMPT, 0, LIMITS))
    card.corrupt("host", at + 20)  # the device reads it later: its doorbell has only just been rung
    event = link.expect(Event)
    assert event.code == EventCode.BAD_LINE
    assert link.errors() == ["line"]


def test_a_spoilt_ring_line_stops_the_host(card, link):
    link.send(Open(0, PROMPT, 0, LIMITS))
    card.run(4000)
    at = link._ring_index * 64
    card.corrupt("host", at + 8)
    with pytest.raises(ProtocolError, match=r"line \d+ has CRC 0x\w+: its bytes give 0x\w+"):
        link.poll()


@pytest.mark.parametrize("write", [False, True])
def test_a_memory_error_aborts_the_pass(card, link, write):
    open_sequence(link)
    card.fail("memory", write=write, after=40 if write else 900)
    found = run_pass(link)
    assert set(events(found)) == {EventCode.MEMORY_ERROR, EventCode.WATCHDOG}
    assert found[-1].kind == PassKind.ABORTED
    assert link.errors() == ["write" if write else "read"]
    assert link.read("error_info") & 0xFF == (2 if write else 1)
    link.write("pass_grant", 1)
    card.run(3000)
    assert link.poll() == []
    link.clear_errors()
    open_sequence(link, Resync)
    link.write("pass_grant", 0)
    found = [m for _ in range(3) for m in run_pass(link)]
    expected = reference_passes(3)
    assert [m for m in found if isinstance(m, Nodes)] != []
    strip = [(m.parent, m.first_id, m.children) for m in found if isinstance(m, Nodes)]
    assert strip == [(m.parent, m.first_id, m.children) for m in expected if isinstance(m, Nodes)]


def test_watchdog_bites_when_memory_stands_still(card, link):
    open_sequence(link)
    link.write("watchdog", 2000)
    link.settle()
    link.write("pass_grant", 1)
    card.run(500)
    card.kill("memory")
    event = link.expect(Event)
    assert event.code == EventCode.WATCHDOG
    assert event.seq == 255
    dump = link.dump()
    assert event.info0 == dump["place.pc"] > 0
    assert event.info1 == link.read("dump_busy")
    assert dump["busy.reading"] == 1, "reads are not answered"
    assert dump["busy.load"] == 1
    assert dump["level"] == 0, "all words that came were used"
    card.kill("memory", dead=False)  # what is in flight comes after all; then the pass ends
    found = [link.expect(Event), link.expect(PassDone)]
    assert found[0].code == EventCode.WATCHDOG
    assert found[1].kind == PassKind.ABORTED
    link.clear_errors()
    open_sequence(link, Resync)
    assert run_pass(link)[-1].kind == PassKind.PREFILL


def test_stalls_change_nothing_but_time(card, link):
    open_sequence(link)
    found = []
    for number in range(4):
        link.settle()
        link.write("pass_grant", 1)
        card.run(200 * (number + 1))
        card.stall("memory", 3000)
        card.stall("host", 5000)
        while not found or not isinstance(found[-1], PassDone) or found[-1].number != number + 1:
            found.append(link.expect(Message))
    assert without_times(found) == reference_passes(4)


def test_host_write_error_is_sticky(card, link):
    card.fail("host", write=True)
    link.send(Open(0, PROMPT, 0, LIMITS))
    link.settle()
    card.run(2000)
    assert link.errors() == ["host_write"]
    assert link.poll() == []  # the line is lost
    link.clear_errors()
    assert link.errors() == []


def test_full_ring_holds_back_passes_but_no_acknowledgement(card):
    link = HostLink(card, CONFIG, ring_lines=64)
    link.load(image())
    link.send(Open(0, PROMPT, 0, LIMITS))
    fetch = link._fetch
    link.settle()
    link.control(enable=1, free_run=1)
    link._fetch = lambda: False  # the host looks the other way
    card.run(300_000)
    stopped = link.read("passes")
    assert stopped > 3
    card.run(50_000)
    assert link.read("passes") == stopped
    produced = link.read("ring_produced")
    link.send(Verdict(0, 1, len(PROMPT), context_hash(PROMPT), (5, 6)))
    link.settle()
    card.run(3000)
    assert link.read("verdicts") == 1
    assert link.read("ring_produced") == produced + 1
    link.control(enable=0)
    link._fetch = fetch
    found = link.poll()
    assert isinstance(found[-1], VerdictAck)
    assert without_times(found[1:-1]) == reference_passes(stopped)
    link.control(enable=1, free_run=1)
    card.run(20_000)
    assert any(isinstance(m, PassDone) for m in link.poll())


def test_soft_reset_keeps_the_image(card, link):
    open_sequence(link)
    run_pass(link)
    for cycles in (0, 30, 700, 3000):
        link.settle()
        link.write("pass_grant", 1)
        card.run(cycles)
        link.soft_reset()
        link.poll()
        link.write("pass_grant", 0)
        link.control(enable=1)
        open_sequence(link)
        found = [m for _ in range(3) for m in run_pass(link)]
        assert without_times(found) == reference_passes(3)


def test_hard_reset_in_the_middle_of_everything(card):
    for cycles in (0, 800, 2500):
        device = RtlDevice(image(), card)
        life = RandomLife(device, 3, VOCABULARY)
        assert life.run(8) == RandomLife(emulator(), 3, VOCABULARY).run(8)
        device.link.write("pass_grant", 1)
        card.run(cycles)
        card.reset()
    assert card.violations == (0, "")


def test_statistics_message(card, link):
    open_sequence(link)
    run_pass(link)
    link.control(enable=1, stats=1)
    stats = link.expect(Stats)
    assert (stats.passes, stats.aborted, stats.rows) == (1, 0, CONFIG.rows)
    assert stats.cycles > stats.busy > 0
    link.send(Close(0))
    link.settle()


def test_harness_notices_broken_rules():
    from dfvg_hw.verilog import to_verilog

    text = to_verilog(FaultyCard(CONFIG), "faulty_card")
    library = build_shared_library(
        text,
        "faulty_card",
        [SimCard.HARNESS],
        defines={"BUS_BYTES": CONFIG.bus_bytes},
        options=VerilatorOptions(fast=False),
    )
    for fault, complaint in FAULTS.items():
        card = SimCard(CONFIG, CardOptions(memory_bytes=1 << 16), library)
        card.run(10)
        assert card.violations == (0, "")
        if fault > 6:
            card.stall("memory", 20)
        card.write_register(0, fault)
        with pytest.raises(DeviceError, match=f"device memory: {complaint}"):
            card.run(60)
        card.close()
