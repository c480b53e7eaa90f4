"""The simulated design against its models: statistics, efficiency, whole passes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dfvg_host.decode import DecodeParams
from dfvg_host.decode.engine import open_device
from dfvg_host.distill.heldout import EvalPrompt, eval_prompts
from dfvg_hw.messages import DraftLimits, Open, PassDone

from .decoding import open_engine, sampled
from .report import Report
from .setting import Setting, watched

if TYPE_CHECKING:
    from dfvg_host.compile import DraftImage
    from dfvg_host.decode.engine import Engine

__all__ = ["FREE", "agree", "differences", "eta", "same_passes"]

FREE = frozenset({"device", "wall_seconds", "rtl"})
"""Fields of the stats file in which emulator and RTL may differ."""

_PROMPTS = 4
_TOKENS = 16
_PASSES = 2
_CONTEXTS = (128, 224)
_ETA_TOKENS = 24


def differences(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Return the fields of two stats objects that differ and shouldn't."""
    return sorted(
        key for key in one.keys() | other.keys() if key not in FREE and one[key] != other[key]
    )


def _requests(tokens: int) -> dict[str, DecodeParams]:
    return {
        "greedy": DecodeParams(tokens, passes_per_round=_PASSES),
        "sampled": DecodeParams(tokens, sampled(1), passes_per_round=_PASSES),
    }


def _stats(
    name: str, engine: Engine, prompts: Sequence[EvalPrompt], requests: dict[str, DecodeParams]
) -> list[dict[str, Any]]:
    jobs = [(prompt, label) for prompt in prompts for label in requests]
    return [
        engine.decode(engine.encode(prompt.text, chat=True), requests[label]).to_dict()
        for prompt, label in watched(name, jobs)
    ]


def agree(setting: Setting) -> Report:
    """Decode the same prompts on emulator and RTL, greedy and sampled, and compare statistics.

    Returns
    -------
    Report
        Figures ``runs``, ``agree`` and the RTL's ``model_error``; a row for each run with the
        fields that differ.
    """
    prompts = setting.spread(eval_prompts(), _PROMPTS)
    requests = _requests(setting.tokens or _TOKENS)
    found: dict[str, list[dict[str, Any]]] = {}
    for device in ("emulator", "rtl"):
        with open_engine(setting, device=device) as engine:
            found[device] = _stats(f"agree, {device}", engine, prompts, requests)
    rows = []
    labels = [(prompt, label) for prompt in prompts for label in requests]
    for (prompt, label), one, other in zip(labels, found["emulator"], found["rtl"], strict=True):
        rows.append(
            {
                "kind": prompt.kind,
                "sampling": label,
                "tokens": len(one["tokens"]),
                "passes": sum(one["passes"].values()),
                "differ": ", ".join(differences(one, other)) or "nothing",
                "degraded": one["degraded"] + other["degraded"],
            }
        )
    report = found["rtl"][-1]["rtl"] or {}
    return Report(
        "agree",
        "every field of the statistics on emulator and RTL but " + ", ".join(sorted(FREE)),
        {"prompts": len(prompts), "tokens": setting.tokens or _TOKENS, "passes": _PASSES},
        {
            "runs": len(rows),
            "agree": sum(r["differ"] == "nothing" and not r["degraded"] for r in rows),
            "model_error": report.get("model_error"),
            "simulated_cycles_per_second": report.get("simulated_cycles_per_second"),
        },
        rows,
    )


def _long_prompt(engine: Engine, length: int) -> list[int]:
    """Return a prompt of exactly ``length`` tokens: evaluation prompts in a row, cut."""
    text = "\n\n".join(prompt.text for prompt in eval_prompts())
    return engine.encode(text)[:length]


def eta(setting: Setting) -> Report:
    """Count the design's cycles at context 128 to 256, with the default memory model.

    Returns
    -------
    Report
        Figures ``eta`` (of the least efficient run), ``model_error`` (the largest); a row for each
        context. Growth and catch-up passes count.
    """
    tokens = setting.tokens or _ETA_TOKENS
    request = DecodeParams(tokens, passes_per_round=_PASSES + 1, stop_tokens=())
    rows = []
    for context in setting.spread(list(_CONTEXTS)):
        # Its own device each: the report counts from power-up.
        with open_engine(setting, device="rtl") as engine:
            result = engine.decode(_long_prompt(engine, context), request)
        found = result.rtl or {}
        rows.append(
            {
                "context": f"{context} to {context + len(result.tokens)}",
                "passes": sum(result.passes.values()) - result.passes["prefill"],
                "rows_per_pass": result.nodes_run / max(1, result.passes["growth"]),
                "eta": found.get("eta"),
                "eta_model": result.eta,
                "model_error": found.get("model_error"),
                "cycles": found.get("cycles"),
            }
        )
    known: list[Any] = [row["model_error"] for row in rows]
    errors = [float(error) for error in known if error is not None]
    return Report(
        "eta",
        "ideal over actual cycles of the simulated core, growth and catch-up passes",
        {"config": "sim", "memory": "default", "tokens": tokens},
        {
            "eta": min((row["eta"] for row in rows if row["eta"] is not None), default=None),
            "model_error": max(errors, key=lambda error: abs(error), default=None),
        },
        rows,
    )


def same_passes(image: DraftImage, tokens: Sequence[int], passes: int) -> list[str]:
    """Run the first passes of a context on emulator and RTL; return what differs.

    Parameters
    ----------
    image: any draft.
    tokens: the context.
    passes: how many to run; with a context no longer than a pass has rows the second one grows.
    """
    messages = []
    for name in ("emulator", "rtl"):
        device = open_device(name, image, lambda _: None, {})
        try:
            device.send(Open(0, tuple(tokens), 1, DraftLimits(threshold=-(1 << 20))))
            for _ in range(passes):
                device.run_pass()
            messages.append(device.poll())
        finally:
            device.close()
    one, other = messages
    found = [f"{a} != {b}" for a, b in zip(one, other, strict=False) if a != b]
    if len(one) != len(other):
        found.append(f"{len(one)} messages != {len(other)}")
    if sum(isinstance(message, PassDone) for message in one) != passes:
        found.append(f"{passes} passes were asked for")
    return found
