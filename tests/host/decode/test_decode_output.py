from types import SimpleNamespace

import pytest

from dfvg_host.decode.output import Output, stop_ids
from dfvg_host.decode.params import DecodeParams
from dfvg_host.decode.text import TextStream
from dfvg_host.verify import SamplingParams
from dfvg_hw.errors import UsageError
from tests.host import tiny_models

TOKENIZER = tiny_models.tokenizer()


def ids(text):
    return TOKENIZER.encode(text, add_special_tokens=False)


def filled(tokens, params, stop_tokens=(2,), room=None):
    pieces = []
    output = Output(params, stop_tokens, room, TOKENIZER, pieces.append)
    for token in tokens:
        if output.finish_reason or output.append(token):
            break
    assert "".join(pieces) == output.text
    return output


def test_end_of_text_is_the_last_token():
    output = filled([*ids("ab"), 2, *ids("cd")], DecodeParams(max_new_tokens=10))
    assert (output.tokens, output.text, output.finish_reason) == ([*ids("ab"), 2], "ab", "stop")
    assert output.remaining == 0
    with pytest.raises(RuntimeError, match="has ended"):
        output.append(5)


@pytest.mark.parametrize("limit", [1, 2, 3, 7])
def test_exactly_so_many_tokens(limit):
    output = filled(ids("abcdefgh"), DecodeParams(max_new_tokens=limit))
    assert len(output.tokens) == limit
    assert (output.text, output.finish_reason) == ("abcdefgh"[:limit], "length")


def test_none_at_all():
    output = filled(ids("abc"), DecodeParams(max_new_tokens=0))
    assert (output.tokens, output.text, output.finish_reason) == ([], "", "length")


@pytest.mark.parametrize(("tokens", "reason"), [("abc", "length"), ("ab", "stop")])
def test_stop_inside_the_budget_beats_length(tokens, reason):
    end = [2] if reason == "stop" else []
    assert filled([*ids(tokens), *end], DecodeParams(max_new_tokens=3)).finish_reason == reason


def test_stop_string_cuts_text_and_keeps_its_tokens():
    output = filled(ids("one. two"), DecodeParams(stop=(". ",)))
    assert (output.text, output.finish_reason) == ("one", "stop")
    assert output.tokens == ids("one. ")
    late = filled(ids("ab"), DecodeParams(max_new_tokens=2, stop=("b",)))
    assert (late.text, late.finish_reason) == ("a", "stop")


def test_context_ends_the_output_only_if_it_is_shorter():
    assert filled(ids("abcd"), DecodeParams(max_new_tokens=9), room=3).finish_reason == "context"
    assert filled(ids("abcd"), DecodeParams(max_new_tokens=3), room=3).finish_reason == "length"
    assert filled(ids("abcd"), DecodeParams(max_new_tokens=5), room=0).finish_reason == "context"


def test_withheld_text_comes_out_when_the_output_ends_or_is_interrupted():
    assert filled(ids("ab"), DecodeParams(max_new_tokens=2, stop=("bc",))).text == "ab"
    assert filled([*ids("ab"), 2], DecodeParams(stop=("bc",))).text == "ab"
    output = filled(ids("ab"), DecodeParams(stop=("bc",)))
    assert (output.text, output.finish_reason) == ("a", None)
    output.flush()
    assert output.text == "ab"


def test_stop_ids_come_from_model_tokenizer_and_special_stop_strings():
    model = SimpleNamespace(
        generation_config=SimpleNamespace(eos_token_id=[7, 9]),
        config=SimpleNamespace(eos_token_id=9),
    )
    assert stop_ids(model, TOKENIZER, DecodeParams()) == (2, 7, 9)
    assert stop_ids(model, None, DecodeParams()) == (7, 9)
    assert stop_ids(model, TOKENIZER, DecodeParams(stop_tokens=())) == ()
    model.config.eos_token_id = [-1, None, "x", 9]
    assert stop_ids(model, None, DecodeParams()) == (7, 9)
    assert stop_ids(model, TOKENIZER, DecodeParams(stop_tokens=(5,), stop=("<pad>", "a"))) == (0, 5)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"max_new_tokens": -1}, "max_new_tokens is -1: expected a whole number"),
        ({"tree_budget": -3}, "tree_budget is -3: expected a whole number"),
        ({"passes_per_round": -1}, "passes_per_round is -1: expected"),
        ({"schedule": "pearl"}, "schedule is 'pearl': expected lockstep or overlap"),
        ({"stop": ("",)}, "stop is .*: expected texts"),
        ({"stop": "text"}, "stop is .*: expected texts"),
        ({"stop": ("\udcff",)}, "no lone surrogates"),
        ({"stop_tokens": (5, -1)}, "stop_tokens holds -1: expected token ids"),
        ({"stop_tokens": ("a",)}, "stop_tokens holds 'a': expected token ids"),
    ],
)
def test_bad_parameters(arguments, text):
    with pytest.raises(UsageError, match=text):
        DecodeParams(**arguments)


def test_values_are_kept_as_what_they_were_judged_as():
    params = DecodeParams(max_new_tokens="5", tree_budget=4.0)
    assert (params.max_new_tokens, params.tree_budget) == (5, 4)
    assert type(params.tree_budget) is int
    assert SamplingParams(temperature="0.5", seed=3.0).temperature == 0.5


def test_stop_string_in_text_withheld_to_the_end():
    stream = TextStream(_Joined(), ("b\ufffd",))
    assert stream.push(0) == "a"
    assert not stream.stopped
    output = Output(DecodeParams(max_new_tokens=1, stop=("b\ufffd",)), (2,), None, _Joined())
    assert output.append(0)
    assert (output.finish_reason, output.text) == ("stop", "a")


def test_stop_string_before_half_a_character():
    stream = TextStream(_Joined(), ("b",))
    assert (stream.push(0), stream.stopped) == ("a", True)
    stream = TextStream(_Joined())
    assert (stream.push(0), stream.finish(), stream.text) == ("ab", "\ufffd", "ab\ufffd")


class _Joined:
    """A tokenizer whose token is a text and half a character."""

    def decode(self, ids, **_):
        return "ab\ufffd" if ids else ""
