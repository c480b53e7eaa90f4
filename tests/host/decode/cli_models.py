"""`dfvg decode` in this process, on small models read from disk."""

import json

import torch

from dfvg_host.cli import main
from tests.host import tiny_models

CHAT = (
    "{% for m in messages %}[{{ m.content }}]{% endfor %}{% if add_generation_prompt %}>{% endif %}"
)


def save(folder, model, bos=False, chat=None, vocabulary=None, reverse=False):
    """Write a model with a byte-level tokenizer and return the folder's name."""
    tokenizer = tiny_models.tokenizer(bos, reverse)
    if vocabulary:
        tokenizer.add_tokens([f"<extra{i}>" for i in range(vocabulary - len(tokenizer))])
    tokenizer.chat_template = chat
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def make_models(root):
    """Return folders: a target, a draft close to it, and a draft of noise."""
    target = tiny_models.model("llama", seed=1, spread=0.25, vocab_size=259)
    draft = tiny_models.model("llama", seed=1, spread=0.25, vocab_size=259)
    generator = torch.Generator().manual_seed(3)
    for value in draft.parameters():
        value.add_(0.01 * torch.randn(value.shape, generator=generator))
    noise = tiny_models.model("llama", seed=99, spread=0.25, vocab_size=259)
    return {
        "target": save(root / "target", target, chat=CHAT),
        "draft": save(root / "draft", draft),
        "noise": save(root / "noise", noise),
    }


def decode(models, *options, draft="draft", target="target", prompt="Hello"):
    """Run the command; returns its exit status."""
    words = ["decode", "--target", models[target], "--draft", models.get(draft, draft)]
    words += ["--config", "tiny", "--max-new-tokens", "30"]
    words += ["--prompt", prompt] if prompt is not None else []
    return main([*words, *map(str, options)])


def stats(path):
    """Return what a stats file holds."""
    return json.loads(path.read_text())


def refused(capsys, code, *texts):
    """Check for status 2, nothing on standard output, and one error line with the texts."""
    out, err = capsys.readouterr()
    assert code == 2
    assert out == ""
    lines = [line for line in err.splitlines() if line.startswith("dfvg: error")]
    assert len(lines) == 1
    assert "Traceback" not in err
    for text in texts:
        assert text in lines[0]
