"""Virtual time to the cycle, on a scripted drafter."""

import pytest

from dfvg_host.decode.budget import FixedBudget
from dfvg_host.decode.pace import Pacer, lockstep_passes, waiting_pays
from dfvg_host.decode.stats import DeviceCounters
from dfvg_host.decode.walk import Tree
from dfvg_host.timing import VerifierProfile, VirtualClock
from dfvg_hw.messages import HitClass, PassKind
from tests.host.decode.devices import record

MEGAHERTZ = 1_000_000  # one cycle is a microsecond


def profile(*latencies):
    """A profile that takes so many microseconds for 0, 1, 2, ... nodes."""
    return VerifierProfile(
        name="p",
        title="t",
        measured=False,
        origin="o",
        nodes=tuple(range(len(latencies))),
        latencies=tuple(value * 1e-6 for value in latencies),
        prefill_fixed=0.0,
        prefill_token=1e-6,
        draft=1e-6,
    )


class Scripted:
    """A drafter whose passes cost what the script says; each finds one candidate of probability p.

    It ends when the script does.
    """

    def __init__(self, *costs, pending=0, rows=4, p=0.5):
        self.alive = True
        self.counters = DeviceCounters()
        self.costs = list(costs)
        self.pending = pending
        self.rows = rows
        self.p = p
        self.ran = []
        self.limits = []
        self.found = 0
        self.hit = HitClass.EXPANDED

    def next_cost(self):
        return self.costs[0] if self.costs else None

    def run_pass(self, cost):
        assert cost == self.costs.pop(0)
        self.ran.append(cost)
        caught_up = min(self.rows, self.pending)
        self.pending -= caught_up
        children = int(self.pending == 0)
        self.found += children
        kind = PassKind.CATCHUP if caught_up else PassKind.GROWTH
        return record(int(kind), children, catchup_rows=caught_up, growth_rows=int(not caught_up))

    def tree(self, most, max_depth):
        count = min(most, self.found)
        return Tree((5,) * count, tuple(range(-1, count - 1)), (self.p,) * count)

    def frontier(self, count, max_depth):
        return [self.p] * min(count, 1)

    def verdict(self, tokens, limits):
        self.limits.append(limits)
        self.found = 0
        return self.hit

    def give_up(self, reason):
        self.alive = False


def pacer(drafter, latencies=(100,), budget=4, overlap=True, cap=1000, link=0, remaining=100):
    made = Pacer(
        clock=VirtualClock(MEGAHERTZ),
        profile=profile(*latencies),
        budget=FixedBudget(budget),
        overlap=overlap,
        cap=cap,
        link_cycles=link,
    )
    made.attach(drafter)
    made.begin_round(remaining)
    return made


def now(made):
    return made._clock.now


def test_whole_passes_with_the_remainder_carried():
    drafter = Scripted(*[70] * 20)
    made = pacer(drafter)
    counts = []
    for _ in range(7):
        made.target_works(100e-6)
        counts.append(len(drafter.ran))
    assert counts == [100 * n // 70 for n in range(1, 8)]
    assert now(made) == 700
    assert drafter.counters.idle == 0


def test_records_count_once_they_have_crossed_the_link():
    drafter = Scripted(*[50] * 9)
    made = pacer(drafter, link=10)
    made.target_works(109e-6)
    assert len(drafter.ran) == 1
    made.target_works(1e-6)
    assert len(drafter.ran) == 2


def test_an_idle_device_saves_up_nothing():
    drafter = Scripted(30)
    made = pacer(drafter)
    made.target_works(100e-6)
    assert drafter.counters.idle == 70
    drafter.costs = [80, 80]
    made.target_works(100e-6)
    assert drafter.ran == [30, 80]
    assert drafter.counters.idle == 70


def test_cap_counts_passes_that_find_candidates():
    drafter = Scripted(*[10] * 30, pending=9)
    made = pacer(drafter, cap=3)
    made.target_works(100e-6)
    # 9 pending tokens take three passes of 4 rows, the last of which finds the first candidates.
    assert len(drafter.ran) == 2 + 3
    assert drafter.counters.idle == 50
    made.begin_round(100)
    made.target_works(100e-6)
    assert len(drafter.ran) == 5 + 3
    made.begin_round(100)
    assert pacer(Scripted(10, 10), cap=0).tree() == Tree()


def test_default_cap_is_what_the_profile_leaves_time_for():
    drafter = Scripted(*[30] * 30)
    made = pacer(drafter, latencies=(100, 110, 120, 130, 140), cap=None)
    made.target_works(1000e-6)
    assert len(drafter.ran) == 140 // 30
    slow = Scripted(*[900] * 5)
    made = pacer(slow, cap=None)
    made.target_works(10_000e-6)
    assert len(slow.ran) == 1


def test_lockstep_takes_turns():
    drafter = Scripted(*[40] * 20)
    made = pacer(drafter, overlap=False, cap=3, link=5)
    made.target_works(100e-6)
    assert (drafter.ran, drafter.counters.idle) == ([], 100)
    made.verdict([7], 0, Tree(), 50)
    made.begin_round(50)
    assert len(made.tree()) == 3
    # Three passes, the verdict's way there and the last record's way back.
    assert now(made) == 100 + 3 * 40 + 2 * 5
    made.target_works(100e-6)
    assert len(drafter.ran) == 3


def test_a_miss_loses_the_pass_that_was_running():
    for hit, left in ((HitClass.EXPANDED, 60), (HitClass.LEAF, 60), (HitClass.MISS, -5)):
        drafter = Scripted(*[100] * 9)
        drafter.hit = hit
        made = pacer(drafter, link=5)
        made.target_works(160e-6)
        made.verdict([7], 0, Tree(), 50)
        assert made._credit == left
    # Committed tokens are always run to the end, so nothing is lost while some were pending.
    drafter = Scripted(*[100] * 9, pending=20)
    drafter.hit = HitClass.MISS
    made = pacer(drafter)
    made.target_works(160e-6)
    made.verdict([7], 0, Tree(), 50)
    assert made._credit == 60


def test_nothing_runs_during_the_last_pass_or_for_the_last_token():
    drafter = Scripted(*[10] * 9)
    made = pacer(drafter)
    made.target_works(100e-6, last=True)
    assert drafter.ran == []
    assert now(made) == 100
    made.begin_round(1)
    assert made.tree() == Tree()
    made.target_works(100e-6)
    assert drafter.ran == []


@pytest.mark.parametrize(("remaining", "depth"), [(1, 0), (2, 0), (3, 1), (10, 8), (10**6, 0xFFFF)])
def test_nothing_is_expanded_too_deep_to_be_of_use(remaining, depth):
    drafter = Scripted(10)
    made = pacer(drafter)
    made.verdict([7], 0, Tree(), remaining)
    assert drafter.limits[0].max_depth == depth


def test_waits_if_a_pass_raises_the_rate():
    # Nothing to verify; 1 token in 100 µs now, or 1.5 in 110 + 20 µs.
    drafter = Scripted(20, 1000, pending=1)
    made = pacer(drafter, latencies=(100, 110))
    assert len(made.tree()) == 1
    assert now(made) == 20
    # The pass takes as long as the verify pass: verifying the root alone is better.
    drafter = Scripted(100, pending=1)
    made = pacer(drafter, latencies=(100, 110))
    assert made.tree() == Tree()
    assert now(made) == 0
    # The same pass, mostly done already.
    drafter = Scripted(100, pending=1)
    made = pacer(drafter, latencies=(100, 110))
    made.target_works(90e-6)
    assert len(made.tree()) == 1
    assert now(made) == 100


def test_waiting_for_a_long_catch_up_does_not_pay():
    drafter = Scripted(*[20] * 20, pending=4)
    assert len(pacer(drafter, latencies=(100, 110)).tree()) > 0
    drafter = Scripted(*[20] * 20, pending=40)
    assert pacer(drafter, latencies=(100, 110)).tree() == Tree()


def test_waits_less_once_waiting_has_disappointed():
    drafter = Scripted(*[30] * 40, pending=1)
    made = pacer(drafter, latencies=(100, 100), budget=1)
    chosen = []
    for _ in range(6):
        made.begin_round(100)
        tree = made.tree()
        chosen.append(len(tree))
        made.verdict([7], 0, tree, 100)  # the child was never right
        drafter.pending = 1
    assert chosen[0] == 1
    assert chosen[-1] == 0


def test_budget_cuts_the_tree_to_its_best():
    drafter = Scripted(*[1] * 9)
    made = pacer(drafter, budget=2)
    made.target_works(9e-6)
    assert len(made.tree()) == 2
    assert FixedBudget(5).choose([0.5, 0.4], profile(1)) == 2
    assert FixedBudget(0).choose([], profile(1)) == 0


def test_a_device_whose_passes_find_nothing_is_given_up():
    drafter = Scripted(*[1] * 500)

    def fruitless(cost):
        return record(kind=2, growth_rows=1)

    drafter.run_pass = fruitless
    made = pacer(drafter)
    made.target_works(400e-6)
    assert not drafter.alive
    assert not made.drafting


def test_rules_in_numbers():
    assert waiting_pays(1, 100, 1.5, 130)
    assert not waiting_pays(1, 100, 1.5, 150)
    assert lockstep_passes(1e-3, 1e-3) == 1
    assert lockstep_passes(1e-4, 20e-3) > lockstep_passes(1e-3, 20e-3) > 1
    assert lockstep_passes(1e-9, 1.0) == 16
