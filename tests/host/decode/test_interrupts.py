"""Ctrl-C and a reader that goes away, on a real process: what was done is kept, no traceback."""

import contextlib
import json
import signal
import subprocess
import sys

import pytest
import torch

from tests.host import tiny_models

ENDLESS = 100_000  # tokens: far more than the test waits for


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Return the options for a target and a draft close to it; the text never ends by itself."""
    root = tmp_path_factory.mktemp("pair")
    model = tiny_models.model("llama", 1, 0.25, vocab_size=259, max_position_embeddings=2 * ENDLESS)
    model.generation_config.eos_token_id = model.config.eos_token_id = None
    tokenizer = tiny_models.tokenizer()
    tokenizer.eos_token = None
    generator = torch.Generator().manual_seed(3)
    for name in ("target", "draft"):
        model.save_pretrained(root / name)
        tokenizer.save_pretrained(root / name)
        for value in model.parameters():
            value.add_(0.01 * torch.randn(value.shape, generator=generator))
    return ["--target", str(root / "target"), "--draft", str(root / "draft"), "--config", "tiny"]


@contextlib.contextmanager
def started(*words):
    """Start the command in a process of its own; it's gone at the end whatever happens."""
    command = [sys.executable, "-m", "dfvg_host.cli", "decode", *map(str, words)]
    pipe = subprocess.PIPE
    # Unbuffered: communicate() would miss what a buffer has read ahead.
    with subprocess.Popen(command, bufsize=0, stdout=pipe, stderr=pipe) as process:
        try:
            yield process
        finally:
            process.kill()


def ended(process, status):
    """Wait for the end; return what else was printed to standard output and error."""
    out, err = process.communicate(timeout=120)
    assert process.returncode == status, err.decode()
    for word in (b"Traceback", b"Exception ignored"):
        assert word not in err, err.decode()
    return out, err.decode()


def test_ctrl_c_keeps_text_and_statistics(pair, tmp_path):
    path = tmp_path / "s.json"
    with started(*pair, "--prompt", "Hello", "--max-new-tokens", ENDLESS, "--stats", path) as run:
        first = b""
        while len(first) < 20:
            first += run.stdout.read(20)
        run.send_signal(signal.SIGINT)
        rest, err = ended(run, 130)
    found = json.loads(path.read_text())
    assert found["finish_reason"] is None
    printed = (first + rest).decode()
    assert found["text"].removesuffix("\n") == printed.removesuffix("\n")
    assert 0 < len(found["tokens"]) < ENDLESS
    assert found["passes"]["growth"] > 0
    assert "ended by interruption" in err


def test_ctrl_c_in_a_batch_keeps_what_was_done(pair, tmp_path):
    prompts, path = tmp_path / "p.jsonl", tmp_path / "s.json"
    prompts.write_text('{"prompt": "one"}\n' * ENDLESS)
    with started(*pair, "--jsonl", prompts, "--max-new-tokens", 20, "--stats", path) as run:
        lines = [run.stdout.readline() for _ in range(3)]
        run.send_signal(signal.SIGINT)
        rest, err = ended(run, 130)
    lines += rest.splitlines()
    results = [json.loads(line) for line in lines]
    assert [result.pop("id") for result in results] == list(range(1, len(results) + 1))
    assert results == json.loads(path.read_text())
    assert {result["finish_reason"] for result in results[:-1]} == {"length"}
    assert f"{len(results)} prompts, " in err


@pytest.mark.parametrize("batch", [False, True])
def test_a_reader_that_stops_reading(pair, tmp_path, batch):
    prompts, path = tmp_path / "p.jsonl", tmp_path / "s.json"
    prompts.write_text('{"prompt": "one"}\n' * ENDLESS)
    request = ["--jsonl", prompts, "--max-new-tokens", 20]
    if not batch:
        request = ["--prompt", "Hello", "--max-new-tokens", ENDLESS]
    with started(*pair, *request, "--stats", path) as run:
        assert run.stdout.read(1)
        run.stdout.close()
        run.stdout = None
        ended(run, 141)
    found = json.loads(path.read_text())
    last = found[-1] if batch else found
    assert last["tokens"]
    assert batch or last["finish_reason"] is None


@pytest.mark.parametrize("way", ["closed", "gone"])
def test_nobody_listens_to_standard_error(pair, tmp_path, way):
    path = tmp_path / "s.json"
    words = [sys.executable, "-m", "dfvg_host.cli", "decode", *pair, "--prompt", "x" * 300]
    words += ["--max-new-tokens", "10", "--top-k", "5", "--stats", str(path)]
    if way == "closed":
        script = 'exec "$@" 2>&-'
    else:
        script = 'exec "$@" 2> >(exec 0<&-)'
    done = subprocess.run(["bash", "-c", script, "bash", *words], capture_output=True, check=False)
    assert done.returncode == 0
    found = json.loads(path.read_text())
    assert found["finish_reason"] == "length"
    assert done.stdout.decode().removesuffix("\n") == found["text"].removesuffix("\n")
