"""Host memory and bus managers for Amaranth's simulator, one step a cycle."""

from collections import deque

LINE = 4096


class HostMemory:
    """Answers an `axi4_read` and/or `axi4_write` port and checks every burst.

    Parameters
    ----------
    axi : interface
    size : int
        Bytes, from address `base`.
    rng : random.Random
    pause : float
        Chance that a channel does nothing in a cycle.
    latency : int
    """

    def __init__(self, axi, size, rng, base=0, pause=0.0, latency=3):
        self.axi, self.rng, self.base, self.pause, self.latency = axi, rng, base, pause, latency
        self.data = bytearray(size)
        self.word = len(axi.rdata if hasattr(axi, "rdata") else axi.wdata) // 8
        self.reads, self.writes, self.answers = deque(), deque(), deque()
        self.bursts = []
        self.bad_read = self.bad_write = None  # word number that is answered with an error
        self.words_read = self.words_written = 0
        self.dead = False
        self.now = 0
        self.r_valid = self.b_valid = False

    def _go(self):
        return not self.dead and self.rng.random() >= self.pause

    def _check(self, address, beats, size, burst):
        assert 1 << size == self.word
        assert burst == 1
        assert address % self.word == 0
        end = address + beats * self.word - 1
        assert address // LINE == end // LINE, f"burst at {address:#x} crosses a 4 KiB line"
        assert self.base <= address, hex(address)
        assert end < self.base + len(self.data), hex(address)
        self.bursts.append((address, beats))

    def step(self, ctx):
        """Drive and sample one cycle, before its clock edge."""
        self.now += 1
        if hasattr(self.axi, "arvalid"):
            self._read(ctx)
        if hasattr(self.axi, "awvalid"):
            self._write(ctx)

    def _read(self, ctx):
        axi, get = self.axi, ctx.get
        if not self.r_valid and self.reads and self.reads[0][2] <= self.now and self._go():
            address, left, _ = self.reads[0]
            at = address - self.base
            ctx.set(axi.rdata, int.from_bytes(self.data[at : at + self.word], "little"))
            ctx.set(axi.rlast, left == 1)
            ctx.set(axi.rresp, 2 if self.words_read == self.bad_read else 0)
            self.r_valid = True
        ctx.set(axi.rvalid, self.r_valid)
        ready = self._go()
        ctx.set(axi.arready, ready)
        if get(axi.arvalid) and ready:
            self._check(get(axi.araddr), get(axi.arlen) + 1, get(axi.arsize), get(axi.arburst))
            self.reads.append((get(axi.araddr), get(axi.arlen) + 1, self.now + self.latency))
        if self.r_valid and get(axi.rready):
            self.r_valid = False
            self.words_read += 1
            address, left, due = self.reads.popleft()
            if left > 1:
                self.reads.appendleft((address + self.word, left - 1, due))

    def _write(self, ctx):
        axi, get = self.axi, ctx.get
        ready = self._go()
        ctx.set(axi.awready, ready)
        if get(axi.awvalid) and ready:
            self._check(get(axi.awaddr), get(axi.awlen) + 1, get(axi.awsize), get(axi.awburst))
            self.writes.append([get(axi.awaddr), get(axi.awlen) + 1, 0])
        ready = bool(self.writes) and self._go()
        ctx.set(axi.wready, ready)
        if ready and get(axi.wvalid):
            self._store(get(axi.wdata), get(axi.wstrb), get(axi.wlast))
        if not self.b_valid and self.answers and self.answers[0][0] <= self.now and self._go():
            ctx.set(axi.bresp, self.answers.popleft()[1])
            self.b_valid = True
        ctx.set(axi.bvalid, self.b_valid)
        if self.b_valid and get(axi.bready):
            self.b_valid = False

    def _store(self, data, strobes, last):
        burst = self.writes[0]
        assert strobes == (1 << self.word) - 1
        assert last == (burst[1] == 1)
        at = burst[0] - self.base
        self.data[at : at + self.word] = data.to_bytes(self.word, "little")
        if self.words_written == self.bad_write:
            burst[2] = 2
        self.words_written += 1
        burst[0] += self.word
        burst[1] -= 1
        if burst[1] == 0:
            self.answers.append((self.now + self.latency, burst[2]))
            self.writes.popleft()


async def lite_write(ctx, bus, address, value, strobes=0xF, split=0):
    """Write over AXI4-Lite; address or data come `split` cycles apart (either sign)."""
    ctx.set(bus.awaddr, address)
    ctx.set(bus.wdata, value)
    ctx.set(bus.wstrb, strobes)
    ctx.set(bus.bready, 1)
    for t in range(50):
        ctx.set(bus.awvalid, t >= split)
        ctx.set(bus.wvalid, t >= -split)
        if ctx.get(bus.awready) and ctx.get(bus.awvalid):
            assert ctx.get(bus.wready)
            await ctx.tick()
            break
        await ctx.tick()
    ctx.set(bus.awvalid, 0)
    ctx.set(bus.wvalid, 0)
    while not ctx.get(bus.bvalid):
        await ctx.tick()
    response = ctx.get(bus.bresp)
    await ctx.tick()
    ctx.set(bus.bready, 0)
    return response


async def lite_read(ctx, bus, address, wait=0):
    """Read over AXI4-Lite; the answer is taken after `wait` cycles and must not change."""
    ctx.set(bus.araddr, address)
    ctx.set(bus.arvalid, 1)
    ctx.set(bus.rready, 0)
    while not ctx.get(bus.arready):
        await ctx.tick()
    await ctx.tick()
    ctx.set(bus.arvalid, 0)
    while not ctx.get(bus.rvalid):
        await ctx.tick()
    value = ctx.get(bus.rdata)
    for _ in range(wait):
        await ctx.tick()
        assert ctx.get(bus.rvalid)
        assert ctx.get(bus.rdata) == value
    ctx.set(bus.rready, 1)
    await ctx.tick()
    ctx.set(bus.rready, 0)
    return value


async def burst_write(ctx, axi, address, data, beat, rng, pause=0.0):
    """Write a burst of narrow or full beats; returns the response."""
    size = len(axi.wdata) // 8
    beats = [data[i : i + beat] for i in range(0, len(data), beat)]
    ctx.set(axi.awaddr, address)
    ctx.set(axi.awlen, len(beats) - 1)
    ctx.set(axi.awsize, beat.bit_length() - 1)
    ctx.set(axi.awburst, 1)
    ctx.set(axi.awvalid, 1)
    ctx.set(axi.bready, 1)
    while not ctx.get(axi.awready):
        await ctx.tick()
    await ctx.tick()
    ctx.set(axi.awvalid, 0)
    for index, part in enumerate(beats):
        lane = (address + index * beat) % size
        while rng.random() < pause:
            ctx.set(axi.wvalid, 0)
            await ctx.tick()
        ctx.set(axi.wdata, int.from_bytes(part, "little") << 8 * lane)
        ctx.set(axi.wstrb, ((1 << len(part)) - 1) << lane)
        ctx.set(axi.wlast, index + 1 == len(beats))
        ctx.set(axi.wvalid, 1)
        while not ctx.get(axi.wready):
            await ctx.tick()
        await ctx.tick()
    ctx.set(axi.wvalid, 0)
    while not ctx.get(axi.bvalid):
        await ctx.tick()
    response = ctx.get(axi.bresp)
    await ctx.tick()
    ctx.set(axi.bready, 0)
    return response
