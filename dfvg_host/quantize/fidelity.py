"""How much the device's integers cost: agreement with the same model in fp32.

Teacher-forced on the model's own greedy text: every position sees the same prefix in both. Run
``python -m dfvg_host.quantize.fidelity`` for the figures of ``docs/numerics.md``.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from dfvg_hw.config import PAGE, DeviceConfig, get_config
from dfvg_hw.tree import Row, RowKind

from .integer import IntegerModel

__all__ = ["Fidelity", "greedy_texts", "integer_logits", "measure", "rows_of_text"]


@dataclass(frozen=True)
class Fidelity:
    """Agreement over `positions` positions.

    Attributes
    ----------
    top1 : float
        Share of positions with the same most likely token.
    kl : float
        Mean KL divergence from fp32 to integer probabilities, nats.
    depth8 : float
        Expected tokens accepted of an 8-token greedy chain at that agreement.
    positions : int
    """

    top1: float
    kl: float
    depth8: float
    positions: int

    @property
    def top1_error(self) -> float:
        """Standard error of `top1`."""
        return math.sqrt(self.top1 * (1 - self.top1) / self.positions)


def rows_of_text(ids: Sequence[int], start: int, stop: int) -> list[Row]:
    """Pass rows for positions `start` to `stop` of a text whose earlier tokens have KV."""
    rows = []
    for p in range(start, stop):
        full, rest = divmod(p + 1, PAGE)
        visible = [(1 << PAGE) - 1] * full + ([(1 << rest) - 1] if rest else [])
        row = Row(
            index=p - start,
            kind=RowKind.PREFILL,
            seq=0,
            token=ids[p],
            position=p,
            page=p // PAGE,
            phys=p // PAGE,
            offset=p % PAGE,
            slot=None,
            parent=None,
            rank=None,
            want_children=False,
            visible=tuple(visible),
        )
        rows.append(row)
    return rows


def integer_logits(compute: Any, ids: Sequence[int], chunk: int = 64) -> np.ndarray:
    """Logits (natural units, float) at every position of a text, in passes of `chunk` rows."""
    out = []
    for start in range(0, len(ids), chunk):
        stop = min(start + chunk, len(ids))
        pages = -(-stop // PAGE)
        hidden = compute.hidden(rows_of_text(ids, start, stop), {0: list(range(pages))})
        out.append(compute.logits(hidden) * (math.log(2) / (1 << 14)))
    return np.concatenate(out)


def measure(
    model: Any, integer: IntegerModel, texts: Sequence[tuple[list[int], int]], config: DeviceConfig
) -> Fidelity:
    """Compare at every position from each text's prompt end on.

    Parameters
    ----------
    model : LlamaForCausalLM
        The fp32 reference.
    integer : IntegerModel
        The same model in device integers.
    texts : sequence of (ids, prompt length)
    config : DeviceConfig
    """
    from dfvg_host.device.compute import IntegerCompute

    compute = IntegerCompute(integer, config)
    agree, divergence, total = 0, 0.0, 0
    for ids, prompt in texts:
        with torch.no_grad():
            reference = model(torch.tensor([ids])).logits[0, prompt - 1 : -1].double()
        ours = torch.from_numpy(integer_logits(compute, ids[:-1])[prompt - 1 :])
        agree += int((reference.argmax(1) == ours.argmax(1)).sum())
        p, q = reference.log_softmax(1), ours.log_softmax(1)
        divergence += float((p.exp() * (p - q)).sum())
        total += len(ours)
    top1 = agree / total
    return Fidelity(top1, divergence / total, sum(top1**d for d in range(1, 9)), total)


def greedy_texts(
    target: Any, prompts: Sequence[str], new_tokens: int
) -> list[tuple[list[int], int]]:
    """Each prompt in the chat template with the target's greedy continuation."""
    texts = []
    for prompt in prompts:
        ids = target.tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], add_generation_prompt=True, return_dict=False
        )
        with torch.no_grad():
            out = target.model.generate(
                torch.tensor([ids]),
                attention_mask=torch.ones(1, len(ids), dtype=torch.long),
                max_new_tokens=new_tokens,
                do_sample=False,
            )
        texts.append((out[0].tolist(), len(ids)))
    return texts


def main(argv: Sequence[str] | None = None) -> int:
    """Measure a model and print one JSON line."""
    from dfvg_host.compile.source import float_model
    from dfvg_host.models import DEFAULT_TARGET, load_target

    from .llama import quantize_model
    from .rotate import rotate

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default=DEFAULT_TARGET)
    parser.add_argument("--prompts", required=True, help="JSON lines with a 'prompt' each")
    parser.add_argument("--limit", type=int, default=24)
    parser.add_argument("--new-tokens", type=int, default=96)
    args = parser.parse_args(argv)
    with open(args.prompts) as file:
        prompts = [json.loads(line)["prompt"] for line in file][: args.limit]
    target = load_target(args.model)
    texts = greedy_texts(target, prompts, args.new_tokens)
    config = get_config("sim")
    integer = quantize_model(rotate(float_model(target.model)), config.seq_pages * PAGE)
    result = measure(target.model, integer, texts, config)
    print(json.dumps({"model": args.model, **vars(result), "top1_error": result.top1_error}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
