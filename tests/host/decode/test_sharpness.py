"""The exponent that fits a draft's probabilities to what the target really writes."""

import math
import random

import pytest

from dfvg_host.decode.mirror import TreeMirror
from dfvg_host.decode.sharpness import EXPONENTS, Sharpness, sharpened
from dfvg_hw.messages import Child, Nodes, NodesFlag

ROOT = 0x8000_0003


def record(parent, first, *children):
    return Nodes(
        seq=0,
        count=len(children),
        flags=0,
        parent=parent,
        first_id=first,
        epoch=0,
        pass_number=1,
        children=tuple(Child(token, score, score) for token, score in children),
    )


@pytest.mark.parametrize("exponent", EXPONENTS)
@pytest.mark.parametrize(
    "scores", [[-256, -512, -768], [-1], [0], [0, -40_000], [-32768] * 8, [-200, -500]]
)
def test_probabilities_and_remainder_sum_to_one(exponent, scores):
    edges, rest = sharpened(scores, exponent)
    assert edges == sorted(edges, reverse=True)
    assert max(edges) <= 0
    # At exponent 1 scores are taken as they are, with the device's rounding.
    slack = 0.01 if exponent == 1 else 1e-9
    assert sum(2**edge for edge in edges) + 2**rest == pytest.approx(1, abs=slack)


def test_exponent_squares_odds():
    edges, _ = sharpened([-256, -512], 2.0)
    assert 2 ** (edges[0] - edges[1]) == pytest.approx(4)
    assert sharpened([-256, -512], 1.0)[0] == [-1, -2]


def siblings(rng):
    """Return scores of eight children whose probabilities fall and sum to less than 1."""
    weights = sorted((rng.random() ** 3 for _ in range(8)), reverse=True)
    total = sum(weights) * (1 + 0.2 * rng.random())
    return [round(256 * math.log2(weight / total + 1e-9)) for weight in weights]


@pytest.mark.parametrize("true", EXPONENTS)
def test_learns_the_exponent_that_tokens_are_drawn_by(true):
    rng = random.Random(1)
    learned = Sharpness()
    for _ in range(1500):
        scores = siblings(rng)
        edges, rest = sharpened(scores, true)
        weights = [2**edge for edge in edges] + [2**rest]
        drawn = rng.choices(range(9), weights)[0]
        learned.observe(scores, drawn if drawn < 8 else None)
    assert learned.exponent == true
    assert learned.observed == 1500


def test_starts_at_one_and_needs_more_than_one_token_to_move():
    learned = Sharpness()
    assert learned.exponent == 1
    learned.observe([-40, -1000], 0)
    assert learned.exponent == 1


def test_ten_tokens_of_a_draft_that_is_always_right_are_enough():
    learned = Sharpness()
    for _ in range(10):
        learned.observe([-256, -512, -768], 0)
    assert learned.exponent == max(EXPONENTS)


def test_certain_children_do_not_make_a_miss_impossible():
    learned = Sharpness()
    learned.observe([0, -30_000], None)
    assert learned.exponent in EXPONENTS
    assert all(math.isfinite(value) for value in learned._likelihood)


def mirror():
    """Two ways on: a likely token and what follows it, or the runner-up."""
    made = TreeMirror(3)
    made.apply(record(ROOT, 1, (5, -128), (6, -512)))
    made.apply(record(1, 3, (8, -256), (9, -512)))
    made.apply(record(3, 5, (10, -256), (11, -512)))
    return made


def test_sharper_trees_are_deeper():
    made = mirror()
    assert [node.id for node in made.best(4)] == [1, 3, 2, 4]
    made.exponent = 4.0
    assert [node.id for node in made.best(4)] == [1, 3, 5, 4]
    nodes = made.best(10)
    chances = [made.probability(node) for node in nodes]
    assert chances == sorted(chances, reverse=True)
    # The device's own scores stay what they are.
    assert [made.path_score(node) for node in nodes[:3]] == [-128, -384, -640]
    made.exponent = 1.0
    assert made.probability(nodes[1]) == 2 ** (-384 / 256)


def test_outcomes_follow_the_tokens_as_far_as_the_tree_goes():
    assert list(mirror().outcomes([5, 9, 1])) == [([-128, -512], 0), ([-256, -512], 1)]
    assert list(mirror().outcomes([7, 8])) == [([-128, -512], None)]
    assert list(mirror().outcomes([6, 8])) == [([-128, -512], 1)]
    assert list(TreeMirror(3).outcomes([5])) == []


def test_children_still_to_come_say_nothing_about_misses():
    made = TreeMirror(3)
    children = tuple(Child(token, -300 * token, -300 * token) for token in range(1, 4))
    half = Nodes(
        seq=0,
        count=3,
        flags=int(NodesFlag.MORE),
        parent=ROOT,
        first_id=1,
        epoch=0,
        pass_number=1,
        children=children,
    )
    made.apply(half)
    assert list(made.outcomes([9])) == []
    assert [node.id for node in made.best(3)] == [1, 2, 3]
