"""Drives a tree unit through a random life beside the reference model and compares everything.

The driver knows pins by name and waits through `Pins`; Amaranth's simulator and cocotb on Verilator
both provide one.
"""

import random
from collections import deque

from dfvg_hw.interfaces import child_result
from dfvg_hw.messages import (
    PAYLOAD_BYTES,
    Open,
    PassDone,
    VerdictAck,
    context_hash,
    decode,
    encode,
)
from dfvg_hw.overlap.control import pass_context, pass_result
from dfvg_hw.tree import TreeModel
from sim.cocotb.layout import Codec
from tests.hw.tree.toy import VOCABULARY, RandomHost, toy_children

LIMIT = 50_000  # cycles that anything may take


class Pins:
    """A clocked design's ports by name; nested members are joined by ``__``."""

    def set(self, name, value):
        raise NotImplementedError

    def get(self, name):
        raise NotImplementedError

    async def clock(self, sample):
        """Call `sample` when all outputs have settled, then let one cycle pass."""
        raise NotImplementedError


def pass_done(summary, idle=0):
    """PASS_DONE as the unit sends it: it knows cycles, but no ideal."""
    return PassDone(
        kind=int(summary.kind), rows=summary.rows, dropped=summary.dropped, number=summary.number,
        children=summary.children, sequences=summary.sequences,
        prefill_rows=summary.prefill_rows, catchup_rows=summary.catchup_rows,
        growth_rows=summary.growth_rows, free_slots=summary.free_slots,
        cycles=1000 + summary.number, ideal=0, ideal_bytes=0, idle=idle,
    )  # fmt: skip


class TreeDriver:
    """One unit and its model.

    Parameters
    ----------
    pins : Pins
    config : DeviceConfig
    rng : random.Random
    backpressure : float
        Chance per cycle that the host's side takes no message.
    """

    def __init__(self, pins, config, rng, backpressure=0.0):
        self.pins, self.config, self.rng = pins, config, rng
        self.backpressure = backpressure
        self.model = TreeModel(config, VOCABULARY)
        self.contexts = Codec(pass_context(config))
        self.child = Codec(child_result(config).members["payload"].shape)
        self.result = Codec(pass_result(config))
        self.received = deque()
        self.shown = [{} for _ in range(config.rows)]
        self.tables = [{} for _ in range(config.max_seqs)]
        self.cycle = self.started = 0
        self.accepts, self.watched, self.seen = False, None, False
        self.spent = {}
        self.offered = None
        for name in ("commands__valid", "tokens__valid", "enable", "passes__ready",
                     "children__valid", "done"):  # fmt: skip
            pins.set(name, 0)
        pins.set("vocabulary", VOCABULARY)
        pins.set("room", 1)

    # Clock and monitors

    async def tick(self):
        """Let one cycle pass."""
        self.accepts = self.rng.random() >= self.backpressure
        self.pins.set("messages__ready", int(self.accepts))
        await self.pins.clock(self.sample)
        self.cycle += 1
        assert self.cycle - self.started < LIMIT, "the unit hangs"

    def sample(self):
        """Look at the outputs; few reads, because every cycle has this."""
        get = self.pins.get
        payload = get("messages__payload") if get("messages__valid") else None
        assert self.offered in (None, payload), "a message changed before it was accepted"
        self.offered = None if self.accepts else payload
        if self.accepts and payload is not None:
            self.received.append(decode(payload.to_bytes(PAYLOAD_BYTES, "little")))
        if get("visibility__en"):
            row, page = get("visibility__row"), get("visibility__page")
            self.shown[row][page] = get("visibility__bits")
        if get("pages__en"):
            self.tables[get("pages__seq")][get("pages__page")] = get("pages__phys")
        self.seen = bool(self.watched is None or get(self.watched))

    async def until(self, name):
        """Let cycles pass up to one in which output `name` is 1."""
        self.started, self.watched = self.cycle, name
        self.seen = False
        while not self.seen:
            await self.tick()
        self.watched = None

    # What a host and a core do

    async def push(self, stream, payload):
        """Offer one item until it's taken."""
        self.pins.set(f"{stream}__valid", 1)
        self.pins.set(f"{stream}__payload", payload)
        await self.until(f"{stream}__ready")
        self.pins.set(f"{stream}__valid", 0)

    async def send(self, command, corrupt=0):
        """Send a command in lines, wait until the unit is back, compare what it said."""
        if isinstance(command, Open):
            lines = [command.line(0x1000, context_hash(command.tokens) ^ corrupt)]
        else:
            lines = command.lines()
        for line in lines:
            await self.push("commands", int.from_bytes(encode(line), "little"))
            if isinstance(command, Open):
                for token in command.tokens:
                    await self.push("tokens", token)
        begin = self.cycle
        await self.until("commands__ready")
        self.note(type(command).__name__, self.cycle - begin)
        self.model.apply(command)
        self.check_messages(self.model.take_messages())

    def note(self, what, cycles):
        self.spent.setdefault(what, []).append(cycles)

    def check_messages(self, expected):
        found, self.received = list(self.received), deque()
        assert len(found) == len(expected), f"{found} instead of {expected}"
        for message, wanted in zip(found, expected, strict=True):
            ignored = {"cycles", "idle"} if isinstance(message, VerdictAck | PassDone) else set()
            assert type(message) is type(wanted), f"{message} instead of {wanted}"
            for name, value in vars(wanted).items():
                if name not in ignored:
                    assert getattr(message, name) == value, f"{message} instead of {wanted}"
            if isinstance(message, PassDone):
                assert message.cycles == wanted.cycles

    async def begin(self):
        """Let the unit choose rows; compare contexts, visibility and page tables."""
        rows = self.model.begin_pass()
        self.pins.set("enable", 1)
        begin = self.cycle
        if not rows:
            await self.until("idle")
            self.pins.set("enable", 0)
            return rows
        await self.until("passes__valid")
        self.note("begin", self.cycle - begin)
        self.pins.set("enable", 0)
        await self.push_pass()
        self.check_rows(rows)
        return rows

    async def push_pass(self):
        self.context = self.pins.get("passes__payload")
        for _ in range(self.rng.choice([0, 0, 3])):
            await self.tick()
            assert self.pins.get("passes__valid")
            assert self.pins.get("passes__payload") == self.context, "a pass changed on offer"
        self.pins.set("passes__ready", 1)
        await self.tick()
        self.pins.set("passes__ready", 0)

    def check_rows(self, rows):
        found = self.contexts.unpack(self.context)
        seqs = {row.seq for row in rows}
        for seq, share in enumerate(found["sequences"]):
            mask = sum(1 << row.index for row in rows if row.seq == seq)
            pages = len(self.model.sequences[seq].pages.phys) if seq in seqs else 0
            assert share == {"rows": mask, "pages": pages}
        for index, context in enumerate(found["rows"]):
            if index >= len(rows):
                assert not context["valid"]
                continue
            row = rows[index]
            assert context == {
                "valid": 1, "children": int(row.want_children), "token": row.token,
                "position": row.position, "seq": row.seq, "page": row.page, "phys": row.phys,
                "offset": row.offset,
            }, f"row {index}: {context} instead of {row}"  # fmt: skip
            table = self.model.sequences[row.seq].pages.phys
            shown = [self.shown[index].get(page) for page in range(len(table))]
            assert shown == list(row.visible), f"row {index} sees {shown} instead of {row.visible}"
            assert [self.tables[row.seq].get(page) for page in range(len(table))] == table

    def check_kill(self):
        dead = sum(1 << i for i, row in enumerate(self.model.running) if not row.alive)
        assert self.pins.get("kill") == dead

    async def answer(self, rows, contexts):
        """Send the children of a pass."""
        answers = {}
        for row in rows:
            if not row.want_children:
                continue
            answers[row.index] = toy_children(contexts[row.index], self.config.topk)
            for rank, (token, logprob) in enumerate(answers[row.index]):
                while self.rng.random() < 0.2:
                    await self.tick()
                self.pins.set("children__valid", 1)
                self.pins.set("children__payload", self.child.pack({
                    "row": row.index, "rank": rank, "channel": token, "logprob": logprob,
                    "last": 0,
                }))  # fmt: skip
                await self.tick()
                self.pins.set("children__valid", 0)
        return answers

    async def end(self, answers, fail=False):
        """End the pass as finished, aborted or failed; compare records."""
        aborted = fail or self.model.aborted
        if fail:
            summary = self.model.fail_pass()
        else:
            summary = self.model.end_pass({} if aborted else answers)
        for _ in range(4):
            await self.tick()
        begin = self.cycle
        self.pins.set("result", self.result.pack({
            "cycles": 1000 + summary.number, "aborted": int(aborted), "killed": 0,
        }))  # fmt: skip
        self.pins.set("done", 1)
        await self.tick()
        self.pins.set("done", 0)
        self.started = self.cycle
        while not any(isinstance(message, PassDone) for message in self.received):
            await self.tick()
        self.note("end", self.cycle - begin)
        self.check_messages([*self.model.take_messages(), pass_done(summary)])


async def random_life(
    pins,
    config,
    seed,
    steps,
    backpressure=0.0,
    commands=(0, 0, 1, 1, 2),
    in_pass=0.4,
    **host_options,
):
    """Run a unit and its model through one random life; return the driver for its statistics.

    `commands` are the numbers of commands between passes to choose from, `in_pass` the chance of
    one more during a pass.
    """
    rng = random.Random(f"{seed}:{config}")
    driver = TreeDriver(pins, config, rng, backpressure)
    host = RandomHost(rng, config, **host_options)
    await driver.until("commands__ready")
    for _ in range(steps):
        for _ in range(rng.choice(commands)):
            await driver.send(host.command())
        rows = await driver.begin()
        if not rows:
            await driver.send(host.command())
            continue
        contexts = spell_contexts(driver.model, rows)
        answers = None
        if rng.random() < 0.5:
            answers = await driver.answer(rows, contexts)
        while rng.random() < in_pass:
            await driver.send(host.command())
            driver.check_kill()
        if rng.random() < host.faults / 4:
            for row in rows:
                host.lost[row.seq] = True  # a watchdog bit: the host has to open it again
            await driver.end(None, fail=True)
            continue
        if answers is None and not driver.model.aborted:
            answers = await driver.answer(rows, contexts)
        await driver.end(answers)
    return driver


def spell_contexts(model, rows):
    """Return every row's context: committed tokens up to it, then its path in the tree."""
    contexts = []
    for row in rows:
        if row.slot is None or row.kind.name != "GROWTH":
            contexts.append(model.sequences[row.seq].tokens[: row.position + 1])
            continue
        ancestors = model.slot(row.slot).ancestors
        path = sorted(
            (s for i, s in enumerate(model.slots) if ancestors >> i & 1), key=lambda s: s.position
        )
        contexts.append(
            model.sequences[row.seq].tokens[: path[0].position] + [s.token for s in path]
        )
    return contexts
