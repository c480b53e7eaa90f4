"""Parses the command line, runs one subcommand and turns user errors into one line.

Exit status: 0 done, 1 a check or a doctor's finding failed, 2 the input or the machine is at fault
(one line on standard error), 130 interrupted. Anything else keeps its traceback: it's a bug.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from dfvg_host.files import abandon_stdout, tell
from dfvg_hw.errors import DfvgError, UsageError
from dfvg_hw.version import __version__

__all__ = ["COMMANDS", "build_parser", "main"]

COMMANDS = {
    "decode": "decode prompts, the draft on a device and the target in PyTorch",
    "compile": "compile a draft model into an image for the device",
    "elaborate": "write the hardware's Verilog",
    "distill": "train a draft model for a target",
    "doctor": "check what this machine has and how to mend what is missing",
}
"""Subcommands; each is a module of this package with `add_arguments(parser)` and `run(args)`,
imported only when it's called, so that `dfvg --version` doesn't wait for torch."""


class _Parser(argparse.ArgumentParser):
    """A parser that raises instead of printing its usage: errors are one line."""

    def error(self, message: str) -> NoReturn:
        """Raise `UsageError`, without argparse's "argument --x: " before our own texts."""
        if message.startswith("argument "):
            rest = message.split(": ", 1)[1]
            message = rest if rest.startswith("--") else message.removeprefix("argument ")
        raise UsageError(f"{message} (see {self.prog} --help)")


class _Formatter(argparse.HelpFormatter):
    """Shows the default of an option that has one worth showing."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        text = action.help or ""
        plain = isinstance(action.default, (str, int, float)) and action.default is not False
        if plain and action.option_strings and action.default != argparse.SUPPRESS:
            text += " (default: %(default)s)"
        return text


def build_parser(command: str | None) -> argparse.ArgumentParser:
    """Return the parser.

    Parameters
    ----------
    command : str or None
        The subcommand whose arguments are needed; the others are known by name only.
    """
    parser = _Parser(
        prog="dfvg",
        description="Speculative decoding with the draft on an FPGA and the target in PyTorch.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"dfvg {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for name, summary in COMMANDS.items():
        sub = commands.add_parser(
            name,
            help=summary,
            description=f"{summary[0].upper()}{summary[1:]}.",
            allow_abbrev=False,
            formatter_class=_Formatter,
        )
        if name == command:
            module = importlib.import_module(f"dfvg_host.cli.{name}")
            module.add_arguments(sub)
            sub.set_defaults(run=module.run)
    return parser


def _dispatch(argv: Sequence[str]) -> int:
    """Parse and run; errors pass through."""
    command = next((word for word in argv if not word.startswith("-")), None)
    if command is not None and command not in COMMANDS:
        raise UsageError(f"command is {command!r}: expected one of {', '.join(COMMANDS)}")
    parser = build_parser(command)
    args = parser.parse_args(argv)
    if args.command is None:
        raise UsageError(f"no command: expected one of {', '.join(COMMANDS)} (see dfvg --help)")
    run: Callable[[argparse.Namespace], int | None] = args.run
    return run(args) or 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    argv : sequence of str, optional
        Arguments; the process's own by default.

    Returns
    -------
    int
        The exit status.
    """
    argv = sys.argv[1:] if argv is None else argv
    try:
        return _dispatch(argv)
    except DfvgError as error:
        text = " ".join(str(error).split())  # one line, whatever a tool's message holds
        tell(f"dfvg: error: {text}")
        return error.exit_code
    except KeyboardInterrupt:
        tell("dfvg: interrupted")
        return 130
    except BrokenPipeError:
        abandon_stdout()  # the reader (head, less) has gone
        return 141
