"""`dfvg decode`: text to standard output, the summary to standard error, statistics to a file."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

from dfvg_host.files import abandon_stdout, replacing, tell
from dfvg_host.verify import SamplingParams
from dfvg_hw.errors import DfvgError, UsageError

from .engine import Engine
from .interrupts import Interrupts
from .loop import Interrupted, TargetFailed, print_warning
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
    reader = _Reader()
    interrupted = False
    if not quiet:
        _mention_what_has_no_effect(params.sampling)
    with (
        Engine(
            args.target,
            args.draft,
            args.device,
            args.config,
            args.dtype,
            args.threads,
            args.verifier_profile,
            progress=say,
            rtl_options=rtl,
        ) as engine,
        Interrupts() as interrupts,
    ):
        try:
            for request in requests:
                interrupts.check()
                results.append(_decode(engine, request, params, args, reader))
                _print_result(request, results[-1], args, reader)
        except (KeyboardInterrupt, TargetFailed) as stop:
            if isinstance(stop, Interrupted | TargetFailed):
                results.append(stop.result)
                _print_result(requests[len(results) - 1], stop.result, args, reader)
            if isinstance(stop, TargetFailed):
                raise
            interrupted = True
        finally:
            _write_stats(args.stats, results, many=args.jsonl is not None)
        if not quiet:
            for line in _closing_lines(results, engine, many=args.jsonl is not None):
                tell(line)
    if reader.error is not None:
        _blame(reader.error)
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
    engine: Engine,
    request: Request,
    params: DecodeParams,
    args: argparse.Namespace,
    reader: _Reader,
) -> Result:
    """Run one request; its text is printed as it comes unless it goes into a line of JSON."""
    stream = reader.write if args.jsonl is None else None
    try:
        prompt = engine.encode(request.prompt, args.chat)
        return engine.decode(prompt, params, stream)
    except DfvgError as error:
        if request.where:
            error.args = (f"{request.where}: {error}",)
        raise


class _Reader:
    """Standard output, whose other end may be gone or full.

    Then the run is interrupted, so that its statistics are kept as after Ctrl-C.

    Attributes
    ----------
    error: why nothing can be written any more; None while all is well.
    """

    def __init__(self) -> None:
        self.error: OSError | None = None

    def write(self, text: str) -> None:
        """Write and flush; what comes after an error is dropped.

        Raises
        ------
        KeyboardInterrupt
            At the first error.
        """
        if self.error is not None:
            return
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except OSError as error:
            self.error = error
            raise KeyboardInterrupt from None


def _blame(error: OSError) -> NoReturn:
    if isinstance(error, BrokenPipeError):
        raise error
    abandon_stdout()
    raise UsageError(f"cannot write to standard output: {error.strerror}")


def _mention_what_has_no_effect(sampling: SamplingParams) -> None:
    """Say so if options can't do what they seem to be given for."""
    given = [f"--top-k {sampling.top_k}"] if sampling.top_k else []
    given += [f"--top-p {sampling.top_p:g}"] if sampling.top_p < 1 else []
    if sampling.greedy and given:
        print_warning(
            f"{' and '.join(given)} can't change anything at temperature {sampling.temperature:g}, "
            "which always takes the most likely token"
        )


def _print_result(
    request: Request, result: Result, args: argparse.Namespace, reader: _Reader
) -> None:
    if args.jsonl is not None:
        line = json.dumps({"id": request.id, **result.to_dict()}, ensure_ascii=False)
        reader.write(line + "\n")
    elif result.text and not result.text.endswith("\n"):
        reader.write("\n")


def _write_stats(path: Path | None, results: list[Result], many: bool) -> None:
    if path is None or not results:
        return
    content: Any = [result.to_dict() for result in results] if many else results[0].to_dict()
    text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    try:
        with replacing(path) as file:
            file.write(text.encode(errors="replace"))
    except OSError as error:
        raise UsageError(f"cannot write --stats {path}: {error.strerror}") from None


def _closing_lines(results: list[Result], engine: Engine, many: bool) -> list[str]:
    if many:
        return total(results, engine.profile)
    return [line for result in results for line in summary(result, engine.profile)]


def _is_wrong(result: Result) -> bool:
    """Whether the promise was broken: fp32 text that differs although no tie explains it."""
    return result.identical is False and result.dtype == "fp32" and not result.tie
