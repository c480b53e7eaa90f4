"""The outcome of one request: text, tokens and statistics. Meanings: docs/stats.md."""

from __future__ import annotations

import platform
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from dfvg_host.timing import baseline
from dfvg_hw.errors import DfvgError
from dfvg_hw.version import __version__

from .stats import DeviceCounters

if TYPE_CHECKING:
    from .loop import _Run

__all__ = ["Result", "build_result"]


@dataclass(frozen=True)
class Result:
    """One finished (or interrupted) request; the fields are the stats file's, in its order.

    See docs/stats.md for each meaning. `finish_reason` is None only if the run was interrupted.
    `tie` and `profile_title` belong to the summary and aren't written.
    """

    tokens: list[int]
    text: str
    finish_reason: str | None
    identical: bool | None
    divergence: dict[str, int | float | None] | None
    degraded: int
    verify_steps: int
    acceptance_length: float | None
    acceptance_per_depth: list[float]
    candidates: int
    nodes_run: int
    nodes_verified: int
    passes: dict[str, int]
    hits: dict[str, int]
    device_cycles: int
    device_cycles_ideal: int
    eta: float | None
    eta_bytes: float | None
    idle: int
    virtual_seconds: float
    virtual_tokens_per_second: float | None
    rtl: Mapping[str, Any] | None
    baseline: dict[str, float] | None
    wall_seconds: float
    device: str | None
    config: str | None
    config_hash: str | None
    verifier_profile: str
    dtype: str
    target: str
    draft: str | None
    seed: int
    versions: dict[str, str]
    tie: bool = field(default=False, metadata={"written": False})

    def to_dict(self) -> dict[str, Any]:
        """Return the object of the stats file, keys in their documented order."""
        return {
            item.name: getattr(self, item.name)
            for item in fields(self)
            if item.metadata.get("written", True)
        }


def _versions() -> dict[str, str]:
    found = {"dfvg": __version__, "python": platform.python_version()}
    for package in ("torch", "transformers"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "unknown"
    return found


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _rtl_report(device: Any) -> Mapping[str, Any] | None:
    """Ask a simulated card for its own cycle counts; None if it has none (any more)."""
    report = getattr(device, "rtl_report", None)
    if report is None:
        return None
    try:
        found: Mapping[str, Any] = report()
    except DfvgError:  # the simulation died; the text is complete all the same
        return None
    return found


def build_result(run: _Run, draft: str | None) -> Result:
    """Put together what a run has counted so far."""
    tokens, steps = list(run.output.tokens), run.steps
    counters = run.drafter.counters if run.drafter else DeviceCounters()
    reference = run.reference
    divergence = reference.divergence if reference else None
    info = run.device.info if run.device is not None else None
    rival = baseline(run.profile, len(run.prompt), len(tokens), steps.trees)
    return Result(
        tokens=tokens,
        text=run.output.text,
        finish_reason=run.output.finish_reason,
        identical=reference.identical if reference else None,
        divergence=divergence.to_dict() if divergence else None,
        degraded=run.drafter.degraded if run.drafter else 0,
        verify_steps=steps.steps,
        acceptance_length=_ratio(len(tokens), steps.steps),
        acceptance_per_depth=steps.per_depth(),
        candidates=counters.candidates,
        nodes_run=counters.nodes_run,
        nodes_verified=steps.nodes,
        passes=counters.passes,
        hits=counters.hits,
        device_cycles=counters.cycles,
        device_cycles_ideal=counters.ideal,
        eta=_ratio(counters.ideal, counters.cycles),
        eta_bytes=_ratio(counters.ideal_bytes, counters.cycles),
        idle=counters.idle,
        virtual_seconds=run.clock.seconds,
        virtual_tokens_per_second=_ratio(len(tokens), run.clock.seconds),
        rtl=_rtl_report(run.device),
        baseline=rival.to_dict() if rival else None,
        wall_seconds=time.perf_counter() - run.started,
        device=info.name if info else None,
        config=info.config.name if info else None,
        config_hash=f"0x{info.config_hash:08x}" if info else None,
        verifier_profile=run.profile.name,
        dtype=run.target.dtype,
        target=run.target.name,
        draft=draft,
        seed=run.params.sampling.seed,
        versions=_versions(),
        tie=bool(divergence and divergence.tie),
    )
