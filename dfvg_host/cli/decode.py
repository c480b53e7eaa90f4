"""`dfvg decode`: its options. The work is in `dfvg_host.decode.run`."""

from __future__ import annotations

import argparse
import sys

from dfvg_host.cli.values import existing_file, parse
from dfvg_hw.errors import UsageError

__all__ = ["add_arguments", "run"]


def _add_models(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("models and device")
    group.add_argument(
        "--target",
        metavar="M",
        default=None,
        help="model that decides the text: a folder, a GGUF file, a hub name or a packaged model "
        "(default: smollm2-135m-instruct)",
    )
    group.add_argument(
        "--draft",
        metavar="M",
        default=None,
        help="a model, a compiled X.dfvg, or `none` for target-only decoding "
        "(default: the draft shipped for the target)",
    )
    group.add_argument(
        "--device",
        metavar="D",
        type=parse("device"),
        default="emulator",
        help="`emulator` (bit-exact model) or `rtl` (the design, cycle by cycle, in Verilator)",
    )
    group.add_argument("--config", metavar="C", default="sim", help="device configuration")
    group.add_argument(
        "--dtype",
        metavar="T",
        type=parse("dtype"),
        default="fp32",
        help="the target's number format: fp32 (identical text is promised) or bf16 (reported)",
    )
    group.add_argument(
        "--threads",
        metavar="N",
        type=parse("threads"),
        default=1,
        help="CPU threads of the target",
    )


def _add_prompts(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("prompts and sampling")
    source = group.add_mutually_exclusive_group(required=True)
    source.add_argument("--prompt", metavar="P", help="the prompt")
    source.add_argument(
        "--prompt-file",
        metavar="F",
        type=existing_file("--prompt-file"),
        help="a file that is one prompt",
    )
    source.add_argument(
        "--jsonl",
        metavar="F",
        type=existing_file("--jsonl"),
        help='a file with one object a line: {"prompt": ...}',
    )
    group.add_argument("--chat", action="store_true", help="apply the target's chat template")
    group.add_argument(
        "--max-new-tokens",
        metavar="N",
        type=parse("max_new_tokens"),
        default=128,
        help="stop after so many tokens",
    )
    group.add_argument(
        "--temperature",
        metavar="T",
        type=parse("temperature"),
        default=0.0,
        help="0 takes the most likely token",
    )
    group.add_argument(
        "--top-k", metavar="K", type=parse("top_k"), default=0, help="0 keeps all tokens"
    )
    group.add_argument(
        "--top-p", metavar="P", type=parse("top_p"), default=1.0, help="1 keeps all tokens"
    )
    group.add_argument("--seed", metavar="S", type=parse("seed"), default=0, help="for sampling")
    group.add_argument(
        "--stop",
        metavar="S",
        action="append",
        default=[],
        help="end before this text; may be given several times",
    )


def _add_tree(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the draft tree")
    group.add_argument(
        "--tree-budget",
        metavar="N",
        type=parse("tree_budget"),
        default=16,
        help="candidates verified at once, at most; 0 is plain decoding",
    )
    group.add_argument(
        "--passes-per-round",
        metavar="K",
        type=parse("passes_per_round"),
        default=None,
        help="draft passes between two verify steps, at most (default: what the verifier "
        "profile leaves time for)",
    )
    group.add_argument(
        "--schedule",
        metavar="S",
        type=parse("schedule"),
        default="overlap",
        help="`overlap` drafts while the target verifies, `lockstep` in turns",
    )
    group.add_argument(
        "--verifier-profile",
        metavar="V",
        default=None,
        help="latency of the verifier by node count, which a simulated device's time is "
        "measured against: a name or a file",
    )


def _add_output(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("checks and output")
    group.add_argument(
        "--check",
        action="store_true",
        help="decode again with the target alone and compare every token",
    )
    group.add_argument(
        "--exact", action="store_true", help="replay accepted tokens one by one (slow)"
    )
    group.add_argument(
        "--stats",
        metavar="FILE",
        type=parse("stats"),
        default=None,
        help="write the statistics as JSON",
    )
    group.add_argument(
        "--quiet", action="store_true", help="print the text, and nothing else but warnings"
    )
    group.add_argument(
        "--vcd",
        metavar="FILE",
        type=parse("vcd"),
        default=None,
        help="write a waveform of some passes (`--device rtl` only)",
    )
    group.add_argument(
        "--vcd-passes",
        metavar="FIRST:LAST",
        type=parse("vcd_passes"),
        default=(0, 1),
        help="the draft passes in the waveform, from 0 (default: 0:1)",
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    _add_models(parser)
    _add_prompts(parser)
    _add_tree(parser)
    _add_output(parser)


def check_arguments(args: argparse.Namespace) -> None:
    """Judge options that depend on each other.

    Raises
    ------
    UsageError
        If they contradict each other.
    """
    if args.vcd is not None and args.device != "rtl":
        raise UsageError(f"--vcd needs --device rtl: the device is {args.device}")
    if "" in args.stop:
        raise UsageError("--stop is '': expected a text that is not empty")


def run(args: argparse.Namespace) -> int:
    """Run the command; returns the exit status."""
    check_arguments(args)
    if sys.stdout is None:
        raise UsageError("standard output is closed: it is where the text goes")
    # Text is printed as it comes, in whatever the model speaks.
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(encoding="utf-8", errors="replace")
    from dfvg_host.decode.run import main

    return main(args)
