import pytest
import torch

from dfvg_host.decode.check import Reference
from dfvg_host.decode.walk import Tree, walk
from dfvg_host.verify import Sampler, SamplingParams, TreeVerifier
from tests.host import tiny_models

GREEDY = Sampler(SamplingParams())


def rows(*winners, vocab=10):
    logits = torch.zeros(len(winners), vocab)
    for row, winner in enumerate(winners):
        logits[row, winner] = 1.0
    return logits


def walked(logits, tree, stop_at=None):
    seen = []

    def commit(draw, row):
        seen.append(draw.token)
        return len(seen) == stop_at

    return walk(logits, tree, GREEDY, 0, commit), seen


TREE = Tree((3, 4, 5, 6), (-1, -1, 1, 2), (0.5, 0.4, 0.3, 0.2))


def test_walk_follows_the_draws():
    assert walked(rows(4, 0, 5, 6, 9), TREE) == ([1, 2, 3], [4, 5, 6, 9])
    assert walked(rows(4, 0, 7, 6, 9), TREE) == ([1], [4, 7])
    assert walked(rows(3, 5, 0, 0, 0), TREE) == ([0], [3, 5])
    assert walked(rows(9, 0, 0, 0, 0), TREE) == ([], [9])
    assert walked(rows(2), Tree()) == ([], [2])


def test_walk_ends_where_the_output_ends():
    assert walked(rows(4, 0, 5, 6, 9), TREE, stop_at=2) == ([1, 2], [4, 5])
    assert walked(rows(4, 0, 7, 6, 9), TREE, stop_at=2) == ([1], [4, 7])
    assert walked(rows(9, 0, 0, 0, 0), TREE, stop_at=1) == ([], [9])


def test_tree_shape():
    assert (len(TREE), TREE.depth, Tree().depth) == (4, 3, 0)
    assert TREE.head(3) == Tree((3, 4, 5), (-1, -1, 1), (0.5, 0.4, 0.3))
    assert TREE.head(9) is TREE


def reference(spoil_at=None, temperature=0.0):
    """Run a reference beside plain decoding; ``spoil_at`` changes that row before the run draws."""
    model = tiny_models.model("llama", spread=0.1)
    sampler = Sampler(SamplingParams(temperature=temperature, seed=3))
    verifier = TreeVerifier(model)
    prompt = tiny_models.prompt(8)
    row = verifier.prefill(prompt)
    follower = Reference(verifier.fork(), row, sampler)
    for index in range(12):
        if index == spoil_at:
            row = row.clone()
            row[int(row.argmin())] += 50
        draw = sampler.draw(row, index)
        follower.observe(draw, row)
        row = verifier.score(draw.token)[0]
        verifier.commit()
    return follower


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_reference_agrees_with_plain_decoding(temperature):
    follower = reference(temperature=temperature)
    assert follower.identical
    assert follower.compared == 12


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_reference_finds_the_first_difference(temperature):
    follower = reference(spoil_at=5, temperature=temperature)
    assert not follower.identical
    assert follower.divergence.position == 5
    assert follower.divergence.max_logit_diff == pytest.approx(50, rel=1e-3)
    assert follower.divergence.margin > 0
    assert not follower.divergence.tie
    assert follower.divergence.to_dict().keys() == {"position", "margin", "max_logit_diff"}


def test_near_equal_logits_are_a_tie():
    model = tiny_models.model("llama")
    verifier = TreeVerifier(model)
    row = verifier.prefill(tiny_models.prompt(4))
    best, second = torch.topk(row, 2).indices.tolist()
    mine = row.clone()
    mine[second] = mine[best] - 1e-4
    theirs = mine.clone()
    theirs[second] += 2e-4
    follower = Reference(verifier.fork(), mine, GREEDY)
    follower.observe(GREEDY.draw(theirs, 0), theirs)
    assert follower.divergence.tie
    assert follower.divergence.margin == pytest.approx(1e-4, rel=0.1)
