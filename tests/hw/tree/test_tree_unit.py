"""The tree unit in Amaranth's simulator against the reference model."""

import dataclasses
import importlib
import random
import types
from collections import deque

import pytest
from amaranth.hdl import Value
from amaranth.sim import Simulator

from dfvg_hw.config import PRESETS
from dfvg_hw.messages import (
    Close,
    DraftLimits,
    Event,
    EventCode,
    HitClass,
    LoadLine,
    MessageType,
    Open,
    Resync,
    Retune,
    Verdict,
    context_hash,
    encode,
)
from dfvg_hw.tree.unit import TreeUnit
from tests.hw.tree.rtl_driver import Pins, TreeDriver, random_life

TINY = PRESETS["tiny"]
CONFIGS = {
    "tiny": TINY,
    "few slots": TINY.replace(m_slots=8, candidates=32, rows=8, max_ctx=64),
    "three sequences": TINY.replace(max_seqs=3, m_slots=24, candidates=96, max_ctx=128),
}

pytestmark = pytest.mark.rtl


class SimulatorPins(Pins):
    """Ports of a component in Amaranth's simulator."""

    def __init__(self, dut, context):
        self._dut, self._context = dut, context
        self._ports = {}

    def _port(self, name):
        if name not in self._ports:
            port = self._dut
            for part in name.split("__"):
                port = getattr(port, part)
            self._ports[name] = Value.cast(port)
        return self._ports[name]

    def set(self, name, value):
        self._context.set(self._port(name), value)

    def get(self, name):
        return self._context.get(self._port(name))

    async def clock(self, sample):
        sample()
        await self._context.tick()


def live(config, seed, steps, **options):
    """Run a life in the simulator and return its driver."""
    dut = TreeUnit(config)
    drivers = []

    async def bench(context):
        drivers.append(
            await random_life(SimulatorPins(dut, context), config, seed, steps, **options)
        )

    simulator = Simulator(dut)
    simulator.add_clock(1e-8)
    simulator.add_testbench(bench)
    simulator.run()
    return drivers[0]


@pytest.mark.parametrize("name", CONFIGS)
def test_equals_the_model(name, seed):
    driver = live(CONFIGS[name], seed, 40, backpressure=0.3, faults=0.03)
    assert driver.model.pass_number > 20


def play(scene, config=TINY):
    """Run a coroutine function that is given a driver which has left reset."""
    dut = TreeUnit(config)

    async def bench(context):
        driver = TreeDriver(SimulatorPins(dut, context), config, random.Random(1))
        await driver.until("commands__ready")
        await scene(driver)

    simulator = Simulator(dut)
    simulator.add_clock(1e-8)
    simulator.add_testbench(bench)
    simulator.run()


@pytest.mark.parametrize(("valid", "payload"), [(0, 0), (1, 9)])
def test_the_driver_notices_a_message_that_changes(valid, payload):
    """A unit that withdraws or replaces a message which the host's side hasn't taken."""
    values = {"messages__valid": 1, "messages__payload": 8}
    pins = types.SimpleNamespace(set=lambda name, value: None, get=lambda n: values.get(n, 0))
    driver = TreeDriver(pins, TINY, random.Random(1))
    driver.sample()
    driver.sample()
    values |= {"messages__valid": valid, "messages__payload": payload}
    with pytest.raises(AssertionError, match="a message changed before it was accepted"):
        driver.sample()


async def say(driver, line, tokens=()):
    """Send one line that the model is not told of; return what the unit says about it."""
    await driver.push("commands", int.from_bytes(encode(line), "little"))
    for token in tokens:
        await driver.push("tokens", token)
    await driver.until("commands__ready")
    messages, driver.received = list(driver.received), deque()
    return messages


def opening(seq, tokens, corrupt=0, kind=Open):
    return kind(seq, tokens, 9).line(0, context_hash(tokens) ^ corrupt)


class TestCommands:
    def test_damaged_prompt(self):
        async def scene(driver):
            hash_ = context_hash((1, 2, 3))
            assert await say(driver, opening(0, (1, 2, 3), corrupt=4), (1, 2, 3)) == [
                Event(code=EventCode.HASH_MISMATCH, seq=0, epoch=9, info0=hash_, info1=hash_ ^ 4)
            ]
            (event,) = await say(driver, Close(0).lines()[0])
            assert event.code == EventCode.UNKNOWN_SEQUENCE
            await driver.send(Open(0, (1, 2, 3)))
            assert len(await driver.begin()) == 3

        play(scene)

    def test_prompt_without_tokens(self):
        async def scene(driver):
            line = dataclasses.replace(opening(0, (1,)), count=0)
            (event,) = await say(driver, line)
            assert (event.code, event.info0) == (EventCode.BAD_MESSAGE, MessageType.OPEN)

        play(scene)

    @pytest.mark.parametrize("command", [Close(1, 5), Retune(1, DraftLimits()), Resync(1, (1, 2))])
    def test_unknown_sequence_as_in_the_model(self, command):
        play(lambda driver: driver.send(command))

    @pytest.mark.parametrize(
        "command",
        [
            Close(2, 5),
            Retune(200, DraftLimits()),
            Open(2, (1, 2)),
            Resync(3, (1, 2)),
            Verdict(4, 1, 1, 0, (1,)),
        ],
    )
    def test_sequence_out_of_range_as_in_the_model(self, command):
        play(lambda driver: driver.send(command))

    def test_stray_lines(self):
        async def scene(driver):
            await driver.send(Open(0, (1, 2)))
            first, middle, last = Verdict(0, 1, 2, context_hash((1, 2)), tuple(range(20))).lines()
            (event,) = await say(driver, last)
            assert (event.code, event.info0) == (EventCode.BAD_MESSAGE, MessageType.VERDICT)
            assert await say(driver, first) == []
            assert await say(driver, middle) == []
            (ack,) = await say(driver, last)
            assert (ack.length, ack.hit) == (22, HitClass.MISS)

        play(scene)

    def test_rest_of_a_refused_verdict_is_passed_over(self):
        async def scene(driver):
            await driver.send(Open(0, (1, 2)))
            await driver.send(Verdict(0, 1, 2, 77, tuple(range(20))))
            await driver.send(Open(0, (3,)))

        play(scene)

    def test_no_pass_starts_in_the_middle_of_a_verdict(self):
        async def scene(driver):
            await driver.send(Open(0, (1, 2)))
            first, middle, last = Verdict(0, 1, 2, context_hash((1, 2)), tuple(range(20))).lines()
            driver.pins.set("enable", 1)
            await say(driver, first)
            await say(driver, middle)
            for _ in range(200):
                await driver.tick()
                assert not driver.pins.get("passes__valid")
            await say(driver, last)
            await driver.until("passes__valid")

        play(scene)

    def test_unknown_type(self):
        async def scene(driver):
            (event,) = await say(driver, LoadLine(command=0, address=0, dest=0, size=64, crc=0))
            assert (event.code, event.info0) == (EventCode.BAD_MESSAGE, MessageType.LOAD)

        play(scene)


class TestPasses:
    @pytest.mark.parametrize("pin", ["enable", "room"])
    def test_held_back(self, pin):
        async def scene(driver):
            await driver.send(Open(0, (1, 2)))
            driver.pins.set("enable", 1)
            driver.pins.set(pin, 0)
            for _ in range(200):
                await driver.tick()
                assert not driver.pins.get("passes__valid")
            driver.pins.set(pin, 1)
            await driver.until("passes__valid")

        play(scene)

    def test_commands_wait_for_no_message_room(self):
        """With `room` low and a message stuck, nothing but that message waits."""

        async def scene(driver):
            await driver.send(Open(0, (1, 2)))
            driver.pins.set("room", 0)
            await driver.send(Verdict(0, 1, 2, context_hash((1, 2)), (3,)))

        play(scene)

    def test_cut_off(self):
        async def scene(driver):
            await driver.send(Open(0, (1, 2)))
            await driver.begin()
            await driver.end(None, fail=True)
            assert not await driver.begin()
            await driver.send(Verdict(0, 1, 2, context_hash((1, 2)), (3,)))  # refused
            await driver.send(Resync(0, (1, 2, 3)))
            assert len(await driver.begin()) == 3

        play(scene)

    def test_idle(self):
        async def scene(driver):
            driver.pins.set("enable", 1)
            await driver.until("idle")
            await driver.send(Open(0, (1, 2)))
            assert not driver.pins.get("idle")

        play(scene)


@pytest.mark.parametrize(
    ("where", "broken"),
    [
        ("bits.HASH_PRIME", 16777621),
        ("verdict.HitClass.MISS", HitClass.LEAF),
        ("finish.CHILDREN_PER_LINE", 4),
    ],
)
def test_the_comparison_can_fail(monkeypatch, seed, where, broken):
    module, name = where.split(".", 1)
    target = importlib.import_module(f"dfvg_hw.tree.{module}")
    if "." in name:
        replacement = types.SimpleNamespace(EXPANDED=0, LEAF=1, MISS=int(broken))
        monkeypatch.setattr(target, "HitClass", replacement)
    else:
        monkeypatch.setattr(target, name, broken)
    config = TINY.replace(topk=8, candidates=128)
    with pytest.raises(AssertionError):
        live(config, seed, 40)
