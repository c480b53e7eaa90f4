"""Random models and tokenizers small enough to build in a test."""

from __future__ import annotations

from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    Gemma2Config,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    OPTConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
)

VOCAB = 160
_COMMON = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def config(family: str, **changes: Any) -> Any:
    """Return the configuration of a small model of one family."""
    common = {**_COMMON, **changes}
    if family == "llama":
        return LlamaConfig(**common)
    if family == "qwen2":
        return Qwen2Config(**common)
    if family == "mistral":
        return MistralConfig(**{"sliding_window": 24, **common})
    if family == "gemma2":
        return Gemma2Config(**{"sliding_window": 24, "head_dim": 16, **common})
    if family == "opt":
        common["ffn_dim"] = common.pop("intermediate_size")
        return OPTConfig(**common, do_layer_norm_before=True, word_embed_proj_dim=64)
    if family == "gpt2":
        return GPT2Config(
            vocab_size=VOCAB, n_embd=64, n_layer=3, n_head=4, n_positions=512, **changes
        )
    if family == "bloom":
        return BloomConfig(vocab_size=VOCAB, hidden_size=64, n_layer=2, n_head=4)
    raise KeyError(family)


def model(
    family: str = "llama",
    seed: int = 0,
    spread: float = 0.3,
    dtype: torch.dtype = torch.float32,
    attention: str = "sdpa",
    **changes: Any,
) -> Any:
    """Return a random model; ``spread`` is the weights' deviation (larger: sharper logits)."""
    torch.manual_seed(seed)
    made = AutoModelForCausalLM.from_config(
        config(family, initializer_range=spread, **changes)
        if family != "bloom"
        else config(family),
        attn_implementation=attention,
        dtype=dtype,
    )
    return made.eval().requires_grad_(False)


def tokenizer(bos: bool = False, reverse: bool = False) -> PreTrainedTokenizerFast:
    """Return a byte-level tokenizer: ids 0-2 special, 3-258 the bytes, so UTF-8 splits anywhere.

    ``reverse`` numbers the bytes the other way round: same size, another meaning.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet(), reverse=reverse)
    vocab = {"<pad>": 0, "<s>": 1, "</s>": 2}
    vocab.update({letter: 3 + place for place, letter in enumerate(alphabet)})
    core = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token="<s>" if bos else None,
        eos_token="</s>",
        pad_token="<pad>",
        clean_up_tokenization_spaces=False,
    )


def prompt(length: int, seed: int = 0, vocab: int = VOCAB) -> list[int]:
    """Return random token ids, no special ones among them."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, vocab, (length,), generator=generator).tolist()
