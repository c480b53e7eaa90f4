"""Speed on this machine, as ratios within one run: simulation, and verification by node count."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dfvg_host.distill.heldout import eval_prompts
from dfvg_host.verify import TreeVerifier
from dfvg_hw.messages import DraftLimits, Open

from .decoding import open_engine
from .report import Report
from .setting import Setting, watched

if TYPE_CHECKING:
    from dfvg_host.device.protocol import VirtualTimeDevice

__all__ = ["simspeed", "verify"]

_ROUNDS = 5
_CONTEXT = 128
_NODES = (0, 1, 2, 4, 8, 16, 32, 64, 128)


def _core_seconds(device: VirtualTimeDevice) -> tuple[int, float]:
    """Run a pass of the simulated core; cycles simulated and processor time."""
    card = device.card  # type: ignore[attr-defined]
    before, begin = card.cycles, time.process_time()
    device.run_pass()
    return card.cycles - before, time.process_time() - begin


def simspeed(setting: Setting) -> Report:
    """Simulate whole passes of the design and a bare array of 1,024 multipliers in turns.

    Returns
    -------
    Report
        Figures ``core`` and ``bare_array``, cycles per second of processor time (the best round
        of each), and their ``ratio``.
    """
    from sim.bench.array_speed import bare_array

    rounds = setting.limit or _ROUNDS
    bare = bare_array()
    core: list[float] = []
    with open_engine(setting, device="rtl") as engine:
        assert engine.device is not None
        tokens = engine.encode(eval_prompts()[0].text)[: engine.device.info.config.rows]
        engine.device.send(Open(0, tuple(tokens), 1, DraftLimits(threshold=-(1 << 20))))
        engine.device.run_pass()  # the first one also fills caches
        bare.run(20_000)
        rows = []
        for number in watched("simspeed", range(rounds)):
            cycles, seconds = _core_seconds(engine.device)
            core.append(cycles / seconds)
            bare.run(max(1000, int(bare.best)))
            rows.append({"round": number + 1, "core": core[-1], "bare_array_best": bare.best})
    return Report(
        "simspeed",
        "simulated cycles per second on one core: growth passes of the sim core, a bare array",
        {"config": "sim", "rounds": rounds, "multipliers": bare.macs},
        {"core": max(core), "bare_array": bare.best, "ratio": max(core) / bare.best},
        rows,
    )


def _median(run: Callable[[], Any], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def _chain_or_bush(nodes: int) -> list[int]:
    """Return parents of a tree as rounds see it: two children a node, breadth first."""
    return [index // 2 - 1 if index > 1 else -1 for index in range(nodes)]


def verify(setting: Setting, profile: Path | None = None) -> Report:
    """Time the target's pass by node count on this machine.

    Parameters
    ----------
    setting: its limit is the number of repeats, 7 by default.
    profile: where to write the figures as a verifier profile; None writes none.

    Returns
    -------
    Report
        Figures by node count relative to a pass without nodes; milliseconds in the rows.
    """
    repeats = setting.limit or 7
    target = setting.load()
    text = "\n\n".join(prompt.text for prompt in eval_prompts())
    tokens = list(target.tokenizer(text).input_ids)[:_CONTEXT]
    verifier = TreeVerifier(target.model)
    verifier.prefill(tokens)

    def once(nodes: int) -> None:
        verifier.score(tokens[-1], [tokens[i % len(tokens)] + i for i in range(nodes)],
                       _chain_or_bush(nodes))  # fmt: skip
        verifier.rollback()

    once(max(_NODES))
    seconds = {nodes: _median(lambda n=nodes: once(n), repeats) for nodes in _NODES}  # type: ignore[misc]
    prefill = _median(lambda: TreeVerifier(target.model, probe=False).prefill(tokens), 2)
    report = Report(
        "verify",
        f"one target pass at context {_CONTEXT} by number of tree nodes, this machine",
        {"target": target.name, "dtype": target.dtype, "repeats": repeats},
        {f"{nodes} nodes": seconds[nodes] / seconds[0] for nodes in _NODES},
        [
            {
                "nodes": nodes,
                "milliseconds": 1e3 * seconds[nodes],
                "relative": seconds[nodes] / seconds[0],
                "tokens/s if all were right": (nodes + 1) / seconds[nodes],
            }
            for nodes in _NODES
        ],
        [f"prefill of {_CONTEXT} tokens: {1e3 * prefill:.0f} ms"],
    )
    if profile is not None:
        _write_profile(profile, target.name, seconds, prefill)
    return report


def _write_profile(path: Path, target: str, seconds: dict[int, float], prefill: float) -> None:
    """Write measured latencies as a profile; latency may not fall with the node count."""
    ascending, highest = {}, 0.0
    for nodes in sorted(seconds):
        highest = max(highest, seconds[nodes])
        ascending[str(nodes)] = round(1e6 * highest, 1)
    data = {
        "format": 1,
        "name": path.stem,
        "title": f"{target} on this machine",
        "measured": True,
        "origin": f"python -m dfvg_host.bench verify, context {_CONTEXT}",
        "verify_us": ascending,
        "prefill_fixed_us": ascending["0"],
        "prefill_token_us": max(0.0, round(1e6 * (prefill - seconds[0]) / _CONTEXT, 2)),
        "draft_us": round(1e6 * seconds[0] / 10, 1),
    }
    path.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
