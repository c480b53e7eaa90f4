"""`dfvg decode`: text to standard output, the summary to standard error, statistics to a file."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from dfvg_host.verify import SamplingParams
from dfvg_hw.errors import DfvgError, UsageError

from .engine import Engine
from .loop import Interrupted, print_warning
from .params import DecodeParams
from .prompts import Request, read_jsonl, read_text
from .report import summary, total
from .result import Result

__all__ = ["main"]

_PROGRESS_SECONDS = 2.0


def main(args: argparse.Namespace) -> int:
    """Run the command with parsed options; returns the exit status.

    Returns
    -------
    int
        0; 1 if `--check` found text that differs in fp32 for no tie; 130 if interrupted.

    Raises
    ------
    DfvgError
        In one line: input that can't be used. What was finished before is in the stats file.
    """
    requests = _requests(args)
    params = _params(args)
    quiet = args.quiet or args.max_new_tokens == 0
    say = _silent if quiet else _Seldom()
    rtl = {"vcd": args.vcd, "vcd_passes": args.vcd_passes} if args.device == "rtl" else None
    results: list[Result] = []
    interrupted = False
    with Engine(
        args.target,
        args.draft,
        args.device,
        args.config,
        args.dtype,
        args.threads,
        args.verifier_profile,
        progress=say,
        rtl_options=rtl,
    ) as engine:
        try:
            for request in requests:
                results.append(_decode(engine, request, params, args))
        except Interrupted as stop:
            results.append(stop.result)
            _print_result(requests[len(results) - 1], stop.result, args)
            interrupted = True
        finally:
            _write_stats(args.stats, results, many=args.jsonl is not None)
        if not quiet:
            for line in _closing_lines(results, engine, many=args.jsonl is not None):
                print(line, file=sys.stderr)
    if interrupted:
        return 130
    return int(any(_is_wrong(result) for result in results))


def _silent(text: str) -> None:
    """Print nothing."""


class _Seldom:
    """Prints the first progress line, and others if the last one is two seconds ago."""

    def __init__(self) -> None:
        self._shown = float("-inf")

    def __call__(self, text: str) -> None:
        if time.monotonic() - self._shown > _PROGRESS_SECONDS:
            self._shown = time.monotonic()
            print_warning(text)


def _requests(args: argparse.Namespace) -> list[Request]:
    if args.jsonl is not None:
        return read_jsonl(args.jsonl)
    if args.prompt_file is not None:
        return [Request(1, read_text(args.prompt_file), str(args.prompt_file))]
    return [Request(1, args.prompt)]


def _params(args: argparse.Namespace) -> DecodeParams:
    return DecodeParams(
        max_new_tokens=args.max_new_tokens,
        sampling=SamplingParams(args.temperature, args.top_k, args.top_p, args.seed),
        stop=tuple(args.stop),
        tree_budget=args.tree_budget,
        passes_per_round=args.passes_per_round,
        schedule=args.schedule,
        check=args.check,
        exact=args.exact,
    )


def _decode(
    engine: Engine, request: Request, params: DecodeParams, args: argparse.Namespace
) -> Result:
    """Run one request and print it: as it comes, or as one line of JSON."""
    stream = _print_piece if args.jsonl is None else None
    try:
        prompt = engine.encode(request.prompt, args.chat)
        result = engine.decode(prompt, params, stream)
    except DfvgError as error:
        if not request.where:
            raise
        raise type(error)(f"{request.where}: {error}") from None
    _print_result(request, result, args)
    return result


def _print_piece(piece: str) -> None:
    sys.stdout.write(piece)
    sys.stdout.flush()


def _print_result(request: Request, result: Result, args: argparse.Namespace) -> None:
    if args.jsonl is not None:
        print(json.dumps({"id": request.id, **result.to_dict()}, ensure_ascii=False), flush=True)
    elif result.text and not result.text.endswith("\n"):
        print(flush=True)


def _write_stats(path: Path | None, results: list[Result], many: bool) -> None:
    if path is None or not results:
        return
    content: Any = [result.to_dict() for result in results] if many else results[0].to_dict()
    text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    partial = path.with_name(path.name + ".part")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        raise UsageError(f"cannot write --stats {path}: {error.strerror}") from None


def _closing_lines(results: list[Result], engine: Engine, many: bool) -> list[str]:
    if many:
        return total(results)
    return [line for result in results for line in summary(result, engine.profile)]


def _is_wrong(result: Result) -> bool:
    """Whether the promise was broken: fp32 text that differs although no tie explains it."""
    return result.identical is False and result.dtype == "fp32" and not result.tie
