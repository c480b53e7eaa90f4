"""Runs of the real decode loop over prompts, and what they have in common."""

from __future__ import annotations

import dataclasses
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dfvg_host.decode import DecodeParams
from dfvg_host.decode.engine import Engine
from dfvg_host.distill.heldout import EvalPrompt
from dfvg_host.verify import SamplingParams

from .setting import Setting, watched

if TYPE_CHECKING:
    from dfvg_host.compile import DraftImage

__all__ = ["decode_all", "interval", "kinds", "summarise"]

_RESAMPLES = 2000
_KEPT = (
    "tokens", "finish_reason", "identical", "divergence", "degraded", "verify_steps",
    "acceptance_length", "acceptance_per_depth", "candidates", "nodes_run", "nodes_verified",
    "passes", "hits", "device_cycles", "device_cycles_ideal", "idle", "virtual_tokens_per_second",
    "baseline", "rtl", "wall_seconds",
)  # fmt: skip


def decode_all(
    name: str,
    setting: Setting,
    engine: Engine,
    prompts: Sequence[EvalPrompt],
    requests: Mapping[str, DecodeParams],
) -> dict[str, list[dict[str, Any]]]:
    """Decode every prompt with every request; interrupted, the same call goes on where it was.

    Parameters
    ----------
    name: of the benchmark, for its journal.
    setting: where the journal lies.
    engine: target and device. Prompts are put into the target's chat template, if it has one.
    prompts: their kinds end up in the results.
    requests: parameters by label.

    Returns
    -------
    dict
        By label, a mapping for each prompt: ``kind`` and the statistics of docs/stats.md.
    """
    digest = engine.device.info.image_digest if engine.device else ""
    kept = {label: dataclasses.asdict(params) for label, params in requests.items()}
    device = engine.device.info.name if engine.device else ""
    models = (engine.target.digest, engine.target.dtype, engine.profile.name, digest, device)
    journal = setting.journal(name, {"models": models, "requests": kept})
    chat = bool(getattr(engine.target.tokenizer, "chat_template", None))
    results: dict[str, list[dict[str, Any]]] = {label: [] for label in requests}
    jobs = [(prompt, label) for prompt in prompts for label in requests]
    for prompt, label in watched(name, jobs):

        def run(prompt: EvalPrompt = prompt, label: str = label) -> dict[str, Any]:
            result = engine.decode(engine.encode(prompt.text, chat), requests[label])
            found = result.to_dict()
            return {key: found[key] for key in _KEPT} | {"tie": result.tie}

        done = journal.get(f"{label}: {prompt.text}", run)
        results[label].append({"kind": prompt.kind, **done})
    return results


def open_engine(
    setting: Setting, draft: str | DraftImage | None = None, device: str = "emulator"
) -> Engine:
    """Return an engine for the setting's target, which is loaded once."""
    return Engine(setting.load(), draft, device)


def sampled(seed: int) -> SamplingParams:
    """Return the sampling that lossless decoding is shown with."""
    return SamplingParams(temperature=0.8, top_p=0.9, seed=seed)


def interval(values: Sequence[float], seed: int = 1) -> tuple[float, float]:
    """Return the bootstrap 95 % interval of the mean of ``values``, at least one."""
    rng = random.Random(seed)
    means = sorted(sum(rng.choices(values, k=len(values))) / len(values) for _ in range(_RESAMPLES))
    return means[int(0.025 * _RESAMPLES)], means[int(0.975 * _RESAMPLES)]


def kinds(results: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the mean acceptance length by kind of prompt, in order of appearance."""
    found: dict[str, list[float]] = defaultdict(list)
    for result in results:
        found[result["kind"]].append(result["acceptance_length"])
    return {kind: sum(values) / len(values) for kind, values in found.items()}


def summarise(results: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return acceptance (mean, interval, pooled), passes a round and speeds of some runs."""
    lengths = [result["acceptance_length"] for result in results]
    steps = sum(result["verify_steps"] for result in results)
    rounds = max(1, steps - len(results))
    low, high = interval(lengths)
    tokens = sum(len(result["tokens"]) for result in results)
    drafted = sum(sum(r["passes"].values()) - r["passes"]["prefill"] for r in results)
    hits = sum(sum(r["hits"].values()) for r in results)
    ratio = [r["virtual_tokens_per_second"] / r["baseline"]["plain"] for r in results]
    rival = [r["virtual_tokens_per_second"] / r["baseline"]["same_device_draft"] for r in results]
    return {
        "acceptance_length": sum(lengths) / len(lengths),
        "low_95": low,
        "high_95": high,
        "pooled": tokens / steps,
        "passes_per_round": drafted / rounds,
        "nodes_verified_per_round": sum(r["nodes_verified"] for r in results) / rounds,
        "expanded_hits": sum(r["hits"]["expanded"] for r in results) / max(1, hits),
        "virtual_speed_over_plain": sum(ratio) / len(ratio),
        "virtual_speed_over_draft_on_verifier": sum(rival) / len(rival),
        "wall_seconds": sum(r["wall_seconds"] for r in results),
    }
