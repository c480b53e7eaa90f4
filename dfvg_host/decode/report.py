"""The short table at the end of a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from dfvg_host.timing import VerifierProfile

from .result import Result

__all__ = ["summary", "total"]


def summary(result: Result, profile: VerifierProfile) -> list[str]:
    """Return the lines for one result."""
    lines = [_head(result)]
    if result.acceptance_per_depth:
        shares = " ".join(f"{share:.2f}" for share in result.acceptance_per_depth[:12])
        lines.append(f"  accepted by depth  {shares}")
    lines += _figures([result], profile)
    if result.identical is not None:
        lines.append(f"identical to target-only: {_verdict(result)}")
    if result.degraded:
        lines.append("the draft device was given up during this run; the text is not affected")
    return [*lines, *_simulated([result])]


def total(results: Sequence[Result], profile: VerifierProfile) -> list[str]:
    """Return the lines for several results: means over prompts, all else over all of them."""
    tokens = sum(len(result.tokens) for result in results)
    steps = sum(result.verify_steps for result in results)
    lengths = [r.acceptance_length for r in results if r.acceptance_length is not None]
    mean = sum(lengths) / len(lengths) if lengths else 0.0
    lines = [
        f"{len(results)} prompts, {tokens} tokens in {steps} verify steps: "
        f"mean acceptance length {mean:.2f}",
        *_figures(results, profile),
    ]
    checked = [result for result in results if result.identical is not None]
    if checked:
        same = sum(bool(result.identical) for result in checked)
        lines.append(f"identical to target-only: {same} of {len(checked)}")
    lost = sum(result.degraded > 0 for result in results)
    if lost:
        lines.append(f"the draft device was given up in {lost} of {len(results)} runs")
    return [*lines, *_simulated(results)]


def _head(result: Result) -> str:
    text = f"{len(result.tokens)} tokens in {result.verify_steps} verify steps"
    if result.acceptance_length is not None:
        text += f": acceptance length {result.acceptance_length:.2f}"
    return f"{text} (ended by {result.finish_reason or 'interruption'})"


def _figures(results: Sequence[Result], profile: VerifierProfile) -> list[str]:
    """Draft passes, hits, eta and speeds of some runs taken together."""
    drafted = [result for result in results if result.device is not None]
    return [
        *(_pass_lines(drafted) if drafted else []),
        *_eta_lines(drafted),
        *_speed_lines(results, profile),
    ]


def _pass_lines(results: Sequence[Result]) -> list[str]:
    passes, hits = _added(r.passes for r in results), _added(r.hits for r in results)
    rounds = max(1, sum(max(0, result.verify_steps - 1) for result in results))
    growth = sum(passes.values()) - passes["prefill"]
    counts = ", ".join(f"{count} {kind}" for kind, count in passes.items() if count)
    found = ", ".join(f"{count} {kind}" for kind, count in hits.items())
    shares = " + ".join(f"{count / rounds:.2f}" for count in hits.values())
    return [
        f"  draft passes       {counts or 'none'}: {growth / rounds:.2f} a round",
        f"  hits               {found}: {shares} a round",
    ]


def _added(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for one in counts:
        for key, count in one.items():
            found[key] = found.get(key, 0) + count
    return found


def _eta_lines(results: Sequence[Result]) -> list[str]:
    lines = []
    cycles = sum(result.device_cycles for result in results)
    if cycles:
        ideal = sum(result.device_cycles_ideal for result in results)
        words = sum((result.eta_bytes or 0.0) * result.device_cycles for result in results)
        lines.append(
            f"  eta                {ideal / cycles:.3f} (bytes alone {words / cycles:.3f})"
        )
    counted = [r.rtl for r in results if r.rtl is not None and r.rtl.get("eta") is not None]
    if counted:
        cycles = sum(rtl["cycles"] for rtl in counted)
        ideal = sum(rtl["eta"] * rtl["cycles"] for rtl in counted)
        lines.append(f"  eta in the RTL     {ideal / cycles:.3f}")
    return lines


def _speed_lines(results: Sequence[Result], profile: VerifierProfile) -> list[str]:
    """Speeds of the runs that wrote something: all tokens over all virtual time."""
    tokens, seconds, plain, drafted = 0, 0.0, 0.0, 0.0
    for result in results:
        if result.virtual_tokens_per_second is None or result.baseline is None:
            continue
        tokens += len(result.tokens)
        seconds += result.virtual_seconds
        plain += len(result.tokens) / result.baseline["plain"]
        drafted += len(result.tokens) / result.baseline["same_device_draft"]
    if not tokens:
        return []
    return [
        f"  virtual speed      {tokens / seconds:.1f} tokens/s: {plain / seconds:.2f}x plain "
        f"decoding ({tokens / plain:.1f}), {drafted / seconds:.2f}x drafting on the verifier "
        f"({tokens / drafted:.1f})",
        f"                     profile {profile.name}, {profile.kind}: {profile.title}",
    ]


def _simulated(results: Sequence[Result]) -> list[str]:
    drafted = [result for result in results if result.device is not None]
    if not drafted:
        return []
    wall = sum(result.wall_seconds for result in drafted)
    virtual = sum(result.virtual_seconds for result in drafted)
    return [
        f"The device is simulated: {wall:.1f} s on this machine stand for {virtual:.2f} s of "
        "virtual time; only virtual speed means anything."
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
