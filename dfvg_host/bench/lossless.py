"""Identical text: many prompts, greedy and sampled, compared with target-only decoding."""

from __future__ import annotations

from dfvg_host.decode import DecodeParams
from dfvg_host.distill.heldout import eval_prompts

from .decoding import decode_all, open_engine, sampled, summarise
from .report import Report
from .setting import Setting

__all__ = ["lossless"]

_PROMPTS = 20
_TOKENS = 64
_SEEDS = (1, 2, 3)
_PASSES = 4  # enough for deep trees and wrong ones; more only take longer


def lossless(setting: Setting, passes: int | None = _PASSES) -> Report:
    """Compare drafted text with the target's own.

    Parameters
    ----------
    setting: 20 prompts of 64 tokens by default.
    passes: draft passes a round at most; None takes what the verifier profile leaves time for.

    Returns
    -------
    Report
        Figures ``runs``, ``identical``, ``ties`` (differences that rounding explains), ``wrong``
        (all others), ``tokens`` compared; a row for each kind of sampling.
    """
    prompts = setting.spread(eval_prompts(), _PROMPTS)
    tokens = setting.tokens or _TOKENS
    requests = {
        "greedy": DecodeParams(tokens, passes_per_round=passes, check=True),
        **{
            f"T 0.8, top-p 0.9, seed {seed}": DecodeParams(
                tokens, sampled(seed), passes_per_round=passes, check=True
            )
            for seed in _SEEDS
        },
    }
    with open_engine(setting) as engine:
        results = decode_all("lossless", setting, engine, prompts, requests)
    every = [result for part in results.values() for result in part]
    differ = [result for result in every if not result["identical"]]
    ties = sum(result["tie"] for result in differ)
    return Report(
        "lossless",
        "drafted text against target-only text, fp32, emulator",
        {"prompts": len(prompts), "tokens": tokens, "passes_per_round": passes},
        {
            "runs": len(every),
            "identical": len(every) - len(differ),
            "ties": ties,
            "wrong": len(differ) - ties,
            "degraded": sum(result["degraded"] for result in every),
            "tokens": sum(len(result["tokens"]) for result in every),
        },
        [
            {
                "sampling": label,
                "identical": sum(bool(result["identical"]) for result in part),
                "of": len(part),
                "acceptance_length": summarise(part)["acceptance_length"],
            }
            for label, part in results.items()
        ],
        [
            f"differs from token {result['divergence']['position']} on: {result['divergence']}"
            for result in differ
        ],
    )
