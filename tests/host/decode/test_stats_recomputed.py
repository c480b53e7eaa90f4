"""Every figure of the stats, against the same figure computed from a trace of the run."""

import random

import pytest
import torch

from dfvg_host.compile import compile_model
from dfvg_host.compile.source import float_model
from dfvg_host.decode import DecodeParams, decode
from dfvg_host.decode.engine import open_device
from dfvg_host.models import LoadedTarget
from dfvg_host.timing import load_profile, profile_names
from dfvg_host.verify import SamplingParams
from dfvg_hw.config import get_config
from tests.host import tiny_models
from tests.host.decode.devices import Hostile, ModelDevice, logits_of, noise
from tests.host.decode.trace import Traced, committed, recompute, trace_verifier

VOCAB = 259
SHAPE = {"vocab_size": VOCAB, "spread": 0.25, "eos_token_id": None}


@pytest.fixture(scope="module")
def target():
    model = tiny_models.model("llama", seed=1, **SHAPE)
    return LoadedTarget(model, tiny_models.tokenizer(), "tiny", "fp32", None)


@pytest.fixture(scope="module")
def draft(target):
    """A model close to the target."""
    model = tiny_models.model("llama", seed=1, **SHAPE)
    generator = torch.Generator().manual_seed(3)
    for value in model.parameters():
        value.add_(0.01 * torch.randn(value.shape, generator=generator))
    return float_model(model)


def flat(stats, name=""):
    """Return nested statistics as one dictionary of numbers, -1 for none."""
    if isinstance(stats, dict | list):
        items = stats.items() if isinstance(stats, dict) else enumerate(stats, 1)
        return {k: v for key, item in items for k, v in flat(item, f"{name} {key}").items()}
    return {name: -1 if stats is None else stats}


def check(monkeypatch, target, device, params, profile="gpu-24g", prompt=None):
    """Run a request and compare its statistics with those of its trace."""
    events = []
    trace_verifier(monkeypatch, events)
    profile = load_profile(profile)
    prompt = prompt or tiny_models.prompt(11)
    pieces = []
    got = decode(
        target, Traced(device, events), prompt, params, profile=profile, on_text=pieces.append
    )
    want = recompute(events, profile, params, device.info.config, len(got.tokens))
    found = got.to_dict()
    assert flat({key: found[key] for key in want}) == pytest.approx(flat(want), rel=1e-12)
    known = committed(events)
    assert got.tokens[: len(known)] == known
    assert len(got.tokens) - len(known) in (0, 1)
    assert got.text == "".join(pieces)
    assert got.degraded == 0
    plain = decode(target, None, prompt, params)
    assert (got.tokens, got.text, got.finish_reason) == (
        plain.tokens,
        plain.text,
        plain.finish_reason,
    )
    return got


def blended(target, share, config="tiny", cycles=800_000, **changes):
    own, other = logits_of(target.model), noise(VOCAB)
    config = get_config(config).replace(**changes) if changes else get_config(config)
    return ModelDevice(
        lambda texts: (1 - share) * own(texts) + share * other(texts), config, cycles, VOCAB
    )


def request(count=40, budget=8, **changes):
    changes.setdefault("stop_tokens", ())
    return DecodeParams(max_new_tokens=count, tree_budget=budget, **changes)


@pytest.mark.parametrize("schedule", ["overlap", "lockstep"])
@pytest.mark.parametrize("passes", [None, 1, 3, 12])
@pytest.mark.parametrize("budget", [1, 16, 100])
def test_budgets_and_passes(monkeypatch, target, schedule, passes, budget):
    params = request(30, budget, passes_per_round=passes, schedule=schedule)
    got = check(monkeypatch, target, blended(target, 0.3), params)
    assert sum(got.passes.values()) > 5
    assert got.idle > 0


@pytest.mark.parametrize("schedule", ["overlap", "lockstep"])
@pytest.mark.parametrize("config", ["tiny", "sim"])
def test_the_emulator_with_its_cycle_model(monkeypatch, target, draft, schedule, config):
    image = compile_model(draft, get_config(config))
    device = open_device("emulator", image, print, {})
    got = check(monkeypatch, target, device, request(40, schedule=schedule))
    assert 0 < got.eta < 1
    assert got.acceptance_length > 1.2


@pytest.mark.parametrize("schedule", ["overlap", "lockstep"])
def test_ends_inside_an_accepted_path(monkeypatch, target, schedule):
    whole = decode(target, None, tiny_models.prompt(11), request(40))
    for place in range(9, 14):
        end = whole.tokens[place]
        for stops in ({"stop_tokens": (end,)}, {"stop": (whole.text[place : place + 3],)}):
            params = request(40, schedule=schedule, **stops)
            got = check(monkeypatch, target, blended(target, 0.0), params)
            assert got.finish_reason == "stop"
    for count in (1, 2, 3, 7):
        check(monkeypatch, target, blended(target, 0.0), request(count, schedule=schedule))


@pytest.mark.parametrize("schedule", ["overlap", "lockstep"])
def test_a_draft_context_that_fills_up(monkeypatch, target, schedule):
    device = blended(target, 0.1, max_ctx=64)
    got = check(monkeypatch, target, device, request(90, schedule=schedule))
    assert len(got.tokens) == 90


@pytest.mark.parametrize("schedule", ["overlap", "lockstep"])
def test_a_device_given_up_is_not_idle(target, schedule):
    idle = []
    for count in (30, 90):
        device = Hostile("raises", logits_of(target.model), after=4)
        params = request(count, schedule=schedule)
        got = decode(target, device, tiny_models.prompt(11), params, warn=print)
        assert got.degraded == 1
        idle.append(got.idle)
    assert idle[0] == idle[1]


@pytest.mark.parametrize("case", range(12))
def test_any_request(monkeypatch, target, seed, case):
    rng = random.Random(f"{seed} {case}")
    params = request(
        rng.randrange(1, 60),
        rng.choice([1, 3, 8, 16, 40]),
        passes_per_round=rng.choice([None, 1, 2, 5, 12]),
        schedule=rng.choice(["overlap", "lockstep"]),
        sampling=SamplingParams(rng.choice([0.0, 0.7]), seed=rng.randrange(9)),
        stop_tokens=tuple(rng.sample(range(3, VOCAB), rng.randrange(3))),
    )
    share, cycles = rng.choice([0.0, 0.2, 0.4]), rng.randrange(10_000, 6_000_000)
    prompt = tiny_models.prompt(rng.randrange(1, 40), rng.randrange(9), VOCAB)
    print(seed, params, share, cycles, len(prompt))
    device = blended(target, share, cycles=cycles)
    check(monkeypatch, target, device, params, rng.choice(profile_names()), prompt)
