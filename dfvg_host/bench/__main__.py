"""`python -m dfvg_host.bench [NAME] [options]`, also `make bench`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from dfvg_hw.errors import DfvgError, UsageError

from .report import Report
from .setting import Setting

__all__ = ["BENCHMARKS", "main"]

_OUT = Path("build/bench")


def _acceptance(setting: Setting) -> Report:
    from .acceptance import acceptance

    return acceptance(setting)


def _demo(setting: Setting) -> Report:
    from .acceptance import demo

    return demo(setting)


def _noise(setting: Setting) -> Report:
    from .acceptance import noise

    return noise(setting)


def _selfdraft(setting: Setting) -> Report:
    from .acceptance import selfdraft

    return selfdraft(setting)


def _lossless(setting: Setting) -> Report:
    from .lossless import lossless

    return lossless(setting)


def _agree(setting: Setting) -> Report:
    from .rtl import agree

    return agree(setting)


def _eta(setting: Setting) -> Report:
    from .rtl import eta

    return eta(setting)


def _simspeed(setting: Setting) -> Report:
    from .speed import simspeed

    return simspeed(setting)


def _verify(setting: Setting) -> Report:
    from .speed import verify

    return verify(setting)


BENCHMARKS: dict[str, tuple[Callable[[Setting], Report], int, str]] = {
    "acceptance": (_acceptance, 13, "shipped draft on held-out prompts, lockstep and overlap"),
    "demo": (_demo, 4, "shipped draft on the demo's prompts"),
    "noise": (_noise, 2, "the draft replaced by noise: speed falls, text stays"),
    "selfdraft": (_selfdraft, 2, "the target as its own draft"),
    "lossless": (_lossless, 2, "drafted text against target-only text, greedy and sampled"),
    "agree": (_agree, 1, "emulator against RTL, every field of the statistics"),
    "eta": (_eta, 1, "efficiency of the simulated core at context 128 to 256"),
    "simspeed": (_simspeed, 3, "speed of the simulation beside a bare array"),
    "verify": (_verify, 5, "the target's pass by node count on this machine"),
}
"""By name: what runs it, its limit when all are run, one line about it."""


def _count(name: str) -> Callable[[str], int]:
    def convert(text: str) -> int:
        if not text.isdigit() or int(text) < 1:
            raise argparse.ArgumentTypeError(f"{name} is {text!r}: expected a whole number from 1")
        return int(text)

    return convert


def _parser() -> argparse.ArgumentParser:
    listed = "\n".join(f"  {name:<12}{entry[2]}" for name, entry in BENCHMARKS.items())
    parser = argparse.ArgumentParser(
        prog="python -m dfvg_host.bench",
        description="Measure. Without NAME: all benchmarks, each on a small part of its items.",
        epilog=f"benchmarks:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("names", metavar="NAME", nargs="*", help="benchmarks to run in full")
    parser.add_argument(
        "--limit", metavar="N", type=_count("--limit"), help="prompts (or rounds), evenly spread"
    )
    parser.add_argument("--tokens", metavar="N", type=_count("--tokens"), help="most tokens a text")
    parser.add_argument("--target", metavar="M", help="target model, see `dfvg decode --help`")
    parser.add_argument(
        "--threads", metavar="N", type=_count("--threads"), default=1, help="of the target"
    )
    parser.add_argument(
        "--out", metavar="DIR", type=Path, default=_OUT, help=f"results (default: {_OUT})"
    )
    parser.add_argument("--fresh", action="store_true", help="do not go on with an interrupted run")
    parser.add_argument(
        "--profile", metavar="FILE", type=Path, help="`verify`: write a verifier profile, too"
    )
    return parser


def _run(argv: Sequence[str] | None) -> int:
    args = _parser().parse_args(argv)
    unknown = [name for name in args.names if name not in BENCHMARKS]
    if unknown:
        raise UsageError(f"unknown benchmark {unknown[0]!r}: accepted are {', '.join(BENCHMARKS)}")
    if args.profile is not None and args.names != ["verify"]:
        raise UsageError(f"--profile {args.profile} belongs to the benchmark verify alone")
    base = Setting(args.target, args.threads, args.limit, args.tokens, args.out, args.fresh)
    failed = []
    for name in args.names or BENCHMARKS:
        run, small, _ = BENCHMARKS[name]
        setting = base if args.names or base.limit else replace(base, limit=small)
        try:
            report = _with_profile(setting, args.profile) if args.profile else run(setting)
        except DfvgError as error:
            if args.names:
                raise
            failed.append(name)
            print(f"{name}: {error}", file=sys.stderr, flush=True)
            continue
        print("\n".join(report.lines()), flush=True)
        print(f"  written to {report.write(args.out)}\n", flush=True)
    return 1 if failed else 0


def _with_profile(setting: Setting, profile: Path) -> Report:
    from .speed import verify

    return verify(setting, profile)


def main(argv: Sequence[str] | None = None) -> int:
    """Run benchmarks; returns the exit status: 0, 1 if one of several failed, 2 for bad input."""
    try:
        return _run(argv)
    except DfvgError as error:
        print(f"dfvg bench: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("dfvg bench: interrupted; the same command goes on from here", file=sys.stderr)
        return 130


if __name__ == "__main__":
    raise SystemExit(main())
