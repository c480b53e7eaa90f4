import json

import pytest

from dfvg_host.timing import DEFAULT_PROFILE, VirtualClock, baseline, load_profile, profile_names
from dfvg_hw.errors import UsageError

GOOD = {
    "format": 1,
    "name": "mine",
    "title": "a test",
    "measured": True,
    "origin": "made up",
    "verify_us": {"0": 1000, "10": 2000, "20": 5000},
    "prefill_fixed_us": 500,
    "prefill_token_us": 10.5,
    "draft_us": 100,
}


def written(tmp_path, **changes):
    data = {**GOOD, **changes}
    path = tmp_path / "p.json"
    path.write_text(json.dumps({key: value for key, value in data.items() if value is not None}))
    return str(path)


@pytest.mark.parametrize("name", profile_names())
def test_shipped_profiles_load_and_own_up(name):
    profile = load_profile(name)
    assert profile.name == name
    assert profile.kind == "assumed"
    assert "ssumption, not measured" in profile.origin
    assert profile.verify(0) < profile.verify(64) < profile.verify(1000)
    assert 0 < profile.draft < profile.verify(0)


def test_default_is_shipped():
    assert DEFAULT_PROFILE in profile_names()
    assert len(profile_names()) >= 3


def test_latency_is_piecewise_linear(tmp_path):
    profile = load_profile(written(tmp_path))
    wanted = {0: 1000, 5: 1500, 10: 2000, 15: 3500, 20: 5000, 30: 8000}
    for nodes, microseconds in wanted.items():
        assert profile.verify(nodes) == pytest.approx(microseconds * 1e-6)
    assert profile.prefill(4) == pytest.approx(542e-6)
    with pytest.raises(ValueError, match="-1"):
        profile.verify(-1)
    flat = load_profile(written(tmp_path, verify_us={"0": 7}))
    assert flat.verify(99) == pytest.approx(7e-6)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"format": 2}, "has format 2: 1 is read"),
        ({"draft_us": None}, "lacks the field 'draft_us'"),
        ({"speed": 1}, "unknown field 'speed': known are format, name"),
        ({"draft_us": -1}, "draft_us is -1: 0 to 1e9"),
        ({"draft_us": True}, "draft_us is True"),
        ({"draft_us": 1e10}, "draft_us"),
        ({"name": ""}, "name is empty"),
        ({"measured": 1}, "measured is 1: a bool"),
        ({"verify_us": {}}, "node counts from 0 on"),
        ({"verify_us": {"4": 1}}, r"node counts from 0 on, each once, not \[4\]"),
        ({"verify_us": {"0": 1, "00": 2}}, "each once"),
        ({"verify_us": {"0": 0}}, "'0': 0, not a node count"),
        ({"verify_us": {"x": 5}}, "'x': 5"),
        ({"verify_us": {"0": 1e-322}}, "microseconds from 0.001 to"),
        ({"verify_us": {"0": 1, "9" * 5000: 1}}, "count of up to 9 digits"),
        ({"verify_us": {"0": 9, "8": 8}}, "falls from 0 to 8 nodes"),
    ],
)
def test_bad_profiles_are_named_in_one_line(tmp_path, changes, text):
    with pytest.raises(UsageError, match=text) as caught:
        load_profile(written(tmp_path, **changes))
    assert "\n" not in str(caught.value)


def test_unknown_and_unreadable_profiles(tmp_path):
    with pytest.raises(UsageError, match=r"unknown verifier profile 'gpu-1t': accepted.*gpu-24g"):
        load_profile("gpu-1t")
    for name in ("a" * 300, "~no-such-user/x", str(tmp_path)):
        with pytest.raises(UsageError, match="unknown verifier profile"):
            load_profile(name)
    deep, digits = b"[" * 100_000, b"1" * 5000
    for content in (b"{", b"\xff\xfe\x00", b"[]", deep, digits, b"NaN"):
        path = tmp_path / "bad.json"
        path.write_bytes(content)
        with pytest.raises(UsageError, match=r"bad\.json"):
            load_profile(str(path))


def test_clock_counts_whole_cycles():
    clock = VirtualClock(200_000_000)
    assert clock.cycles(1.7e-3) == 340_000
    clock.advance(340_000)
    clock.advance(0)
    assert clock.seconds == pytest.approx(1.7e-3)
    with pytest.raises(ValueError, match="go back by 1"):
        clock.advance(-1)


def test_baseline_figures(tmp_path):
    profile = load_profile(written(tmp_path))
    # prefill of 4 tokens 542 µs; then 10 tokens in two trees (10 nodes, 3 levels) and one bare step
    rival = baseline(profile, 4, 11, [(10, 3), (10, 3), (0, 0)])
    assert rival.plain == pytest.approx(11 / (542e-6 + 10 * 1e-3))
    assert rival.same_device_draft == pytest.approx(11 / (542e-6 + 2 * 2.3e-3 + 1e-3))
    assert rival.to_dict().keys() == {"plain", "same_device_draft"}
    assert baseline(profile, 4, 0, []) is None
    instant = load_profile(written(tmp_path, prefill_fixed_us=0, prefill_token_us=0))
    assert baseline(instant, 4, 1, []) is None
    assert baseline(instant, 4, 2, [(0, 0)]) is not None
