"""The law: text drafted by any device, honest or not, is the text without one."""

import random
import re
import types

import pytest
import torch

from dfvg_host.decode import DecodeParams, Interrupted, decode
from dfvg_host.models import LoadedTarget
from dfvg_host.verify import SamplingParams
from dfvg_hw.config import get_config
from dfvg_hw.errors import DeviceError, UsageError
from dfvg_hw.messages import Open, Retune
from tests.host import tiny_models
from tests.host.decode.devices import Hostile, ModelDevice, logits_of, noise, verdicts

VOCAB = tiny_models.VOCAB


def target(family="llama", seed=0, spread=0.3, **changes):
    model = tiny_models.model(family, seed=seed, spread=spread, **changes)
    return LoadedTarget(model, None, f"tiny-{family}", "fp32", None)


@torch.no_grad()
def plain(model, prompt, count):
    """Greedy decoding by transformers itself."""
    model.generation_config.eos_token_id = None
    ids = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        max_new_tokens=count,
        do_sample=False,
        pad_token_id=0,
    )
    return ids[0, len(prompt) :].tolist()


def blend(model, share, seed=0):
    """A draft that is the target with noise mixed in: any quality of draft, no training."""
    own, random_logits = logits_of(model), noise(VOCAB, seed)
    return lambda texts: (1 - share) * own(texts) + share * random_logits(texts)


def run(device, params, loaded=None, prompt=None, **options):
    loaded = loaded or target()
    prompt = prompt or tiny_models.prompt(11)
    warnings = []
    result = decode(loaded, device, prompt, params, warn=warnings.append, **options)
    print(*warnings)  # shown if the test fails
    assert len(warnings) == result.degraded
    return result


GREEDY = SamplingParams()


def params(count=40, budget=8, **changes):
    changes.setdefault("stop_tokens", ())
    return DecodeParams(max_new_tokens=count, tree_budget=budget, **changes)


@pytest.mark.parametrize("family", ["llama", "qwen2", "opt", "mistral"])
def test_plain_decoding_equals_transformers(family):
    loaded = target(family)
    prompt = tiny_models.prompt(9)
    result = run(None, params(60), loaded, prompt)
    assert result.tokens == plain(loaded.model, prompt, 60)
    assert result.verify_steps == 60
    assert result.acceptance_length == 1
    assert result.finish_reason == "length"


@pytest.mark.parametrize("schedule", ["overlap", "lockstep"])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.6, 1.0])
@pytest.mark.parametrize("family", ["llama", "opt"])
def test_drafted_greedy_text_is_the_plain_text(family, share, schedule):
    loaded = target(family, seed=3)
    for seed in range(2):
        prompt = tiny_models.prompt(5 + 9 * seed, seed)
        device = ModelDevice(blend(loaded.model, share, seed))
        got = run(device, params(100, schedule=schedule, check=True), loaded, prompt)
        assert got.tokens == plain(loaded.model, prompt, 100)
        assert got.identical
        assert got.degraded == 0
        if share == 0.0:
            assert got.acceptance_length > 1.8
        if share == 1.0:
            assert got.acceptance_length < 1.2


@pytest.mark.parametrize("seed", range(3))
def test_drafted_samples_are_the_plain_samples(seed):
    loaded = target(seed=4)
    for temperature, top_k, top_p in ((0.8, 0, 0.9), (1.0, 20, 1.0), (1.3, 50, 0.95)):
        sampling = SamplingParams(temperature, top_k, top_p, seed=seed)
        reference = run(None, params(120, sampling=sampling), loaded)
        device = ModelDevice(blend(loaded.model, 0.2, seed))
        got = run(device, params(120, sampling=sampling, check=True), loaded)
        assert got.tokens == reference.tokens
        assert got.identical
        assert got.acceptance_length > 1.05
    other = run(None, params(120, sampling=SamplingParams(0.8, seed=seed + 10)), loaded)
    assert other.tokens != reference.tokens


def test_every_budget_and_pass_limit_gives_the_same_text():
    loaded = target(seed=5)
    rng = random.Random(0)
    want = plain(loaded.model, tiny_models.prompt(11), 50)
    lengths = {}
    for budget in (0, 1, 2, 5, 16, 60):
        for passes in (0, 1, 3, None):
            device = ModelDevice(blend(loaded.model, 0.3), cycles=rng.randrange(20_000, 3_000_000))
            got = run(device, params(50, budget, passes_per_round=passes), loaded)
            assert got.tokens == want
            lengths[budget, passes] = got.acceptance_length
    assert lengths[0, None] == lengths[16, 0] == 1
    assert lengths[16, 3] > lengths[1, 3] > 1


def test_a_draft_equal_to_the_target_is_nearly_always_right():
    loaded = target(seed=6)
    for schedule, passes in (("lockstep", 8), ("overlap", 8)):
        device = ModelDevice(loaded.model, get_config("sim"))
        got = run(device, params(90, 32, schedule=schedule, passes_per_round=passes), loaded)
        assert got.acceptance_length > (4 if schedule == "lockstep" else 3)
        # Taking turns, a tree that was right down to its last level knows nothing below it.
        assert got.hits["miss"] <= 1 or schedule == "lockstep"
        assert got.acceptance_per_depth == sorted(got.acceptance_per_depth, reverse=True)


# Stops ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 8])
def test_exactly_so_many_tokens(count):
    loaded = target(seed=5)
    device = ModelDevice(loaded.model)
    got = run(device, params(count), loaded)
    assert got.tokens == plain(loaded.model, tiny_models.prompt(11), 8)[:count]
    assert got.finish_reason == "length"
    if count <= 1:
        assert not device.sent  # nothing could be drafted in time


def test_nothing_is_verified_past_the_budget():
    loaded = target(seed=5)
    device = ModelDevice(loaded.model)
    got = run(device, params(6, 16, schedule="lockstep", passes_per_round=8), loaded)
    # 6 tokens: one of the prompt's pass, then at most 4 nodes deep and one of the target's own.
    limits = [c.limits.max_depth for c in device.sent if isinstance(c, Open | Retune)]
    assert limits[0] == 4
    assert limits == sorted(limits, reverse=True)
    assert len(got.acceptance_per_depth) <= 4
    assert all(slot is None or slot.seq == 0 for slot in device.tree.slots)


def test_stop_token_inside_an_accepted_run():
    loaded = target(seed=5)
    text = plain(loaded.model, tiny_models.prompt(11), 40)
    place = 17
    first = text.index(text[place])
    device = ModelDevice(loaded.model)
    got = run(device, params(40, 16, stop_tokens=(text[place],)), loaded)
    assert got.tokens == text[: first + 1]
    assert got.finish_reason == "stop"


def test_nothing_is_drafted_below_a_stop_token():
    loaded = target(seed=5)
    text = plain(loaded.model, tiny_models.prompt(11), 40)
    stops = tuple(sorted(set(range(VOCAB)) - set(text)))[:50]
    assert len(stops) > 4  # more than OPEN can carry
    device = ModelDevice(blend(loaded.model, 0.5))
    seen = []
    original = device._children

    def children(rows):
        seen.extend(row.token for row in rows)
        return original(rows)

    device._children = children
    got = run(device, params(40, 16, stop_tokens=stops), loaded)
    assert got.tokens == text
    assert not set(seen) & set(stops[:4])


def test_end_of_text_ids_that_no_token_has():
    loaded = target(seed=5)
    loaded.model.generation_config.eos_token_id = [-1, VOCAB, 10**12]
    loaded.model.config.eos_token_id = 2
    device = ModelDevice(loaded.model)
    run(device, params(9, stop_tokens=None), loaded)
    assert [c.stops for c in device.sent if isinstance(c, Open)] == [(2,)]


def test_stop_string_across_tokens():
    loaded = target(seed=8, vocab_size=259)
    loaded.tokenizer = tiny_models.tokenizer()
    pieces = []
    whole = run(None, params(60), loaded)
    stop = whole.text[20:23]
    device = ModelDevice(loaded.model)
    got = run(device, params(60, 16, stop=(stop,)), loaded, on_text=pieces.append)
    assert got.text == "".join(pieces) == whole.text[: whole.text.index(stop)]
    assert got.finish_reason == "stop"
    assert got.tokens == whole.tokens[: len(got.tokens)]


def test_target_context_ends_the_text():
    loaded = target(seed=5, max_position_embeddings=32)
    device = ModelDevice(loaded.model)
    got = run(device, params(90, 16), loaded)
    assert len(got.tokens) == 32 - 11
    assert got.finish_reason == "context"
    full = run(None, params(5), loaded, tiny_models.prompt(32))
    assert (full.tokens, full.finish_reason) == ([], "context")


def test_draft_context_ends_drafting_not_the_text():
    loaded = target(seed=5)
    config = get_config("tiny").replace(max_ctx=64)
    device = ModelDevice(loaded.model, config)
    got = run(device, params(90), loaded)
    assert got.tokens == plain(loaded.model, tiny_models.prompt(11), 90)
    assert got.degraded == 0
    assert 1 < got.acceptance_length < 90 / 25
    warnings = []
    got = decode(loaded, device, tiny_models.prompt(80), params(20), warn=warnings.append)
    assert got.tokens == plain(loaded.model, tiny_models.prompt(80), 20)
    assert got.degraded == 0
    assert "prompt of 80 tokens does not fit the draft's context of 64" in warnings[0]


# Devices that fail ------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [2, 7])
@pytest.mark.parametrize("kind", Hostile.KINDS)
def test_hostile_devices_change_nothing(kind, after):
    loaded = target(seed=7)
    device = Hostile(kind, blend(loaded.model, 0.2), after)
    warnings = []
    got = decode(
        loaded, device, tiny_models.prompt(11), params(45, 8, check=True), warn=warnings.append
    )
    assert got.tokens == plain(loaded.model, tiny_models.prompt(11), 45)
    assert got.identical
    assert got.degraded == 1
    assert len(warnings) == 1
    assert re.search(Hostile.KINDS[kind], warnings[0]), warnings
    # The device is left alone after its fault.
    assert got.verify_steps > len(verdicts(device)) + 3


def test_wrong_tokens_only_cost_speed():
    loaded = target(seed=7)
    device = ModelDevice(lambda texts: -logits_of(loaded.model)(texts))
    got = run(device, params(60, check=True), loaded)
    assert got.identical
    assert got.degraded == 0
    assert got.acceptance_length == 1


def test_cycle_counts_of_a_dead_simulation_are_left_out():
    loaded = target(seed=7)
    device = Hostile("raises", loaded.model, after=2)

    def report():
        raise DeviceError("the simulation has ended")

    device.rtl_report = report
    got = run(device, params(20), loaded)
    assert (len(got.tokens), got.degraded, got.rtl) == (20, 1, None)


def test_a_draft_that_lacks_a_token_of_the_prompt_is_not_used():
    loaded = target(seed=7)
    device = ModelDevice(loaded.model, vocabulary=50)
    warnings = []
    got = decode(loaded, device, [5, 70], params(5), warn=warnings.append)
    assert got.tokens == plain(loaded.model, [5, 70], 5)
    assert got.degraded == 1
    assert "bad message" in warnings[0]


def test_a_device_on_wall_clock_time_is_not_used():
    device = ModelDevice(target().model)
    bare = types.SimpleNamespace(
        info=device.info, send=device.send, poll=device.poll, close=device.close
    )
    warnings = []
    got = decode(target(), bare, [5, 6], params(5), warn=warnings.append)
    assert got.degraded == 1
    assert "wall-clock" in warnings[0]
    assert not device.sent


def test_a_device_of_other_versions_is_not_used():
    loaded = target()
    device = ModelDevice(loaded.model)
    device.info = type(device.info)(**{**vars(device.info), "message_version": 99})
    warnings = []
    got = decode(loaded, device, [5, 6], params(5), warn=warnings.append)
    assert got.degraded == 1
    assert "message version 99" in warnings[0]


# Requests ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "text"),
    [
        ([], "prompt has no tokens"),
        ([5, VOCAB], f"token id {VOCAB}: the target's ids are 0 to {VOCAB - 1}"),
        ([-1, 5], "token id -1"),
        ([5] * 513, "prompt of 513 tokens is longer than the target's context of 512"),
    ],
)
def test_bad_prompts(prompt, text):
    with pytest.raises(UsageError, match=text):
        decode(target(), None, prompt, params(4))


def test_same_request_same_statistics():
    loaded = target(seed=9)
    runs = [run(ModelDevice(blend(loaded.model, 0.3)), params(40), loaded) for _ in range(2)]
    first, second = (result.to_dict() for result in runs)
    first.pop("wall_seconds"), second.pop("wall_seconds")
    assert first == second


def test_one_device_serves_one_request_after_another():
    loaded = target(seed=9)
    device = ModelDevice(blend(loaded.model, 0.3))
    fresh = run(ModelDevice(blend(loaded.model, 0.3)), params(40), loaded)
    run(device, params(25), loaded, tiny_models.prompt(30, 5))
    again = run(device, params(40), loaded)
    assert again.tokens == fresh.tokens
    assert again.acceptance_length == fresh.acceptance_length


def test_interrupt_keeps_what_there_was():
    loaded = target(seed=5)
    device = ModelDevice(loaded.model)
    original, calls = device.poll, []

    def poll(timeout=0.0):
        calls.append(1)
        if len(calls) == 40:
            raise KeyboardInterrupt
        return original()

    device.poll = poll
    with pytest.raises(Interrupted) as caught:
        run(device, params(400), loaded)
    result = caught.value.result
    assert result.finish_reason is None
    assert 0 < len(result.tokens) < 400
    assert result.tokens == plain(loaded.model, tiny_models.prompt(11), len(result.tokens))


def test_exact_equals_plain_decoding_in_bf16():
    loaded = target(seed=10, dtype=torch.bfloat16)
    loaded.dtype = "bf16"
    for sampling in (GREEDY, SamplingParams(0.9, seed=1)):
        reference = run(None, params(60, sampling=sampling), loaded)
        device = ModelDevice(blend(loaded.model, 0.1))
        got = run(device, params(60, 8, sampling=sampling, exact=True, check=True), loaded)
        assert got.tokens == reference.tokens
        assert got.identical
        assert got.acceptance_length > 1.1
        assert got.virtual_seconds > reference.virtual_seconds  # it is no faster, and says so
