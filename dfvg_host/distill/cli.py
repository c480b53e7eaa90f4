"""`dfvg distill`: write training text, train a draft on it, evaluate it.

Every stage can be interrupted and started again with the same command: it goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dfvg_host.cli.values import Number, parse, parse_as, working_folder
from dfvg_hw.errors import UsageError

__all__ = ["add_arguments", "add_parser", "run"]

_STAGES = ("all", "text", "train", "evaluate")
_HEAD_ROWS = 4096


def add_parser(subparsers: Any) -> None:
    """Add ``distill`` to the subcommands of an argparse parser."""
    parser = subparsers.add_parser("distill", help="train a draft model for a target")
    add_arguments(parser)
    parser.set_defaults(run=run)


@dataclass(frozen=True)
class _Layers:
    """Numbers of target layers, separated by commas."""

    def accepted(self) -> str:
        return "target layers such as 0,1,29"

    def __call__(self, value: Any) -> list[int]:
        layers = [int(part) for part in value.split(",")]
        if min(layers) < 0:
            raise ValueError("negative")
        return layers


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""

    def count(option: str, most: float = math.inf) -> Callable[[str], Any]:
        return parse_as(option, Number(int, low=1, high=most))

    parser.add_argument(
        "stage", nargs="?", choices=_STAGES, default="all", help="what to do; all: one by one"
    )
    parser.add_argument("--target", metavar="M", default="smollm2-135m-instruct", help="the target")
    parser.add_argument(
        "--work",
        metavar="DIR",
        type=Path,
        default=Path("distill"),
        help="folder of training text and run state; several processes may write text into it",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="DIR",
        type=Path,
        default=None,
        help="draft folder to write or evaluate; None: WORK/draft",
    )
    parser.add_argument(
        "--blocks",
        metavar="N",
        type=count("--blocks"),
        default=20,
        help="blocks of text, about 85 thousand tokens and 3 CPU-minutes each",
    )
    parser.add_argument(
        "--layers",
        metavar="L",
        type=parse_as("--layers", _Layers()),
        default=None,
        help="target layers the draft starts from, e.g. 0,1,29; None: random weights",
    )
    parser.add_argument(
        "--fresh-layers",
        metavar="N",
        type=count("--fresh-layers"),
        default=2,
        help="layers of a draft that starts from random weights",
    )
    parser.add_argument(
        "--head-rows",
        metavar="N",
        type=count("--head-rows"),
        default=None,
        help="ids the draft can propose, a multiple of 64; None: as --init has, else 4096",
    )
    parser.add_argument(
        "--ffn-width",
        metavar="N",
        type=count("--ffn-width"),
        default=None,
        help="keep this many FFN neurons a layer, a multiple of 64; None: all",
    )
    parser.add_argument(
        "--batch-tokens",
        metavar="N",
        type=count("--batch-tokens"),
        default=4096,
        help="tokens of a training batch",
    )
    parser.add_argument("--epochs", metavar="N", type=count("--epochs"), default=4, help="passes")
    parser.add_argument(
        "--rate",
        metavar="R",
        type=parse_as("--rate", Number(float, low=0, high=1, above_low=True)),
        default=1e-3,
        help="learning rate",
    )
    parser.add_argument(
        "--seed",
        metavar="S",
        type=parse_as("--seed", Number(int, low=0, high=2**32 - 1)),
        default=1,
        help="of text and training",
    )
    parser.add_argument(
        "--init",
        metavar="DIR",
        type=Path,
        default=None,
        help="start from this draft folder instead of from target layers",
    )
    parser.add_argument(
        "--wait",
        action="store_true",
        help="train while another process is still writing text: wait for missing blocks",
    )
    parser.add_argument(
        "--passes",
        metavar="N",
        type=count("--passes", 1024),
        default=8,
        help="draft passes a round (evaluation)",
    )
    parser.add_argument(
        "--tree-budget",
        metavar="N",
        type=count("--tree-budget", 4096),
        default=16,
        help="candidates verified a round (evaluation)",
    )
    parser.add_argument(
        "--max-new-tokens",
        metavar="N",
        type=count("--max-new-tokens"),
        default=128,
        help="tokens decoded per prompt (evaluation)",
    )
    parser.add_argument(
        "--eval-prompts",
        metavar="FILE",
        type=Path,
        default=None,
        help="JSON lines of kind and prompt; None: the shipped held-out prompts",
    )
    parser.add_argument("--threads", metavar="N", type=parse("threads"), default=1, help="cores")


def _evaluation(args: argparse.Namespace) -> list[Any]:
    from .heldout import eval_prompts, read_prompts

    if args.eval_prompts is None:
        return eval_prompts()
    try:
        raw = args.eval_prompts.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as err:
        reason = err.strerror if isinstance(err, OSError) else f"not UTF-8 text ({err.reason})"
        raise UsageError(f"--eval-prompts {args.eval_prompts}: {reason}") from err
    return read_prompts(raw, str(args.eval_prompts))


def _text(args: argparse.Namespace) -> None:
    from dfvg_host.models import load_target

    from .generate import GenerateConfig, generate_blocks

    target = load_target(args.target, dtype="bf16", threads=args.threads)
    generate_blocks(target, args.work / "text", args.blocks, GenerateConfig(seed=args.seed))


def _draft(args: argparse.Namespace, target: Any, texts: Any) -> Any:
    """Make the draft that training starts from; the same at every call."""
    from .checkpoint import load_draft
    from .dataset import choose_head_ids
    from .draft import make_draft
    from .reshape import narrow_ffn, with_head

    ids = None
    if args.init is None or args.head_rows is not None:
        # The head is chosen by the first half, so that training may start before the rest exists.
        use = texts.use_of_ids(-(-args.blocks // 2))
        always = {*target.tokenizer.all_special_ids, target.tokenizer.eos_token_id}
        ids = choose_head_ids(use, args.head_rows or _HEAD_ROWS, sorted(always))
    if args.init is None:
        draft: Any = make_draft(target.model, ids, args.layers, args.fresh_layers, args.seed)
    else:
        draft = load_draft(args.init, target.model)
        if ids is not None:
            draft = with_head(draft, target.model.get_output_embeddings().weight, ids)
    if args.ffn_width is not None:
        batches = texts.batches(0, 0, args.seed, 4096)[:8]
        draft = narrow_ffn(draft, [make() for make in batches], args.ffn_width)
    return draft


def _train(args: argparse.Namespace) -> None:
    from dfvg_host.models import load_target

    from .checkpoint import save_draft
    from .dataset import TextFolder
    from .draft import macs_per_token
    from .heldout import demo_prompts
    from .train import TrainConfig, Trainer

    target = load_target(args.target, threads=args.threads)
    avoid = [prompt.text for prompt in [*_evaluation(args), *demo_prompts()]]
    texts = TextFolder(args.work / "text", args.blocks, target.tokenizer, avoid, args.wait)
    config = TrainConfig(
        seed=args.seed, epochs=args.epochs, rate=args.rate, batch_tokens=args.batch_tokens
    )
    draft = _draft(args, target, texts)
    Trainer(draft, texts, args.work / "train", config).run()
    record = {
        "target": target.name,
        "target_digest": target.digest,
        "layers": args.layers,
        "macs_per_token": macs_per_token(draft),
        "blocks": args.blocks,
        "train": asdict(config),
        "init": args.init.name if args.init else None,
    }
    save_draft(_output(args), draft, record)


def _output(args: argparse.Namespace) -> Path:
    return args.output if args.output is not None else args.work / "draft"


def _evaluate(args: argparse.Namespace) -> None:
    from dfvg_host.models import load_target

    from .checkpoint import load_draft
    from .evaluate import evaluate, target_texts
    from .tree_sim import TreeSettings

    target = load_target(args.target, threads=args.threads)
    draft = load_draft(_output(args), target.model)
    cache = args.work / "eval-texts.json"
    texts = target_texts(target, _evaluation(args), args.max_new_tokens, cache)
    settings = TreeSettings(passes=args.passes, budget=args.tree_budget)
    report = evaluate(draft, texts, settings, args.seed)
    print("\n".join(report.lines()))
    record = {**asdict(report), "settings": asdict(settings), "draft_digest": draft.digest}
    (args.work / "evaluation.json").write_text(json.dumps(record, indent=1) + "\n")


def run(args: argparse.Namespace) -> int:
    """Run the stage or stages asked for; returns the exit status.

    Raises
    ------
    DfvgError
        Anything the input or the machine is at fault for, in one line.
    """
    working_folder("--work", args.work)
    if args.stage in ("all", "train"):
        working_folder("--output", _output(args))
    if args.stage != "text":
        _evaluation(args)
    stages = {"text": _text, "train": _train, "evaluate": _evaluate}
    for name, stage in stages.items():
        if args.stage in (name, "all"):
            stage(args)
    return 0
