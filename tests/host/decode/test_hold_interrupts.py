"""Ctrl-C at any moment leaves statistics that belong together."""

import random
import signal
import time

import pytest

from dfvg_host.decode import DecodeParams, Interrupted, decode
from dfvg_host.decode.interrupts import Interrupts
from dfvg_host.decode.stats import StepCounters
from dfvg_host.models import LoadedTarget
from tests.host import tiny_models
from tests.host.device.cards import emulator

SEED = 11
TOKENS = 60


@pytest.fixture
def request_once():
    """Return a function that decodes, always the same."""
    target = LoadedTarget(tiny_models.model(num_hidden_layers=2), None, "tiny", "fp32", None)
    params = DecodeParams(TOKENS, tree_budget=8, passes_per_round=2, stop_tokens=())
    device = emulator()
    return lambda: decode(target, device, tiny_models.prompt(3), params)


@pytest.fixture
def interrupted():
    """Return a function that calls another with Ctrl-C after so many seconds, if it still runs.

    What Ctrl-C raises comes out of that call even when it arrives as the other function returns:
    after the inner `finally` no alarm is left.
    """
    old = signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))

    def call(function, seconds):
        try:
            signal.setitimer(signal.ITIMER_REAL, seconds)
            return function()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    yield call
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, old)


def test_any_moment_is_a_good_one(request_once, interrupted):
    rng = random.Random(SEED)
    request_once()
    start = time.perf_counter()
    whole = request_once()
    usual = time.perf_counter() - start
    stopped = 0
    for run in range(40):
        try:
            found = interrupted(request_once, rng.uniform(0.02, 1.0) * usual)
        except Interrupted as stop:
            found, stopped = stop.result, stopped + 1
        except KeyboardInterrupt:
            continue  # before the decode loop, or after it
        where = f"seed {SEED}, run {run}"
        assert found.tokens == whole.tokens[: len(found.tokens)], where
        assert len(found.tokens) >= found.verify_steps, where
        assert sum(found.hits.values()) <= found.verify_steps, where
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert stopped >= 10


class InterruptedList(list):
    """A list whose elements arrive after Ctrl-C."""

    def append(self, item):
        signal.raise_signal(signal.SIGINT)
        super().append(item)


def test_the_worst_moment_is_a_good_one(request_once, monkeypatch):
    """A step is counted by half when Ctrl-C comes."""
    count, calls = StepCounters.count, []

    def interrupted(self, *arguments):
        calls.append(1)
        if len(calls) == 5:
            self.trees = InterruptedList(self.trees)
        count(self, *arguments)

    monkeypatch.setattr(StepCounters, "count", interrupted)
    with pytest.raises(Interrupted) as stop:
        request_once()
    assert stop.value.result.verify_steps == 6  # the prompt's and five more
    assert len(calls) == 5


def test_ctrl_c_waits_for_the_check():
    with Interrupts() as held:
        held.check()
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            held.check()
        held.check()
        assert not held.impatient
        with Interrupts() as inner:
            signal.raise_signal(signal.SIGINT)
            with pytest.raises(KeyboardInterrupt):
                inner.check()
        held.check()
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_the_second_one_does_not_wait():
    with Interrupts() as held:
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert held.impatient


def test_the_programs_own_handler_stays():
    got = []
    old = signal.signal(signal.SIGINT, lambda *_: got.append(1))
    try:
        with Interrupts() as held:
            signal.raise_signal(signal.SIGINT)
            held.check()
    finally:
        signal.signal(signal.SIGINT, old)
    assert got == [1]


def test_none_is_lost_after_the_last_check():
    with Interrupts() as outer:
        with Interrupts() as inner:
            inner.check()
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            outer.check()
    with pytest.raises(KeyboardInterrupt), Interrupts():
        signal.raise_signal(signal.SIGINT)


def held_twice():
    with Interrupts():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)


def test_one_that_ended_the_run_is_not_sent_again():
    with Interrupts() as outer:
        with pytest.raises(KeyboardInterrupt):
            held_twice()
        outer.check()


def test_a_run_in_the_background_goes_on_ignoring_it():
    """A shell starts `command &` with Ctrl-C ignored: it is meant for what runs in front."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with Interrupts() as interrupts:
        for _ in range(2):
            signal.raise_signal(signal.SIGINT)
        interrupts.check()
        assert not interrupts.impatient
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
