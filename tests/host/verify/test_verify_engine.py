"""Tree attention against the model's plain forward pass, over many random trees."""

import random

import pytest
import torch

from dfvg_host.verify import TreeVerifier
from dfvg_host.verify.engine import tree_rows
from dfvg_hw.errors import ModelError
from tests.host import tiny_models


def random_tree(rng, nodes, vocab):
    """Return distinct-sibling tokens and parents of a random tree, parents first."""
    tokens, parents, used = [], [], {}
    while len(tokens) < nodes:
        parent = rng.randrange(-1, len(tokens))
        token = rng.randrange(vocab)
        if token not in used.setdefault(parent, set()):
            used[parent].add(token)
            tokens.append(token)
            parents.append(parent)
    return tokens, parents


def path_to(node, parents):
    path = []
    while node != -1:
        path.append(node)
        node = parents[node]
    return path[::-1]


@torch.no_grad()
def plain_logits(model, tokens):
    """Logits behind a text by one uncached forward pass of the unmodified model."""
    return model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0, -1]


FAMILIES = ["llama", "qwen2", "opt", "gpt2", "mistral"]


@pytest.mark.parametrize(
    ("family", "attention"),
    [(family, kind) for family in FAMILIES for kind in ("sdpa", "eager")] + [("gemma2", "eager")],
)
def test_every_node_has_the_logits_of_its_own_path(family, attention):
    rng = random.Random(family + attention)
    model = tiny_models.model(family, attention=attention)
    verifier = TreeVerifier(model)
    text = tiny_models.prompt(20, seed=1)
    got = verifier.prefill(text)
    assert (got - plain_logits(model, text)).abs().max() < 1e-4
    text.append(int(got.argmax()))
    worst, compared = 0.0, 0
    for _ in range(12):  # 20 + 12·(1 to 6) tokens: far beyond the sliding window of 24
        tokens, parents = random_tree(rng, rng.randrange(0, 14), tiny_models.VOCAB)
        rows = verifier.score(text[-1], tokens, parents)
        for node in range(-1, len(tokens)):
            path = path_to(node, parents)
            want = plain_logits(model, text + [tokens[step] for step in path])
            worst = max(worst, (rows[node + 1] - want).abs().max().item())
            assert int(rows[node + 1].argmax()) == int(want.argmax())
            compared += 1
        path = path_to(rng.randrange(-1, len(tokens)) if tokens else -1, parents)
        verifier.commit(path)
        text += [tokens[step] for step in path] + [rng.randrange(tiny_models.VOCAB)]
        assert verifier.length == len(text) - 1
    assert compared > 40
    assert worst < 1e-4


def test_sliding_window_matters_in_these_models():
    """The test above could not fail on windows if the window changed nothing."""
    windowed, full = (tiny_models.model("mistral", sliding_window=size) for size in (24, None))
    full.load_state_dict(windowed.state_dict())
    text = tiny_models.prompt(60)
    assert (plain_logits(windowed, text) - plain_logits(full, text)).abs().max() > 1e-2


def test_compaction_equals_a_fresh_cache():
    model = tiny_models.model("llama")
    verifier = TreeVerifier(model)
    text = tiny_models.prompt(300)  # beyond the first buffer, so that it is grown as well
    verifier.prefill(text[:-1])
    verifier.score(text[-1], [9, 8, 7, 6, 5], [-1, -1, 1, 1, 3])
    verifier.commit([1, 3, 4])
    fresh = TreeVerifier(model)
    fresh.prefill([*text, 8, 6, 5])
    assert verifier.length == fresh.length == 303
    for mine, other in zip(verifier._cache.layers, fresh._cache.layers, strict=True):
        for name in ("keys", "values"):
            left = getattr(mine, name)[..., :303, :]
            right = getattr(other, name)[..., :303, :]
            assert (left - right).abs().max() < 1e-4


def test_rollback_and_fork_leave_the_cache_alone():
    verifier = TreeVerifier(tiny_models.model("llama"))
    text = tiny_models.prompt(9)
    verifier.prefill(text[:-1])
    want = verifier.score(text[-1])
    verifier.rollback()
    other = verifier.fork()
    other.score(3)
    other.commit()
    verifier.score(text[-1], [4, 5], [-1, 0])
    verifier.rollback()
    assert torch.equal(verifier.score(text[-1]), want)
    verifier.rollback()
    assert verifier.length == 8
    assert other.length == 9


def test_prefill_in_parts_equals_one_pass(monkeypatch):
    model = tiny_models.model("qwen2")
    text = tiny_models.prompt(70)
    want = TreeVerifier(model).prefill(text)
    monkeypatch.setattr("dfvg_host.verify.engine._PREFILL_ROWS", 16)
    assert (TreeVerifier(model).prefill(text) - want).abs().max() < 1e-4


def test_bf16_tree_is_close():
    verifier = TreeVerifier(tiny_models.model("llama", dtype=torch.bfloat16))
    verifier.prefill(tiny_models.prompt(12))
    rows = verifier.score(7, [3, 4], [-1, 0])
    assert rows.dtype == torch.bfloat16


def test_tree_rows():
    depths, visible = tree_rows([-1, 0, 0, 2])
    assert depths == [0, 1, 2, 2, 3]
    assert visible.int().tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0],
        [1, 1, 0, 1, 0],
        [1, 1, 0, 1, 1],
    ]
    for parents in ([0], [-1, 1], [-2]):
        with pytest.raises(ValueError, match="must be -1 or an earlier node"):
            tree_rows(parents)


def test_tree_must_be_settled_before_the_next():
    verifier = TreeVerifier(tiny_models.model("llama"))
    verifier.prefill([5, 6])
    with pytest.raises(RuntimeError, match="no tree to commit"):
        verifier.commit()
    with pytest.raises(RuntimeError, match="no tree to roll back"):
        verifier.rollback()
    verifier.score(5)
    with pytest.raises(RuntimeError, match="commit or roll back"):
        verifier.score(5)
    with pytest.raises(RuntimeError, match="commit or roll back"):
        verifier.fork()
    with pytest.raises(ValueError, match="leave a cache of 3 rows"):
        verifier.commit([4])
    with pytest.raises(ValueError, match="strictly ascending"):
        verifier.commit([1, 1])


def test_models_without_tree_attention_are_refused():
    with pytest.raises(ModelError, match="BloomForCausalLM takes no position_ids"):
        TreeVerifier(tiny_models.model("bloom", attention="eager"))
    model = tiny_models.model("llama")
    model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(ModelError, match=r"'flash_attention_2'.*eager, sdpa"):
        TreeVerifier(model)
    chunked = tiny_models.model("llama")
    chunked.config.layer_types = ["chunked_attention"] * 3
    with pytest.raises(ModelError, match="chunked_attention layers"):
        TreeVerifier(chunked)


@pytest.mark.parametrize("ignored", ["attention_mask", "position_ids"])
def test_probe_sees_a_model_that_ignores_its_arguments(ignored):
    model = tiny_models.model("opt" if ignored == "position_ids" else "llama")
    inner = model.forward

    def deaf(input_ids=None, attention_mask=None, position_ids=None, **kwargs):
        given = {"attention_mask": attention_mask, "position_ids": position_ids}
        given.pop(ignored)
        return inner(input_ids=input_ids, **given, **kwargs)

    model.forward = deaf
    with pytest.raises(ModelError, match="tree"):
        TreeVerifier(model)


def test_context_is_read_from_the_config():
    assert TreeVerifier(tiny_models.model("llama")).context == 512
    scaled = tiny_models.model(
        "llama",
        rope_parameters={
            "rope_type": "longrope",
            "rope_theta": 1e4,
            "short_factor": [1.0] * 8,
            "long_factor": [2.0] * 8,
            "original_max_position_embeddings": 128,
        },
    )
    assert TreeVerifier(scaled).context == 128
