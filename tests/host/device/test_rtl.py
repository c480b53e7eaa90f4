"""The design in the simulated card against the emulator: the same messages, to the last bit."""

import dataclasses
import random

import pytest

from dfvg_hw.config import MemoryModel
from dfvg_hw.errors import DeviceError
from dfvg_hw.messages import (
    DraftLimits,
    Open,
    PassDone,
    PassKind,
    Verdict,
    VerdictAck,
    context_hash,
)
from tests.host.device.cards import CONFIG, VOCABULARY, emulator, image, rtl
from tests.host.device.random_life import RandomLife

pytestmark = [pytest.mark.verilator, pytest.mark.rtl]

MEMORIES = {
    "default": {},
    "fast": {"memory": MemoryModel(latency_cycles=2, stall_percent=0)},
    "slow": {"memory": MemoryModel(latency_cycles=300, stall_percent=60, outstanding=3),
             "host": MemoryModel(latency_cycles=900, stall_percent=30)},
}  # fmt: skip


@pytest.fixture
def device():
    made = rtl()
    yield made
    made.close()


def test_two_sequences_say_the_same_as_in_the_emulator(device, seed):
    reference = RandomLife(emulator(), seed, VOCABULARY)
    life = RandomLife(device, seed, VOCABULARY)
    expected, found = reference.run(160), life.run(160)
    assert found == expected
    assert life.passes > 60
    assert min(life.hits.values()) >= 3, f"verdicts of every kind are needed: {life.hits}"
    report = device.rtl_report()
    assert report["cycles"] > 0
    assert 0 < report["eta"] < 1
    assert abs(report["model_error"]) < 0.1


@pytest.mark.parametrize("memory", ["fast", "slow"])
def test_results_do_not_depend_on_memory(memory, seed):
    expected = RandomLife(emulator(), seed + 1, VOCABULARY).run(30)
    device = rtl(seed=seed, **MEMORIES[memory])
    assert RandomLife(device, seed + 1, VOCABULARY).run(30) == expected
    device.close()


def test_a_message_that_the_model_does_not_expect_is_an_error(device):
    life = RandomLife(device, 1, VOCABULARY)
    life.open(0)
    device.tree.pass_number += 1
    with pytest.raises(DeviceError, match=r"device sent PassDone.*number=1.*model.*number=2"):
        device.run_pass()


def test_nothing_to_do_and_a_closed_device(device):
    assert device.next_pass_cycles() is None
    with pytest.raises(DeviceError, match="nothing to do"):
        device.run_pass()
    device.close()
    device.close()
    with pytest.raises(DeviceError, match="closed"):
        device.poll()


class PassRunner:
    """Runs passes in the design with verdicts in the middle, beside the models."""

    def __init__(self, device, seed):
        self.device, self.rng = device, random.Random(seed)
        self.link, self.tree = device.link, device.tree
        self.compute = emulator()._backend
        self.kinds = dict.fromkeys(PassKind, 0)
        self.during = 0

    def check(self, wanted):
        for message in wanted:
            found = self.link.expect(type(message))
            free = {"cycles", "ideal", "ideal_bytes", "idle"}
            for field in dataclasses.fields(message):
                if field.name not in free:
                    assert getattr(found, field.name) == getattr(message, field.name)

    def verdict(self, seq):
        """Tokens that the tree likes or not."""
        sequence = self.tree.sequences[seq]
        tokens, slot = [], sequence.root
        for _ in range(self.rng.choice([1, 1, 2, 3])):
            node = None if slot is None else self.tree.slot(slot)
            if node is not None and node.ready and node.children and self.rng.random() < 0.6:
                child = self.rng.choice(node.children)
                tokens.append(child.token)
                slot = child.slot
            else:
                tokens.append(self.rng.randrange(3, VOCABULARY))
                slot = None
        return Verdict(
            seq, sequence.epoch + 1, sequence.length, context_hash(sequence.tokens), tuple(tokens)
        )

    def run(self, verdict_after):
        """One pass; a verdict for each sequence after some cycles of it, in order of `seq`."""
        rows = self.tree.begin_pass()
        tables = {row.seq: list(self.tree.sequences[row.seq].pages.phys) for row in rows}
        answers = self.compute.forward(rows, tables)
        self.link.settle()
        self.link.write("pass_grant", 1)
        for seq, cycles in verdict_after:
            self.device.card.run(cycles)
            command = self.verdict(seq)
            self.link.send(command)
            ack = self.link.expect(VerdictAck)
            if not ack.flags & 1:
                raise AssertionError("the verdict came too late for this test")
            self.tree.apply(command)
            (wanted,) = self.tree.take_messages()
            for field in dataclasses.fields(wanted):
                if field.name != "cycles":
                    assert getattr(ack, field.name) == getattr(wanted, field.name), field.name
            self.during += 1
            if self.tree.aborted:
                break
        summary = self.tree.end_pass({} if self.tree.aborted else answers)
        wanted = PassDone(
            **{f.name: int(getattr(summary, f.name)) for f in dataclasses.fields(summary)},
            cycles=0, ideal=0, ideal_bytes=0,
        )  # fmt: skip
        self.check([*self.tree.take_messages(), wanted])
        self.kinds[PassKind(summary.kind)] += 1


def test_verdicts_during_passes(device, seed):
    runner = PassRunner(device, seed)
    for seq in (0, 1):
        device.send(Open(seq, (5, 6, 7 + seq), 0, DraftLimits(threshold=-(1 << 20), topk=4)))
    for _ in range(3):
        runner.run([])
    for _ in range(40):
        if not device.tree.next_rows():
            command = runner.verdict(0)
            device.send(command)
            continue
        if any(s.length > CONFIG.max_ctx - 20 for s in device.tree.sequences):
            break
        chance = runner.rng.choice([0, 0.5, 1])
        seqs = [seq for seq in (0, 1) if runner.rng.random() < chance]
        plan = [(seq, runner.rng.randrange(20, 300)) for seq in seqs]
        runner.run(plan)
    assert runner.during > 10
    assert runner.kinds[PassKind.ABORTED] > 2
    assert runner.kinds[PassKind.GROWTH] > 2


@pytest.mark.slow
def test_registers_without_reset_may_hold_anything_at_power_up(seed):
    expected = RandomLife(emulator(), seed, VOCABULARY).run(40)
    for number in (1, 2):
        device = rtl(seed=number, poison=True)
        assert RandomLife(device, seed, VOCABULARY).run(40) == expected
        device.close()


@pytest.mark.slow
def test_waveform_of_chosen_passes(tmp_path):
    from dfvg_host.device.rtl import open_rtl

    path = tmp_path / "wave.vcd"
    device = open_rtl(image(), vcd=path, vcd_passes=(1, 1))
    life = RandomLife(device, 1, VOCABULARY)
    life.open(0)
    device.run_pass()
    assert not path.exists()
    device.run_pass()
    size = path.stat().st_size
    device.run_pass()
    device.close()
    assert path.stat().st_size == size
    text = path.read_text()
    assert "$enddefinitions" in text
    assert "memory__araddr" in text
