"""cocotb side of the ring-engine tests: a host in memory, a tree unit of scoreboards."""

import cocotb
from cocotb.triggers import RisingEdge

from dfvg_hw.config import get_config
from dfvg_hw.messages import (
    Close,
    DraftLimits,
    Event,
    EventCode,
    LoadLine,
    Open,
    Retune,
    Verdict,
    context_hash,
    crc32c,
    decode,
    encode,
    open_line,
    seal_line,
)
from dfvg_hw.pcie.engine import pass_lines, ring_control
from dfvg_hw.registers import MAILBOX_LINES, mailbox_offset
from sim.cocotb.axi import AxiMemory
from sim.cocotb.bench import Bench, parameter, rng
from sim.cocotb.layout import Codec
from sim.cocotb.profiles import profile

CONFIG = get_config(parameter("config", str, "tiny"))
WIDTH = CONFIG.bus_bytes
PROFILES = ("none", "random", "bursts")
RING, COMMAND, TOKENS, BLOCKS = 0x1000, 0x2000, 0x8000, 0x10000
LINES = 64
HOST_BYTES, DEVICE_BYTES = 1 << 18, 1 << 16
LINE_BITS = 448


class RingBench(Bench):
    """The engine, its host and what stands for the tree unit.

    Attributes
    ----------
    found : list of bytes
        Payloads of the device-to-host ring.
    """

    def __init__(self, dut, profile_name="none", read_ring=True):
        super().__init__(dut)
        slow = {"reads": profile_name, "addresses": profile_name, "writes": profile_name}
        self.host = AxiMemory(
            dut, "host", HOST_BYTES, rng("host"), latency=(5, 60), must_accept=False, **slow
        )
        self.device = AxiMemory(dut, "memory", DEVICE_BYTES, rng("device"), **slow)
        self.commands = self.sink("commands", LINE_BITS, profile_name)
        self.tokens = self.sink("tokens", 32, profile_name)
        self.messages = self.source("messages", LINE_BITS, profile_name)
        self.extra = self.source("extra", LINE_BITS, "random")
        self.chance = rng("host program")
        self.gaps = profile(profile_name, rng("mailbox"))
        self.read_ring = read_ring
        self.control = Codec(ring_control())
        self.forget()
        for name in ("ring", "command", "ring_restart", "command_restart", "abandon",
                     "notices__valid", "mailbox__awvalid", "mailbox__wvalid"):  # fmt: skip
            getattr(dut, name).value = 0
        dut.quiet.value = 1
        dut.mailbox__bready.value = 1
        dut.mailbox__awburst.value = 1
        cocotb.start_soon(self._host())

    def forget(self):
        """Forget indices, as after a reset."""
        self.posted = self.index = self.given_back = 0
        self.mail_tags = [1] * CONFIG.max_seqs
        self.found = []

    async def begin(self):
        """Release reset and set both rings up."""
        await self.start()
        self.host.data[RING : RING + 64 * LINES] = bytes(64 * LINES)
        self._drive()
        for name in ("ring_restart", "command_restart"):
            getattr(self.dut, name).value = 1
        await self.cycles(1)
        for name in ("ring_restart", "command_restart"):
            getattr(self.dut, name).value = 0
        await self.cycles(2)

    def _drive(self):
        pack = self.control.pack
        self.dut.ring.value = pack({"base": RING, "lines": LINES, "index": self.given_back})
        self.dut.command.value = pack({"base": COMMAND, "lines": LINES, "index": self.posted})

    async def _host(self):
        """Read lines up to what the device says it has produced, give places back now and then."""
        while True:
            await RisingEdge(self.clk)
            if int(self.dut.rst.value):
                continue
            produced = int(self.dut.produced.value)
            while self.index != produced:
                at = RING + self.index % LINES * 64
                payload = open_line(self.host.data[at : at + 64], self.index + 1)
                assert payload is not None, f"line {self.index + 1} isn't there yet"
                self.found.append(payload)
                self.index += 1
            if self.read_ring and self.chance.random() < 0.05 and self.given_back != self.index:
                self.given_back = self.index
                self._drive()

    async def post(self, line, spoil=0):
        """Put a line into the command ring; `spoil` is XORed into its first bytes."""
        while (self.posted - int(self.dut.consumed.value)) % (1 << 32) >= LINES:
            await RisingEdge(self.clk)
        raw = bytearray(seal_line(encode(line), self.posted + 1))
        raw[1] ^= spoil
        at = COMMAND + self.posted % LINES * 64
        self.host.data[at : at + 64] = raw
        self.posted += 1
        self._drive()

    async def mail(self, seq, line, spoil=0):
        """Write a line into a mailbox, in one of the ways in which a bridge may cut it."""
        tag = self.mail_tags[seq]
        raw = bytearray(seal_line(encode(line), tag))
        raw[1] ^= spoil
        beat = self.chance.choice([b for b in (4, 8, 16, 32, 64) if b <= WIDTH])
        half = self.chance.choice([cut for cut in (64, 32) if cut >= beat])
        for start in range(0, 64, half):
            await self._burst(mailbox_offset(seq, tag) + start, raw[start : start + half], beat)
        self.mail_tags[seq] += 1

    async def _burst(self, address, data, beat):
        dut = self.dut
        dut.mailbox__awaddr.value = address
        dut.mailbox__awlen.value = len(data) // beat - 1
        dut.mailbox__awsize.value = beat.bit_length() - 1
        dut.mailbox__awvalid.value = 1
        await self._taken(dut.mailbox__awready)
        dut.mailbox__awvalid.value = 0
        for at in range(0, len(data), beat):
            while not next(self.gaps):
                await RisingEdge(self.clk)
            lane = (address + at) % WIDTH
            value = int.from_bytes(data[at : at + beat], "little")
            dut.mailbox__wdata.value = value << 8 * lane
            dut.mailbox__wstrb.value = ((1 << beat) - 1) << lane
            dut.mailbox__wlast.value = int(at + beat == len(data))
            dut.mailbox__wvalid.value = 1
            await self._taken(dut.mailbox__wready)
            dut.mailbox__wvalid.value = 0
        await self._taken(dut.mailbox__bvalid)
        assert int(dut.mailbox__bresp.value) == 0

    async def _taken(self, ready):
        for _ in range(2000):
            await RisingEdge(self.clk)
            if int(ready.value):
                return
        raise AssertionError("the mailbox does not answer")

    def wants(self, line):
        """Expect a message at the tree unit."""
        self.commands.expect(int.from_bytes(encode(line), "little"))

    async def settle(self, lines=0):
        """Wait until all commands are carried out and `lines` have come."""
        for _ in range(40_000):
            await RisingEdge(self.clk)
            if int(self.dut.idle.value) and int(self.dut.consumed.value) == self.posted:
                if len(self.found) >= lines and int(self.dut.mail_consumed.value) == sum(
                    tag - 1 for tag in self.mail_tags
                ):
                    return
        raise AssertionError(f"engine not idle: {len(self.found)} of {lines} lines")

    def open(self, seq, count):
        """Put tokens into host memory; expect them, return the line."""
        tokens = tuple(self.chance.randrange(1 << 20) for _ in range(count))
        at = TOKENS + 64 * self.chance.randrange(64)
        raw = b"".join(token.to_bytes(4, "little") for token in tokens)
        self.host.data[at : at + len(raw)] = raw
        for token in tokens:
            self.tokens.expect(token)
        return Open(seq, tokens, 1, DraftLimits(), (2,)).line(at, context_hash(tokens))

    def verdict(self, seq, count):
        tokens = tuple(self.chance.randrange(1 << 20) for _ in range(count))
        return Verdict(seq, 3, 10, 0x1234, tokens).lines()


@cocotb.test(timeout_time=40, timeout_unit="ms")
@cocotb.parametrize(name=PROFILES)
async def commands_arrive_in_order(dut, name):
    bench = RingBench(dut, name)
    await bench.begin()
    for _ in range(25):
        seq = bench.chance.randrange(CONFIG.max_seqs)
        draw = bench.chance.random()
        if draw < 0.3:
            line = bench.open(seq, bench.chance.choice([1, 3, 16, 17, 100]))
            bench.wants(line)
            await bench.post(line)
        elif draw < 0.6:
            for line in bench.verdict(seq, bench.chance.choice([0, 1, 8, 9, 40])):
                bench.wants(line)
                await bench.post(line)
        else:
            # The mailbox may overtake the command ring: let that one run dry first.
            await bench.settle()
            choices = [Close(seq, 9).lines(), Retune(seq, DraftLimits()).lines()]
            choices += [bench.verdict(seq, bench.chance.choice([1, 9, 32]))]
            lines = bench.chance.choice(choices)
            assert len(lines) <= MAILBOX_LINES
            for line in lines:
                bench.wants(line)
                await bench.mail(seq, line)
    await bench.settle()
    await bench.finish()
    assert int(dut.bad_lines.value) == 0


@cocotb.test(timeout_time=10, timeout_unit="ms")
async def lines_of_a_verdict_are_kept_together(dut):
    bench = RingBench(dut)
    await bench.begin()
    first, second = bench.verdict(0, 9)
    other, rest = bench.verdict(1, 9)
    bench.wants(first)
    await bench.mail(0, first)
    await bench.cycles(100)
    await bench.mail(1, other)  # waits for the rest of the first
    await bench.post(Close(1, 0).lines()[0])
    await bench.cycles(300)
    for line in (second, other, rest):
        bench.wants(line)
    await bench.mail(0, second)
    await bench.mail(1, rest)
    bench.wants(Close(1, 0).lines()[0])
    await bench.settle()
    await bench.finish()


@cocotb.test(timeout_time=10, timeout_unit="ms")
async def bad_lines_are_dropped_and_reported(dut):
    bench = RingBench(dut, "random")
    await bench.begin()
    good = Close(0, 5).lines()[0]
    await bench.post(good, spoil=4)
    bench.wants(good)
    await bench.post(good)
    await bench.settle(1)
    await bench.mail(1, good, spoil=1)
    bench.wants(good)
    await bench.mail(1, good)
    await bench.settle(2)
    # The right CRC, but the tag of another line: in the ring bad, in a mailbox not there yet.
    bench.mail_tags[0] += MAILBOX_LINES
    await bench.mail(0, good)
    bench.mail_tags[0] -= MAILBOX_LINES + 1
    await bench.cycles(200)
    bench.wants(good)
    await bench.mail(0, good)
    await bench.settle(2)
    await bench.finish()
    assert int(dut.bad_lines.value) == 2
    events = [decode(payload) for payload in bench.found]
    wanted = [Event(code=int(EventCode.BAD_LINE), info0=1) for _ in range(2)]
    assert events == wanted


@cocotb.test(timeout_time=40, timeout_unit="ms")
@cocotb.parametrize(name=PROFILES)
async def blocks_are_copied(dut, name):
    bench = RingBench(dut, name)
    await bench.begin()
    wanted, expected = bytearray(bench.device.data), []

    async def load(number, size, dest, spoil=0, bad=False):
        at = BLOCKS + 64 * bench.chance.randrange(512)
        block = bench.chance.randbytes(size)
        bench.host.data[at : at + size] = block
        crc = crc32c(block)
        line = LoadLine(command=number, address=at, dest=dest, size=size, crc=crc ^ spoil)
        await bench.post(line)
        await bench.settle()
        if not bad:
            wanted[dest : dest + size] = block
        code = EventCode.LOAD_ERROR if spoil else EventCode.LOAD_DONE
        expected.append(Event(code=int(code), info0=number, info1=crc if spoil else 0))

    for number, (size, dest) in enumerate(
        ((64, 0), (128, 4096 - 64), (4096, 64), (8192 + 64, 12288 - 128), (64, 65536 - 64))
    ):
        await load(number, size, dest)
    dut.quiet.value = 0  # a pass runs
    cocotb.start_soon(_later(bench, 400))
    await load(7, 64, 256)
    await load(8, 192, 512, spoil=1)
    for bad in ({"size": 96}, {"size": 0}, {"dest": 32}, {"size": (2 << 20) + 64}):
        fields = {"command": 9, "address": BLOCKS, "dest": 0, "size": 64, "crc": 0} | bad
        await bench.post(LoadLine(**fields))
        expected.append(Event(code=int(EventCode.BAD_MESSAGE), info0=0x81, info1=9))
    await bench.settle(len(expected))
    await bench.finish()
    assert [decode(payload) for payload in bench.found] == expected
    assert bench.device.data == wanted


async def _later(bench, cycles):
    before = bench.device.writes
    await bench.cycles(cycles)
    assert bench.device.writes == before, "a block was written while a pass runs"
    bench.dut.quiet.value = 1


@cocotb.test(timeout_time=10, timeout_unit="ms")
async def read_errors_spoil_a_block_and_tokens(dut):
    bench = RingBench(dut)
    await bench.begin()
    bench.host.bad_reads.add(BLOCKS // 4096)
    line = LoadLine(command=1, address=BLOCKS, dest=0, size=64, crc=crc32c(bytes(64)))
    await bench.post(line)
    await bench.settle(1)
    assert decode(bench.found[0]).code == EventCode.LOAD_ERROR
    bench.host.bad_reads.add(TOKENS // 4096)
    line = Open(0, (1, 2, 3)).line(TOKENS, 0)
    bench.wants(line)
    for _ in range(3):
        bench.tokens.expect(0xFFFFFFFF)
    await bench.post(line)
    await bench.settle(1)
    await bench.finish()


@cocotb.test(timeout_time=40, timeout_unit="ms")
@cocotb.parametrize(name=PROFILES)
async def messages_fill_the_ring_in_order(dut, name):
    bench = RingBench(dut, name)
    await bench.begin()
    sent = [bench.chance.getrandbits(LINE_BITS) for _ in range(150)]
    bench.messages.extend(sent)
    bench.extra.put(7)
    await bench.settle(len(sent) + 1)
    await bench.finish()
    found = [int.from_bytes(payload, "little") for payload in bench.found]
    found.remove(7)
    assert found == sent


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def a_full_ring_takes_room_away_and_overwrites_nothing(dut):
    bench = RingBench(dut, read_ring=False)
    await bench.begin()
    need = pass_lines(CONFIG)
    assert int(dut.room.value)
    bench.messages.extend(range(1, LINES - need))
    await bench.cycles(3000)
    assert int(dut.room.value), "room for exactly one more pass"
    bench.messages.extend(range(LINES - need, LINES + 20))
    await bench.cycles(5000)
    assert not int(dut.room.value)
    assert int(dut.stall.value)
    assert int(dut.produced.value) == LINES
    bench.read_ring = True
    await bench.settle(LINES + 19)
    await bench.finish()
    assert [int.from_bytes(p, "little") for p in bench.found] == list(range(1, LINES + 20))
    assert int(dut.room.value)


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def works_again_after_a_reset_in_the_middle(dut):
    bench = RingBench(dut, "random")
    for turn in range(3):
        await bench.begin()
        line = bench.open(0, 50)
        bench.wants(line)
        await bench.post(line)
        bench.messages.extend(range(1, 30))
        if turn < 2:
            await bench.cycles(bench.chance.randrange(20, 400))
            await bench.reset()
            bench.forget()
            continue
        await bench.settle(29)
        await bench.finish()
        assert [int.from_bytes(p, "little") for p in bench.found] == list(range(1, 30))
