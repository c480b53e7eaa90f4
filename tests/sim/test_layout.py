"""Packing values into ports: the bits of Amaranth's own constants, no silent truncation."""

import random

import pytest
from amaranth.hdl import signed
from amaranth.lib import data, enum

from sim.cocotb.layout import Codec
from sim.cocotb.profiles import PROFILES, profile


class Kind(enum.Enum, shape=2):
    A = 0
    B = 3


class Pair(data.Struct):
    low: 3
    high: signed(5)


NESTED = data.StructLayout(
    {"acc": signed(12), "kind": Kind, "lanes": data.ArrayLayout(signed(4), 3), "pair": Pair}
)
VALUE = {"acc": -7, "kind": 3, "lanes": [-8, 7, 0], "pair": {"low": 5, "high": -16}}


def test_packs_the_bits_that_amaranth_packs():
    assert Codec(NESTED).pack(VALUE) == NESTED.const(VALUE).as_value().value
    assert Codec(NESTED).width == NESTED.size == 34


def test_unpacks_what_it_packed(seed):
    codec, rng = Codec(NESTED), random.Random(seed)
    assert codec.unpack(codec.pack(VALUE)) == VALUE
    for _ in range(200):
        value = codec.random(rng)
        assert codec.unpack(codec.pack(value)) == value


@pytest.mark.parametrize(
    ("shape", "low", "high"),
    [(8, 0, 255), (signed(8), -128, 127), (1, 0, 1), (signed(1), -1, 0), (0, 0, 0), (Kind, 0, 3)],
)
def test_limits(shape, low, high):
    codec = Codec(shape)
    for value in (low, high):
        assert codec.unpack(codec.pack(value)) == value
    for value in (low - 1, high + 1):
        with pytest.raises(ValueError, match=f"{value} does not fit: expected {low} to {high}"):
            codec.pack(value)


def test_enumeration_members_are_accepted():
    assert Codec(Kind).pack(Kind.B) == 3


@pytest.mark.parametrize(
    "value",
    [
        {**VALUE, "extra": 1},
        {key: VALUE[key] for key in ("acc", "kind", "lanes")},
        {**VALUE, "lanes": [1, 2]},
        {**VALUE, "lanes": [1, 2, 8]},
        {**VALUE, "pair": 3},
        5,
    ],
)
def test_wrong_values_are_refused(value):
    with pytest.raises(ValueError, match="expected"):
        Codec(NESTED).pack(value)


def test_unions_take_one_member_and_return_all():
    codec = Codec(data.UnionLayout({"byte": 8, "number": signed(8)}))
    assert codec.pack({"number": -1}) == 255
    assert codec.unpack(255) == {"byte": 255, "number": -1}
    with pytest.raises(ValueError, match="one of"):
        codec.pack({"byte": 1, "number": 1})


def test_profiles_differ_and_repeat_with_their_seed():
    runs = {}
    for name in PROFILES:
        first, second = (profile(name, random.Random(1)) for _ in range(2))
        runs[name] = [next(first) for _ in range(1000)]
        assert runs[name] == [next(second) for _ in range(1000)]
    assert all(runs["none"])
    assert runs["alternate"][:4] == [True, False, True, False]
    assert 400 < sum(runs["random"]) < 600
    assert 200 < sum(runs["bursts"]) < 800
    lengths = [len(run) for run in "".join("01"[b] for b in runs["bursts"]).split("1")]
    assert max(lengths) >= 10, "long pauses"
    with pytest.raises(ValueError, match="no profile 'slow': expected one of none, random"):
        profile("slow", random.Random(1))
