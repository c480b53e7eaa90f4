"""``python -m dfvg_hw.messages --markdown [FILE]``: print the tables, or renew them in FILE."""

from __future__ import annotations

import argparse
from pathlib import Path

from .markdown import generated, splice


def main() -> None:
    """Print or write the generated documentation."""
    parser = argparse.ArgumentParser(prog="python -m dfvg_hw.messages")
    parser.add_argument(
        "--markdown",
        nargs="?",
        const="-",
        default="-",
        metavar="FILE",
        help="document whose generated part is renewed; without it the tables are printed",
    )
    target = parser.parse_args().markdown
    if target == "-":
        print(generated(), end="")
        return
    path = Path(target)
    path.write_text(splice(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
