"""Who works when: the device's passes against the verifier's, in virtual time.

A verify pass of T seconds grants the device ``T · clock`` cycles. It runs as many whole passes as
fit; the remainder is *credit* that the next pass starts with. `overlap` grants while the target
works, `lockstep` lets the device work only while the target waits.

When the target is free the host may verify what it has, or first wait for one more pass. It waits
if that raises the expected tokens per second, see `waiting_pays`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dfvg_host.timing import VerifierProfile, VirtualClock
from dfvg_hw.messages import DraftLimits, HitClass

from .budget import Budget
from .drafter import Drafter
from .walk import Tree

__all__ = ["Pacer", "lockstep_passes", "waiting_pays"]

# Before anything is known: half of the first draft tokens are right. Also the assumption behind
# the default number of lockstep passes.
PRIOR_ACCEPTANCE = 0.5
_MOST_LOCKSTEP_PASSES = 16
_MOST_PASSES = 1024
# A device whose passes never end the work would keep virtual time standing still.
_STRAY_PASSES = 64


def lockstep_passes(pass_seconds: float, verify_seconds: float) -> int:
    """Return the passes per round with the most expected tokens per second for a single chain.

    K passes give a chain of K tokens, of which E = (1 - a^(K+1)) / (1 - a) are committed with the
    target's own; the round takes K passes and one verify pass.
    """
    a = PRIOR_ACCEPTANCE

    def rate(passes: int) -> float:
        return (1 - a ** (passes + 1)) / (passes * pass_seconds + verify_seconds)

    return max(range(1, _MOST_LOCKSTEP_PASSES + 1), key=rate)


def waiting_pays(now: float, now_seconds: float, later: float, later_seconds: float) -> bool:
    """Whether ``later`` expected tokens after ``later_seconds`` beat those of verifying now."""
    return later / later_seconds > now / now_seconds


@dataclass
class _Record:
    """How often the first level of a tree held the target's token."""

    rounds: int = 0
    hits: int = 0

    @property
    def share(self) -> float:
        return (self.hits + PRIOR_ACCEPTANCE) / (self.rounds + 1)


class Pacer:
    """Drives one drafter by the clock and picks the tree of each verify pass.

    Parameters
    ----------
    clock: virtual time, in cycles of the device.
    profile: the verifier's latencies.
    budget: nodes per verify pass.
    overlap: schedule.
    cap: most passes with candidates per round; None takes what the profile leaves time for.
    link_cycles: one-way latency of the link.
    """

    def __init__(
        self,
        clock: VirtualClock,
        profile: VerifierProfile,
        budget: Budget,
        overlap: bool,
        cap: int | None,
        link_cycles: int,
    ) -> None:
        self._drafter: Drafter | None = None
        self._clock = clock
        self._profile = profile
        self._budget = budget
        self._overlap = overlap
        self._cap = cap
        self._link = link_cycles
        self._credit = 0
        self._round_passes = 0
        self._stray = _STRAY_PASSES
        self._remaining = 0
        self._first_level = _Record()

    def attach(self, drafter: Drafter) -> None:
        """Draft with this device; without one, decoding is plain."""
        self._drafter = drafter

    @property
    def drafting(self) -> bool:
        """Whether the device is in use."""
        return self._drafter is not None and self._drafter.alive

    def limits(self, remaining: int) -> DraftLimits:
        """Draft limits if ``remaining`` tokens may still be written.

        A node at depth d is of use only if d - 1 tokens before it and one behind it fit, so the
        deepest node expanded lies at depth ``remaining - 2``.
        """
        return DraftLimits(max_depth=max(0, min(remaining - 2, 0xFFFF)))

    def begin_round(self, remaining: int) -> None:
        """Start counting passes anew; ``remaining`` tokens may still be written."""
        self._round_passes = 0
        self._stray = _STRAY_PASSES
        self._remaining = remaining

    def target_works(self, seconds: float, last: bool = False) -> None:
        """Let the target work for a while.

        What the device would do during the ``last`` pass of the output is not simulated: nobody
        reads it.
        """
        cycles = self._clock.cycles(seconds)
        self._clock.advance(cycles)
        if self._drafter is None or not self._drafter.alive or last:
            return
        if self._overlap:
            self._grant(cycles)
        else:
            self._drafter.counters.idle += cycles

    def tree(self) -> Tree:
        """Return the tree to verify now; in virtual time, after the waiting that pays."""
        if self._drafter is None or self._remaining <= 1:
            return Tree()
        if not self._overlap:
            while self._wait_for_pass():
                pass
            return self._best()
        while True:
            tree = self._best()
            if not self._should_wait(tree) or not self._wait_for_pass():
                return tree

    def verdict(self, tokens: Sequence[int], accepted: int, tree: Tree, remaining: int) -> None:
        """Tell the device what was committed."""
        if len(tree):
            self._first_level.rounds += 1
            self._first_level.hits += accepted > 0
        if self._drafter is None or not self._drafter.alive:
            return
        growing = self._drafter.pending == 0
        hit = self._drafter.verdict(tokens, self.limits(remaining))
        if hit is None:
            return
        if not self._overlap or (hit == HitClass.MISS and growing):
            # The verdict takes its time over the link; a pass without surviving rows is aborted
            # and what was done of it is lost.
            self._credit = -self._link

    # Passes ---------------------------------------------------------------------------------

    def _next_cost(self) -> int | None:
        """Cost of the next pass, None if there is none or the round has had its passes."""
        if self._drafter is None or not self._drafter.alive or self._remaining <= 1:
            return None
        cost = self._drafter.next_cost()
        if cost is None:
            return None
        finds_candidates = self._drafter.pending <= self._drafter.rows
        if finds_candidates and self._round_passes >= self._most_passes(cost):
            return None
        return cost

    def _most_passes(self, cost: int) -> int:
        if self._cap is None:
            verify = self._profile.verify(self._budget.most)
            if self._overlap:
                self._cap = min(max(1, self._clock.cycles(verify) // cost), _MOST_PASSES)
            else:
                self._cap = lockstep_passes(cost / self._clock.hertz, verify)
        return self._cap

    def _run(self, cost: int) -> None:
        assert self._drafter is not None
        self._credit -= cost
        done = self._drafter.run_pass(cost)
        if done is None:
            return
        if done.children:
            self._round_passes += 1
        elif not done.prefill_rows and not done.catchup_rows:
            self._stray -= 1
            if not self._stray:
                self._drafter.give_up("device runs passes that find nothing")

    def _grant(self, cycles: int) -> None:
        """Run every pass whose records reach the host within the time granted."""
        assert self._drafter is not None
        self._credit += cycles
        while True:
            cost = self._next_cost()
            if cost is None:
                self._drafter.counters.idle += max(0, self._credit)
                self._credit = min(0, self._credit)
                return
            if cost + self._link > self._credit:
                return
            self._run(cost)

    def _wait_cycles(self, cost: int) -> int:
        return max(0, cost + self._link - self._credit)

    def _wait_for_pass(self) -> bool:
        """Let time pass until the next pass's records are here; False if there's no next pass."""
        cost = self._next_cost()
        if cost is None:
            return False
        wait = self._wait_cycles(cost)
        self._clock.advance(wait)
        self._credit += wait
        self._run(cost)
        return self.drafting

    # Choice ---------------------------------------------------------------------------------

    def _best(self) -> Tree:
        assert self._drafter is not None
        tree = self._drafter.tree(self._budget.most, self._remaining - 1)
        return tree.head(self._budget.choose(tree.probabilities, self._profile))

    def _should_wait(self, tree: Tree) -> bool:
        """Whether one more pass (or, without candidates, those up to the next) pays."""
        assert self._drafter is not None
        cost = self._next_cost()
        if cost is None or self._budget.most == 0:
            return False
        share = self._first_level.share
        if self._drafter.pending:
            passes = math.ceil(self._drafter.pending / self._drafter.rows)
            grown = [share]
        else:
            passes = 1
            expanded = self._drafter.frontier(self._drafter.rows, self._remaining - 2)
            # Each row expanded is taken to find one good child, as often as the first level does.
            grown = sorted([*tree.probabilities, *(p * share for p in expanded)], reverse=True)[
                : self._budget.most
            ]
        wait = self._wait_cycles(cost) + (passes - 1) * cost
        return waiting_pays(
            1 + sum(tree.probabilities),
            self._profile.verify(len(tree)),
            1 + sum(grown),
            self._profile.verify(len(grown)) + wait / self._clock.hertz,
        )
