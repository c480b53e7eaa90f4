"""Acceptance length in the real decode loop: held-out prompts, the demo, noise, self-drafting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dfvg_host.decode import DecodeParams
from dfvg_host.distill.heldout import EvalPrompt, demo_prompts, eval_prompts

from .decoding import decode_all, kinds, open_engine, summarise
from .report import Report
from .setting import Setting

if TYPE_CHECKING:
    from dfvg_host.compile import DraftImage

__all__ = ["acceptance", "demo", "noise", "noise_image", "selfdraft"]

BUDGET = 16
PASSES = 8
SELF_PASSES = 12
DEMO_PASSES = 3  # as in the Makefile
_TOKENS = 64
_HELD_OUT_TOKENS = 128  # as `dfvg distill evaluate`; shorter texts accept a little less


def _request(
    setting: Setting, schedule: str, passes: int | None, tokens: int = _TOKENS
) -> DecodeParams:
    return DecodeParams(
        max_new_tokens=setting.tokens or tokens,
        tree_budget=BUDGET,
        passes_per_round=passes,
        schedule=schedule,
    )


def _settings(prompts: Sequence[EvalPrompt], request: DecodeParams, **more: Any) -> dict[str, Any]:
    return {
        "prompts": len(prompts),
        "tokens": request.max_new_tokens,
        "budget": request.tree_budget,
        **more,
    }


def acceptance(
    setting: Setting, schedules: Sequence[str] = ("lockstep", "overlap"), default: int | None = None
) -> Report:
    """Measure the shipped draft on the held-out prompts.

    Parameters
    ----------
    setting: 128 tokens a prompt by default.
    schedules: ``lockstep`` runs 8 passes a round, ``overlap`` what the verifier profile leaves
        time for.
    default: prompts if the setting has no limit; None takes all.

    Returns
    -------
    Report
        Figures of `summarise`, each with its schedule in front; a row for each kind of prompt.
    """
    prompts = setting.spread(eval_prompts(), default)
    requests = {
        name: _request(setting, name, PASSES if name == "lockstep" else None, _HELD_OUT_TOKENS)
        for name in schedules
    }
    with open_engine(setting) as engine:
        results = decode_all("acceptance", setting, engine, prompts, requests)
    by_kind = {name: kinds(results[name]) for name in schedules}
    report = Report(
        "acceptance",
        "acceptance length of the shipped draft on held-out prompts, emulator",
        _settings(prompts, requests[schedules[0]], lockstep_passes=PASSES),
        rows=[
            {"kind": kind, **{name: by_kind[name][kind] for name in schedules}}
            for kind in by_kind[schedules[0]]
        ],
        notes=["low_95, high_95: bootstrap over prompts of the mean"],
    )
    for name in schedules:
        found = summarise(results[name])
        report.figures |= {f"{name}.{key}": value for key, value in found.items()}
    return report


def demo(setting: Setting) -> Report:
    """Measure the shipped draft on the demo's prompts, decoded as `make demo` does."""
    prompts = setting.spread(demo_prompts())
    request = _request(setting, "overlap", DEMO_PASSES)
    with open_engine(setting) as engine:
        results = decode_all("demo", setting, engine, prompts, {"demo": request})["demo"]
    return Report(
        "demo",
        "acceptance length of the shipped draft on the demo's prompts, emulator",
        _settings(prompts, request, passes=DEMO_PASSES),
        summarise(results),
        [
            {"prompt": prompt.text[:50], "acceptance_length": result["acceptance_length"]}
            for prompt, result in zip(prompts, results, strict=True)
        ],
    )


def noise_image(target: Any, seed: int = 1) -> DraftImage:
    """Compile the shipped draft with every weight matrix replaced by noise of its own deviation."""
    import torch

    from dfvg_host.compile import compile_model
    from dfvg_host.compile.source import float_model
    from dfvg_host.distill.checkpoint import load_draft, shipped_draft
    from dfvg_hw.config import get_config

    draft = load_draft(shipped_draft(), target.model)
    generator = torch.Generator().manual_seed(seed)
    for name, weight in draft.model.named_parameters():
        if weight.ndim == 2 and "embed_tokens" not in name:
            noise = torch.randn(weight.shape, generator=generator)
            weight.data = noise * weight.data.std()
    model = float_model(draft.model, draft.output_ids, "noise")
    limit = draft.config.max_position_embeddings
    return compile_model(model, get_config("sim"), limit, {"name": "noise", "seed": seed})


def noise(setting: Setting, default: int | None = None) -> Report:
    """Replace the draft by noise: acceptance falls to about 1, the text stays.

    Returns
    -------
    Report
        Figures ``noise`` and ``draft`` (acceptance lengths) and ``same_text`` (prompts on which
        both wrote the same tokens).
    """
    prompts = setting.spread(demo_prompts(), default)
    request = _request(setting, "overlap", DEMO_PASSES)
    with open_engine(setting) as engine:
        real = decode_all("noise-draft", setting, engine, prompts, {"draft": request})["draft"]
    with open_engine(setting, noise_image(setting.load())) as engine:
        fake = decode_all("noise", setting, engine, prompts, {"noise": request})["noise"]
    same = [a["tokens"] == b["tokens"] for a, b in zip(real, fake, strict=True)]
    return Report(
        "noise",
        "the draft's weights replaced by noise: what changes is speed, not text",
        _settings(prompts, request),
        {
            "noise": summarise(fake)["acceptance_length"],
            "draft": summarise(real)["acceptance_length"],
            "same_text": sum(same),
            "prompts": len(prompts),
        },
        [
            {
                "prompt": prompt.text[:50],
                "draft": a["acceptance_length"],
                "noise": b["acceptance_length"],
                "same text": equal,
            }
            for prompt, a, b, equal in zip(prompts, real, fake, same, strict=True)
        ],
    )


def selfdraft(setting: Setting, default: int | None = None) -> Report:
    """Draft with the target itself, in the device's integers: how deep trees can get.

    Returns
    -------
    Report
        Figures of `summarise`; a row for each prompt.
    """
    prompts = setting.spread(eval_prompts(), default)
    request = _request(setting, "lockstep", SELF_PASSES)
    target = setting.load()
    with open_engine(setting, target.name) as engine:
        results = decode_all("selfdraft", setting, engine, prompts, {"self": request})["self"]
    return Report(
        "selfdraft",
        "acceptance length of the target as its own draft, emulator, lockstep",
        _settings(prompts, request, passes=SELF_PASSES),
        summarise(results),
        [
            {
                "kind": result["kind"],
                "tokens": len(result["tokens"]),
                "acceptance_length": result["acceptance_length"],
                "passes": result["passes"]["growth"] + result["passes"]["catchup"],
            }
            for result in results
        ],
    )
