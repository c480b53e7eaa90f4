"""Whole commands to lines and back."""

import random

import pytest

from dfvg_hw.errors import ProtocolError
from dfvg_hw.messages import (
    NO_TOKEN,
    Close,
    DraftLimits,
    MessageType,
    Open,
    Resync,
    Retune,
    Verdict,
    VerdictFlag,
    decode,
    encode,
)


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 16, 17, 100])
def test_verdict_round_trip(count):
    rng = random.Random(count)
    tokens = tuple(rng.randrange(1 << 20) for _ in range(count))
    verdict = Verdict(3, 77, 1000, 0xDEADBEEF, tokens, 12)
    lines = [decode(encode(line)) for line in verdict.lines()]
    assert len(lines) == max(1, -(-count // 8))
    assert [bool(line.flags & VerdictFlag.FIRST) for line in lines].count(True) == 1
    assert lines[-1].flags & VerdictFlag.LAST
    assert Verdict.from_lines(lines) == verdict


@pytest.mark.parametrize(
    "break_lines",
    [
        lambda lines: lines[:-1],
        lambda lines: lines[1:],
        lambda lines: [lines[0], *lines],
        lambda lines: [lines[0], lines[2], lines[1]],
        lambda lines: [lines[0], *Verdict(0, 6, 9, 1, tuple(range(20))).lines()[1:]],
        lambda lines: [],
    ],
    ids=["last missing", "first missing", "doubled", "swapped", "other epoch", "none"],
)
def test_broken_verdicts_are_refused(break_lines):
    lines = Verdict(0, 5, 9, 1, tuple(range(20))).lines()
    with pytest.raises(ProtocolError, match="verdict"):
        Verdict.from_lines(break_lines(lines))


def test_open_and_resync_lines():
    limits = DraftLimits(threshold=-1280, max_depth=6, max_slots=30, topk=4)
    for kind, number in ((Open, MessageType.OPEN), (Resync, MessageType.RESYNC)):
        line = decode(encode(kind(1, (5, 6, 7), 9, limits, (2,)).line(0x1000, 0xABCD)))
        assert line.TYPE == number
        assert (line.seq, line.count, line.epoch, line.address) == (1, 3, 9, 0x1000)
        assert (line.threshold, line.max_depth, line.max_slots, line.topk) == (-1280, 6, 30, 4)
        assert line.stops == (2, NO_TOKEN, NO_TOKEN, NO_TOKEN)


def test_short_commands():
    assert decode(encode(Close(1, 4).lines()[0])).epoch == 4
    assert decode(encode(Retune(1, DraftLimits(topk=3), 500).lines()[0])).window == 500


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Open(0, ()), "context has 0 tokens: at least 1"),
        (lambda: Open(0, (1,), stops=(1, 2, 3, 4, 5)), "5 stop tokens: at most 4"),
        (lambda: DraftLimits(threshold=1), "draft limit threshold is 1: "),
        (lambda: DraftLimits(topk=0), "draft limit topk is 0: 1 to 16"),
        (lambda: DraftLimits(max_depth=-1), "draft limit max_depth is -1: 0 to 65535"),
        (lambda: DraftLimits(max_slots=65536), "draft limit max_slots is 65536: 0 to 65535"),
    ],
)
def test_bad_values(make, text):
    with pytest.raises(ProtocolError, match=text):
        make()
