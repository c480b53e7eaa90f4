"""The short table at the end of a run."""

from __future__ import annotations

from collections.abc import Sequence

from dfvg_host.timing import VerifierProfile

from .result import Result

__all__ = ["summary", "total"]


def summary(result: Result, profile: VerifierProfile) -> list[str]:
    """Return the lines for one result."""
    lines = [_head(result)]
    if result.acceptance_per_depth:
        shares = " ".join(f"{share:.2f}" for share in result.acceptance_per_depth[:12])
        lines.append(f"  accepted by depth  {shares}")
    if result.device is not None:
        lines += _device_lines(result)
    lines += _speed_lines(result, profile)
    if result.identical is not None:
        lines.append(f"identical to target-only: {_verdict(result)}")
    if result.degraded:
        lines.append("the draft device was given up during this run; the text is not affected")
    if result.device is not None:
        lines.append(
            f"The device is simulated: {result.wall_seconds:.1f} s on this machine stand for "
            f"{result.virtual_seconds:.2f} s of virtual time; only virtual speed means anything."
        )
    return lines


def _head(result: Result) -> str:
    text = f"{len(result.tokens)} tokens in {result.verify_steps} verify steps"
    if result.acceptance_length is not None:
        text += f": acceptance length {result.acceptance_length:.2f}"
    return f"{text} (ended by {result.finish_reason or 'interruption'})"


def _device_lines(result: Result) -> list[str]:
    rounds = max(1, result.verify_steps - 1)
    passes = ", ".join(f"{count} {kind}" for kind, count in result.passes.items() if count)
    drafted = sum(result.passes.values()) - result.passes["prefill"]
    lines = [f"  draft passes       {passes or 'none'}: {drafted / rounds:.2f} a round"]
    verdicts = sum(result.hits.values())
    hits = ", ".join(f"{count} {kind}" for kind, count in result.hits.items())
    share = f": {result.hits['expanded'] / verdicts:.0%} expanded" if verdicts else ""
    lines.append(f"  hits               {hits}{share}")
    if result.eta is not None:
        lines.append(f"  eta                {result.eta:.3f} (bytes alone {result.eta_bytes:.3f})")
    if result.rtl is not None and result.rtl.get("eta") is not None:
        lines.append(f"  eta in the RTL     {result.rtl['eta']:.3f}")
    return lines


def _speed_lines(result: Result, profile: VerifierProfile) -> list[str]:
    if result.virtual_tokens_per_second is None or result.baseline is None:
        return []
    plain, drafted = result.baseline["plain"], result.baseline["same_device_draft"]
    speed = result.virtual_tokens_per_second
    return [
        f"  virtual speed      {speed:.1f} tokens/s: {speed / plain:.2f}x plain decoding "
        f"({plain:.1f}), {speed / drafted:.2f}x drafting on the verifier ({drafted:.1f})",
        f"                     profile {profile.name}, {profile.kind}: {profile.title}",
    ]


def _verdict(result: Result) -> str:
    if result.identical:
        return "yes"
    found = result.divergence or {}
    kind = "tie, rounding explains it" if result.tie else "NOT a tie"
    return (
        f"no, from token {found.get('position')} on (margin {_figure(found.get('margin'))}, "
        f"largest logit difference {_figure(found.get('max_logit_diff'))}: {kind})"
    )


def _figure(value: float | None) -> str:
    return "infinite" if value is None else f"{value:.3g}"


def total(results: Sequence[Result]) -> list[str]:
    """Return the lines for several results."""
    tokens = sum(len(result.tokens) for result in results)
    steps = sum(result.verify_steps for result in results)
    lengths = [r.acceptance_length for r in results if r.acceptance_length is not None]
    mean = sum(lengths) / len(lengths) if lengths else 0.0
    lines = [
        f"{len(results)} prompts, {tokens} tokens in {steps} verify steps: "
        f"mean acceptance length {mean:.2f}"
    ]
    checked = [result for result in results if result.identical is not None]
    if checked:
        same = sum(bool(result.identical) for result in checked)
        lines.append(f"identical to target-only: {same} of {len(checked)}")
    lost = sum(result.degraded > 0 for result in results)
    if lost:
        lines.append(f"the draft device was given up in {lost} of {len(results)} runs")
    return lines
