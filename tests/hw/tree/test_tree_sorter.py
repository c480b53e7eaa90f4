"""The candidate sorter against repeated choice of the best."""

import random

import pytest
from amaranth.sim import Simulator

from dfvg_hw.config import PRESETS
from dfvg_hw.tree.sorter import CandidateSorter

pytestmark = pytest.mark.rtl


def best_again_and_again(offers, limit, allowances):
    """Take the best of all offers whose sequence may have more, until there are enough."""
    left, chosen = dict(allowances), []
    for offer in sorted(offers, key=lambda o: (-o["score"], o["parent"], o["rank"])):
        if len(chosen) < limit and left[offer["seq"]]:
            left[offer["seq"]] -= 1
            chosen.append(offer)
    return chosen


def random_offers(rng, seqs, parents, ranks):
    """Offers in the order of a scan: parents ascending, ranks ascending, scores falling."""
    offers = []
    for parent in range(parents):
        seq, score = rng.randrange(seqs), -rng.randrange(6)
        for rank in range(rng.randint(1, ranks)):
            place = {"parent": parent, "rank": rank, "seq": seq}
            other = {"token": rng.randrange(100), "position": rng.randrange(100)}
            offers.append({"score": score, **place, **other})
            score -= rng.randrange(3)
    return offers


@pytest.mark.parametrize("rows", [1, 3, 8])
def test_equals_repeated_choice(rows, seed):
    config = PRESETS["sim"].replace(rows=rows, max_seqs=3)
    dut = CandidateSorter(config)
    rng = random.Random(seed + rows)

    async def bench(ctx):
        for _ in range(150):
            offers = random_offers(rng, 3, rng.randint(0, 12), 4)
            limit = rng.randint(0, rows)
            allowances = {seq: rng.randint(0, rows) for seq in range(3)}
            ctx.set(dut.clear, 1)
            await ctx.tick()
            ctx.set(dut.clear, 0)
            ctx.set(dut.limit, limit)
            refused = set()
            for offer in offers:
                ctx.set(dut.offer, offer)
                ctx.set(dut.allowance, allowances[offer["seq"]])
                accepted = bool(ctx.get(dut.accepted))
                # After one refusal a scan looks at no later rank, which would be refused as well.
                assert not (accepted and offer["parent"] in refused)
                if not accepted:
                    refused.add(offer["parent"])
                ctx.set(dut.en, 1)
                await ctx.tick()
                ctx.set(dut.en, 0)
            expected = best_again_and_again(offers, limit, allowances)
            assert ctx.get(dut.count) == len(expected)
            for index, offer in enumerate(expected):
                entry = ctx.get(dut.entries[index])
                assert {name: entry[name] for name in offer} == offer

    simulator = Simulator(dut)
    simulator.add_clock(1e-8)
    simulator.add_testbench(bench)
    simulator.run()
