"""Random requests through the command: drafting changes neither tokens nor text nor their end."""

import itertools
import json
import random

import pytest
import torch

from dfvg_host.cli import main
from tests.host import tiny_models

# Halves and thirds of characters, and pieces that overlap: text that is rarely whole at a token's
# end, with stop strings that begin and end inside tokens.
PIECES = [b"ab", b"abc", b"bc", b" a", b"\n\n", b"the", b"\xf0\x9f", b"\x99\x82", b"\xf0\x9f\x99"]
PIECES += ["🙂".encode(), b"\xe6\x97", "日".encode(), "é".encode(), b"\x82a", b"b\xf0\x9f"]
VOCAB = 96
EMOJI = ("🙂", "🙂🙂", "é", "日", "a🙂", "\ufffd", "\n\n")


def tokenizer():
    """Return a byte-level tokenizer with few bytes and the pieces above; id 2 ends the text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    letter = bytes_to_unicode()
    single = sorted({*b"abcdefghijklmnopqrstuvwxyz .\n", *b"".join(PIECES)})
    words = [letter[byte] for byte in single]
    words += ["".join(letter[byte] for byte in piece) for piece in PIECES]
    more = [chr(code).encode() for code in (*range(0x1F600, 0x1F610), *range(0x3B1, 0x3E0))]
    pairs = [a + b for a, b in itertools.pairwise(more)]  # some begin and end inside a character
    pairs = [pair[place % 5 :][: 3 + place % 3] for place, pair in enumerate(pairs)]
    rest = ["".join(letter[byte] for byte in piece) for piece in pairs]
    words += list(dict.fromkeys(word for word in rest if word not in words))
    words = words[: VOCAB - 3]
    vocab = {"<pad>": 0, "<s>": 1, "</s>": 2}
    vocab |= {word: 3 + place for place, word in enumerate(words)}
    assert len(vocab) == VOCAB
    core = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        clean_up_tokenization_spaces=False,
    )


TOKENIZER = tokenizer()


def cut(tokens, stops):
    """Return how many tokens complete a stop string, and the text before it; else all of it."""
    text = ""
    for count in range(1, len(tokens) + 1):
        text = TOKENIZER.decode(tokens[:count], skip_special_tokens=True)
        places = [text.find(stop) for stop in stops if stop in text]
        if places:
            return count, text[: min(places)]
    return None, text


def near(model, noise, seed):
    """Change a model a little."""
    generator = torch.Generator().manual_seed(seed)
    for value in model.parameters():
        value.add_(noise * torch.randn(value.shape, generator=generator))
    return model


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Return names of targets, and of drafts for each: close ones, a far one, a short one."""
    root = tmp_path_factory.mktemp("sweep")
    found = {}
    for seed, context in ((1, 512), (2, 512), (3, 48)):

        def made(seed=seed, context=context):
            return tiny_models.model(
                "llama", seed, 0.25, vocab_size=VOCAB, max_position_embeddings=context
            )

        drafts = {
            "close": near(made(), 0.01, 3),
            "far": tiny_models.model("llama", 99, 0.25, vocab_size=VOCAB),
            "short": near(made(context=32), 0.005, 4),
        }
        names = {}
        for name, model in {"target": made(), **drafts}.items():
            folder = root / f"{name}{seed}"
            model.save_pretrained(folder)
            TOKENIZER.save_pretrained(folder)
            names[name] = str(folder)
        found[names.pop("target")] = list(names.values())
    return found


class Sweep:
    """Random requests, each with its target-only twin."""

    def __init__(self, models, folder, capsys, seed):
        self.models, self.capsys = models, capsys
        self.path = folder / "stats.json"
        self.seed, self.rng = seed, random.Random(seed)
        self.drafted = 0

    def decode(self, words):
        """Run the command and return its statistics; a failure names seed and words."""
        try:
            return self.run(words)
        except AssertionError as error:
            error.add_note(f"seed {self.seed}: {words}")
            raise

    def run(self, words):
        code = main(["decode", "--config", "tiny", "--quiet", "--stats", str(self.path), *words])
        out, err = self.capsys.readouterr()
        assert code == 0, err
        found = json.loads(self.path.read_text())
        end = "" if found["text"].endswith("\n") or not found["text"] else "\n"
        assert out == found["text"] + end
        return found

    def stops(self, text):
        """Pick stop strings: cut from the text, at its start, overlapping, never there, odd."""
        rng, found = self.rng, []
        for _ in range(rng.choice([0, 0, 1, 1, 2, 4])):
            place = rng.choice([0, rng.randrange(len(text) + 1)])
            piece = text[place : place + rng.randrange(1, 6)]
            found.append(rng.choice([piece, piece, piece + "z", piece[1:], rng.choice(EMOJI)]))
        return [stop for stop in found if stop]

    def request(self):
        """Return the words of a request, without draft and tree."""
        rng = self.rng
        words = ["--target", rng.choice(list(self.models))]
        words += [
            "--prompt",
            "".join(rng.choice("abc the.\n") for _ in range(rng.randrange(1, 40))),
        ]
        words += ["--max-new-tokens", str(rng.choice([1, 2, 3, 7, 20, 40, 60]))]
        if rng.random() < 0.5:
            words += [
                "--temperature",
                str(rng.choice([0.3, 0.8, 1.0])),
                "--seed",
                str(rng.random())[2:9],
            ]
            words += rng.choice([[], ["--top-k", "5"], ["--top-p", "0.8"]])
        whole = self.decode([*words, "--draft", "none"])
        return [*words, *(f"--stop={stop}" for stop in self.stops(whole["text"]))]

    def tree(self, target):
        """Return the words that say how to draft."""
        rng = self.rng
        words = ["--draft", rng.choice(self.models[target])]
        words += ["--tree-budget", str(rng.choice([0, 1, 2, 16, 100]))]
        words += ["--schedule", rng.choice(["overlap", "lockstep"])]
        passes = rng.choice([None, 0, 1, 3, 12])
        words += [] if passes is None else ["--passes-per-round", str(passes)]
        return words + rng.choice([[], [], ["--check"], ["--exact"]])

    def judge(self, found, stops):
        """Look for the stop strings in text that was decoded as a whole."""
        if any("\ufffd" in stop for stop in stops):
            return  # where broken characters are put is the decoder's choice
        tokens, note = found["tokens"], f"{found['tokens']} {stops}, seed {self.seed}"
        count, text = cut(tokens, stops)
        assert count in (None, len(tokens)), note
        assert found["text"].replace("\ufffd", "") == text.replace("\ufffd", ""), note
        assert (found["finish_reason"] == "stop") == (count is not None or tokens[-1] == 2), note

    def once(self, trees=3):
        words = self.request()
        plain = self.decode([*words, "--draft", "none", "--check"])
        assert plain["identical"]
        self.judge(plain, [word.removeprefix("--stop=") for word in words if "--stop=" in word])
        for _ in range(trees):
            tree = self.tree(words[1])
            got = self.decode([*words, *tree])
            for key in ("tokens", "text", "finish_reason"):
                assert got[key] == plain[key], f"{key} of {words + tree}, seed {self.seed}"
            assert got["identical"] in (None, True)
            assert got["degraded"] == 0
            self.drafted += got["acceptance_length"] > 1
        return plain["finish_reason"]


def test_random_requests(models, tmp_path, capsys, seed):
    sweep = Sweep(models, tmp_path, capsys, seed)
    reasons = [sweep.once() for _ in range(12)]
    assert {"stop", "length"} <= set(reasons)
    assert sweep.drafted > 5


@pytest.mark.slow
def test_many_random_requests(models, tmp_path, capsys, seed):
    sweep = Sweep(models, tmp_path, capsys, seed + 1)
    reasons = [sweep.once(4) for _ in range(150)]
    assert {"stop", "length", "context"} <= set(reasons)
