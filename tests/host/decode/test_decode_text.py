import random

import pytest

from dfvg_host.decode.text import TextStream
from tests.host import tiny_models

TOKENIZER = tiny_models.tokenizer()


def ids(text):
    return TOKENIZER.encode(text, add_special_tokens=False)


def stream(tokens, stops=()):
    """Return (pieces, the stream) after pushing tokens until a stop."""
    text = TextStream(TOKENIZER, stops)
    pieces = []
    for token in tokens:
        pieces.append(text.push(token))
        if text.stopped:
            break
    pieces.append(text.finish())
    return pieces, text


@pytest.mark.parametrize("text", ["plain", "naïve café", "日本語 and 🙂🙃", "a\n\n b  c", "👩‍🔬!"])
def test_pieces_are_whole_characters_and_add_up(text):
    pieces, result = stream(ids(text))
    assert "".join(pieces) == text == result.text
    assert not any("\ufffd" in piece for piece in pieces)
    # One byte per token: all bytes of a character but the last give nothing.
    assert sum(piece != "" for piece in pieces) == len(text)


def test_equals_the_tokenizer_on_random_bytes():
    rng = random.Random(4)
    for _ in range(200):
        tokens = [rng.randrange(0, 259) for _ in range(rng.randrange(1, 40))]
        pieces, result = stream(tokens)
        whole = TOKENIZER.decode(
            tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        # Where a broken character is cut from the next is the decoder's choice; the rest is equal.
        assert result.text.replace("\ufffd", "") == whole.replace("\ufffd", "")
        assert "".join(pieces) == result.text


def test_unfinished_character_is_shown_at_the_end_only():
    tokens = ids("é")[:1]
    text = TextStream(TOKENIZER)
    assert text.push(tokens[0]) == ""
    assert text.finish() == "\ufffd"


def sentencepiece_like():
    """A tokenizer that marks spaces at the front of words and drops the first one when decoding."""
    from tokenizers import Tokenizer, decoders, models, normalizers
    from transformers import PreTrainedTokenizerFast

    letters = [*"abcdefgh.", "\u2581", "\u2581a", "\u2581be", "ca", "b."]
    vocab = {"<unk>": 0} | {f"<0x{byte:02X}>": 1 + byte for byte in range(256)}
    vocab |= {letter: 257 + place for place, letter in enumerate(letters)}
    merges = [("\u2581", "a"), ("b", "."), ("c", "a")]
    core = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True))
    core.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    core.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return PreTrainedTokenizerFast(tokenizer_object=core, clean_up_tokenization_spaces=False)


@pytest.mark.parametrize("text", ["a be ca", "ca. a", "  a  b.", "a é日🙂 ca b."])
def test_spaces_at_the_front_of_words(text):
    tokenizer = sentencepiece_like()
    tokens = tokenizer.encode(text, add_special_tokens=False)
    stream = TextStream(tokenizer)
    pieces = [stream.push(token) for token in tokens] + [stream.finish()]
    assert "".join(pieces) == stream.text == tokenizer.decode(tokens)
    assert not any("\ufffd" in piece for piece in pieces)


@pytest.mark.parametrize(
    ("text", "stops", "kept"),
    [
        ("hello world", ["world"], "hello "),
        ("hello world", ["o w"], "hell"),
        ("aaab", ["aab"], "a"),
        ("ab ab abc", ["abc"], "ab ab "),
        ("one two three", ["three", "two"], "one "),
        ("xé🙂y", ["🙂"], "xé"),
        ("xyz", ["xyz"], ""),
        ("no such text", ["absent"], "no such text"),
        ("ends with a star", ["stare"], "ends with a star"),
        ("ENDEN", ["END."], "ENDEN"),
    ],
)
def test_stop_strings(text, stops, kept):
    pieces, result = stream(ids(text), stops)
    assert result.text == "".join(pieces) == kept
    assert result.stopped == (kept != text)


def test_nothing_that_could_begin_a_stop_string_gets_out():
    rng = random.Random(1)
    for _ in range(300):
        stops = ["".join(rng.choices("ab", k=rng.randrange(1, 5))) for _ in range(2)]
        letters = "".join(rng.choices("ab", k=20))
        pieces, result = stream(ids(letters), stops)
        # Reference: the first token count at which a stop string is complete.
        cut = next(
            (
                min(place for stop in stops if (place := letters[:end].find(stop)) >= 0)
                for end in range(1, 21)
                if any(stop in letters[:end] for stop in stops)
            ),
            None,
        )
        assert result.text == (letters if cut is None else letters[:cut])
        assert "".join(pieces) == result.text


def test_special_tokens_have_no_text_and_no_tokenizer_gives_none():
    pieces, _ = stream([0, *ids("a"), 2])
    assert "".join(pieces) == "a"
    text = TextStream(None, ["x"])
    assert text.push(5) + text.finish() == ""
