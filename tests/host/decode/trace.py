"""Statistics computed anew from what passed the borders of device and verifier, and nothing else.

The definitions are those of docs/stats.md and docs/decoding.md; no code is shared with the run.
"""

from __future__ import annotations

from collections import Counter

from dfvg_host.decode import loop
from dfvg_host.verify import TreeVerifier
from dfvg_hw.messages import Nodes, PassDone, VerdictAck

KINDS = ("prefill", "catchup", "growth", "aborted")
HITS = ("expanded", "leaf", "miss")


class Traced:
    """A device that writes down everything that goes in and comes out."""

    def __init__(self, device, events):
        self._device = device
        self._events = events
        self.info = device.info

    def send(self, command):
        self._events.append((type(command).__name__.lower(), command))
        self._device.send(command)

    def poll(self, timeout=0.0):
        messages = self._device.poll(timeout)
        self._events.append(("messages", messages))
        return messages

    def next_pass_cycles(self):
        cycles = self._device.next_pass_cycles()
        self._events.append(("cost", cycles))
        return cycles

    def run_pass(self):
        done = self._device.run_pass()
        self._events.append(("pass", done))
        return done

    def close(self):
        self._device.close()


def trace_verifier(monkeypatch, events):
    """Have the loop's verifier write down its passes and commits."""

    class Recorded(TreeVerifier):
        def prefill(self, tokens):
            events.append(("prefill", list(tokens)))
            return super().prefill(tokens)

        def score(self, root, tokens=(), parents=()):
            events.append(("score", (root, list(tokens), list(parents))))
            return super().score(root, tokens, parents)

        def commit(self, path=()):
            events.append(("commit", list(path)))
            super().commit(path)

    monkeypatch.setattr(loop, "TreeVerifier", Recorded)


class Timeline:
    """When device and verifier worked, in cycles of the device.

    `now` is the verifier's time. `free` is when the device has ended its last pass and may start
    another; it lies before `now` by what has been done of the next one.
    """

    def __init__(self, events, profile, params, config):
        self.profile = profile
        self.hertz = config.clock_hz
        self.link = round(config.link.latency_ns * 1e-9 * self.hertz)
        self.overlap = params.schedule == "overlap"
        self.rows = config.rows
        self.budget = params.tree_budget
        self.most = params.passes_per_round
        self.now = self.free = self.idle = self.used = self.pending = 0
        self.granted = self.in_use = self.growing = False
        self.cost = self.seconds = None
        self.left = sum(kind == "score" for kind, _ in events)
        for kind, what in events:
            getattr(self, f"on_{kind}")(what)

    def on_open(self, command):
        self.in_use = True
        self.pending = len(command.tokens)

    def on_prefill(self, tokens):
        self.target_pass(self.profile.prefill(len(tokens)))

    def on_score(self, what):
        self.left -= 1
        self.seconds = self.profile.verify(len(what[1]))

    def on_commit(self, _):
        self.target_pass(self.seconds)

    def target_pass(self, seconds):
        cycles = round(seconds * self.hertz)
        self.now += cycles
        if self.left and self.in_use:  # nothing is simulated during the very last one
            self.granted = self.overlap
            self.idle += 0 if self.overlap else cycles

    def on_cost(self, cost):
        self.cost = cost
        if cost is not None and self.most is None and self.pending <= self.rows:
            verify = self.profile.verify(self.budget)
            if self.overlap:
                self.most = max(1, round(verify * self.hertz) // cost)
            else:
                self.most = max(
                    range(1, 17),
                    key=lambda k: (2 - 0.5**k) / (k * cost / self.hertz + verify),
                )

    def on_pass(self, done):
        self.free += self.cost
        if self.granted:
            assert self.free + self.link <= self.now, "used before its records were there"
        else:
            self.now = max(self.now, self.free + self.link)
        self.used += done.children > 0
        self.pending -= done.prefill_rows + done.catchup_rows

    def on_verdict(self, _):
        self.grant_ends()
        self.used = 0
        self.growing = self.pending == 0

    def on_messages(self, messages):
        for message in messages:
            if isinstance(message, VerdictAck):
                self.pending = message.pending
                if not self.overlap or (HITS[message.hit] == "miss" and self.growing):
                    self.free = self.now + self.link

    def on_retune(self, _):
        pass

    def on_close(self, _):
        self.grant_ends()
        self.in_use = False

    def grant_ends(self):
        used_up = self.used >= (self.most or 1 << 30) and self.pending <= self.rows
        if self.granted and (self.cost is None or used_up):
            self.idle += max(0, self.now - self.free)
            self.free = max(self.free, self.now)
        self.granted = False


def depths(parents):
    found = []
    for parent in parents:
        found.append(1 if parent < 0 else found[parent] + 1)
    return found


def recompute(events, profile, params, config, tokens):
    """Return the statistics that a trace implies, by key; `tokens` is the text's length."""
    time = Timeline(events, profile, params, config)
    prompt = next(what for kind, what in events if kind == "prefill")
    scores = [what for kind, what in events if kind == "score"]
    paths = [what for kind, what in events if kind == "commit"]
    passes, costs, cost = [], [], None
    for kind, what in events:
        cost = what if kind == "cost" else cost
        if kind == "pass":
            passes.append(what)
            costs.append(cost)
    messages = [m for kind, what in events if kind == "messages" for m in what]
    drafted = [path for path, (_, nodes, _) in zip(paths, scores, strict=True) if nodes]
    counted = [
        (done, cost) for done, cost in zip(passes, costs, strict=True) if done.kind in (1, 2)
    ]
    cycles = sum(cost for _, cost in counted)
    ideal = sum(done.ideal for done, _ in counted)
    kinds = Counter(KINDS[m.kind] for m in messages if isinstance(m, PassDone))
    hits = Counter(HITS[m.hit] for m in messages if isinstance(m, VerdictAck))
    steps = 1 + len(scores)
    prefill = profile.prefill(len(prompt))
    rival = prefill + sum(
        max(depths(parents), default=0) * profile.draft + profile.verify(len(nodes))
        for _, nodes, parents in scores
    )
    seconds = time.now / config.clock_hz
    return {
        "verify_steps": steps,
        "acceptance_length": tokens / steps,
        "acceptance_per_depth": [
            sum(len(path) >= depth for path in drafted) / len(drafted)
            for depth in range(1, max(map(len, drafted), default=0) + 1)
        ],
        "candidates": sum(m.count for m in messages if isinstance(m, Nodes)),
        "nodes_run": sum(done.growth_rows for done in passes),
        "nodes_verified": sum(len(nodes) for _, nodes, _ in scores),
        "passes": {kind: kinds[kind] for kind in KINDS},
        "hits": {hit: hits[hit] for hit in HITS},
        "device_cycles": cycles,
        "device_cycles_ideal": ideal,
        "eta": ideal / cycles if cycles else None,
        "eta_bytes": sum(done.ideal_bytes for done, _ in counted) / cycles if cycles else None,
        "idle": time.idle,
        "virtual_seconds": seconds,
        "virtual_tokens_per_second": tokens / seconds,
        "baseline": {
            "plain": tokens / (prefill + (tokens - 1) * profile.verify(0)),
            "same_device_draft": tokens / rival,
        },
    }


def committed(events):
    """Return the tokens that roots and paths show: all, but the last if it's no node's."""
    known, tokens = [], []
    for kind, what in events:
        if kind == "score":
            known.append(what[0])
            tokens = what[1]
        if kind == "commit":
            known += [tokens[node] for node in what]
    return known
