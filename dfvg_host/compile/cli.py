"""`dfvg compile`: a model in, an image out."""

from __future__ import annotations

import argparse
import time

from dfvg_host.files import tell
from dfvg_host.models import DEFAULT_TARGET, load_target
from dfvg_hw.config import get_config
from dfvg_hw.errors import UsageError

from .image import write_image
from .load import draft_image, is_draft_folder, is_image

__all__ = ["main"]

_EVERY = 2.0  # seconds between two progress lines


def main(args: argparse.Namespace) -> int:
    """Compile ``args.model`` for ``args.config`` into ``args.output``; returns the exit status.

    Raises
    ------
    DfvgError
        In one line: unusable model or target, something that doesn't fit, a file that can't be
        written.
    """
    shown = time.monotonic()

    def say(text: str) -> None:
        if not args.quiet:
            tell(f"dfvg: {text}")

    def step(text: str) -> None:
        nonlocal shown
        if time.monotonic() - shown > _EVERY:
            shown = time.monotonic()
            say(text)

    config = get_config(args.config)
    if is_image(args.model):
        raise UsageError(f"MODEL is {args.model!r}, which is compiled already: expected a model")
    name = args.target
    if name is None and is_draft_folder(args.model):
        name = DEFAULT_TARGET
    target = load_target(name) if name else None
    image = draft_image(args.model, config, target, args.target is not None, step)
    write_image(image, args.output)
    d, size = image.dims, sum(len(s.data) for s in image.segments)
    say(
        f"{args.output}: {d.layers} layers of hidden size {d.hidden}, {d.out_vocab} of {d.vocab} "
        f"tokens, {size / 1e6:.1f} MB, context {image.context}, config {config.name}, "
        f"digest {image.digest[:16]}"
    )
    return 0
