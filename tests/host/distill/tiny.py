"""Tiny random LLaMA targets with a real byte-level tokenizer, made in a moment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from dfvg_host.models.loader import LoadedTarget

CHAT = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tiny_tokenizer(chat: bool = True) -> Any:
    """Bytes, "ab" and three specials: 260 ids, the specials first, end of turn = 2."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    specials = ["<unk>", "<|im_start|>", "<|im_end|>"]
    alphabet = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "ab"]
    vocab = {token: i for i, token in enumerate(specials + alphabet)}
    raw = Tokenizer(models.BPE(vocab=vocab, merges=[("a", "b")], unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens(specials)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw, bos_token="<|im_start|>", eos_token="<|im_end|>", unk_token="<unk>"
    )
    if chat:
        tokenizer.chat_template = CHAT
    return tokenizer


def tiny_llama(seed: int = 1, layers: int = 3, vocabulary: int = 260, hidden: int = 64) -> Any:
    """A random target whose text is varied but far from uniform."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=128,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        initializer_range=0.2,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
    )
    return LlamaForCausalLM(config).eval().requires_grad_(False)


def tiny_target(seed: int = 1, chat: bool = True) -> LoadedTarget:
    """A loaded target as `load_target` returns it, without a folder."""
    return LoadedTarget(
        tiny_llama(seed), tiny_tokenizer(chat), "tiny", "fp32", None, f"tiny-{seed}"
    )


def save_tiny(folder: Path, **keywords: Any) -> Path:
    """Write a tiny target as a Hugging Face folder."""
    tiny_llama(**keywords).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder
