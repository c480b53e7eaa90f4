"""One forward pass of the target over a token tree, for any transformers causal language model.

The cache holds every committed token but the last, which is the *root*: its logits aren't known
yet. A pass runs the rows [root, node 0, node 1, ...]; row *i* sees the committed tokens, its own
ancestors and itself, at position (committed tokens) + depth. So no logits are computed twice, and
a tree without nodes is one step of plain decoding.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Sequence
from typing import Any

import torch

from dfvg_hw.errors import ModelError

from .cache import RowCache

__all__ = ["TreeVerifier"]

_PREFILL_ROWS = 512
_ATTENTION = ("eager", "sdpa")
_KINDS = {"full_attention", "sliding_attention"}

# Models whose tree attention was compared with their own plain forward pass in this process.
_probed: weakref.WeakSet[Any] = weakref.WeakSet()


class TreeVerifier:
    """Target model with the KV cache of one sequence.

    Parameters
    ----------
    model: a transformers causal language model in eval mode, any dtype, on any device.
    probe: compare a small tree with the model's plain forward pass at the first use of a model.

    Attributes
    ----------
    vocab_size: logits per row.
    context: most tokens (prompt and output) the model takes; None if it states no limit.
    length: tokens in the cache.

    Raises
    ------
    ModelError
        The model's attention can't take a tree: another attention kernel than eager or sdpa,
        layers that aren't attention, positions that don't follow `position_ids`.
    """

    def __init__(self, model: Any, probe: bool = True) -> None:
        self.model = model
        self._config = model.config.get_text_config(decoder=True)
        self._windows = _layer_windows(self._config, _name(model))
        self._check_attention()
        # Renamed in transformers 5; the old name is announced to go away.
        parameters = inspect.signature(model.forward).parameters
        self._cache_name = "cache" if "cache" in parameters else "past_key_values"
        self._can_skip_logits = "logits_to_keep" in parameters
        if "position_ids" not in parameters:
            raise ModelError(f"{_name(model)} takes no position_ids, which tree attention needs")
        self.vocab_size = int(self._config.vocab_size)
        self.context = _context(self._config)
        self._cache = RowCache()
        self._tree: tuple[int, int] | None = None
        # Products rounded to 10 bits of mantissa would differ between shapes far more than fp32.
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
        if probe and model not in _probed:
            _compare_with_plain_forward(model)
            _probed.add(model)

    def _check_attention(self) -> None:
        used = getattr(self._config, "_attn_implementation", "eager")
        if used not in _ATTENTION:
            raise ModelError(
                f"attention implementation {used!r} of {_name(self.model)} takes no tree mask: "
                f"load the model with attn_implementation one of {', '.join(_ATTENTION)}"
            )

    @property
    def length(self) -> int:
        """Tokens whose keys and values are in the cache and committed."""
        return self._tree[0] if self._tree else self._cache.length

    def fork(self) -> TreeVerifier:
        """Return a verifier of the same model with a copy of the cache."""
        if self._tree:
            raise RuntimeError("commit or roll back the last tree before fork()")
        other = TreeVerifier(self.model, probe=False)
        other._cache = self._cache.fork()
        return other

    @torch.no_grad()
    def prefill(self, tokens: Sequence[int]) -> torch.Tensor:
        """Run a prompt from an empty cache and return the logits behind it, float32-or-less [V].

        Every token of the prompt is in the cache afterwards; the token drawn from these logits is
        the first root.
        """
        if not tokens:
            raise ValueError("prefill needs at least one token")
        self._cache, self._tree = RowCache(), None
        logits = None
        for start in range(0, len(tokens), _PREFILL_ROWS):
            part = tokens[start : start + _PREFILL_ROWS]
            rows = torch.ones(len(part), len(part), dtype=torch.bool).tril()
            logits = self._forward(part, range(len(part)), rows, last_only=True)
        assert logits is not None
        return logits[-1]

    @torch.no_grad()
    def score(
        self, root: int, tokens: Sequence[int] = (), parents: Sequence[int] = ()
    ) -> torch.Tensor:
        """Run the root and a tree below it.

        Parameters
        ----------
        root: the last committed token, not in the cache yet.
        tokens: token of each node, parents before children.
        parents: for each node the index of its parent in ``tokens``, -1 for the root.

        Returns
        -------
        Tensor
            Logits [1 + nodes, V] in the model's dtype; row 0 belongs to the root. They must be
            followed by `commit` or `rollback`.
        """
        if self._tree:
            raise RuntimeError("commit or roll back the last tree before the next one")
        depths, visible = tree_rows(parents)
        if len(depths) != len(tokens) + 1:
            raise ValueError(f"{len(tokens)} tokens but {len(parents)} parents")
        committed = self._cache.length
        logits = self._forward([root, *tokens], depths, visible)
        self._tree = (committed, len(depths))
        return logits

    def commit(self, path: Sequence[int] = ()) -> None:
        """Keep the root and the nodes of ``path`` (indices into `score`'s tokens, top down)."""
        if not self._tree:
            raise RuntimeError("there is no tree to commit")
        committed, _ = self._tree
        self._cache.keep(committed, [0, *(node + 1 for node in path)])
        self._tree = None

    def rollback(self) -> None:
        """Forget the last tree, root included."""
        if not self._tree:
            raise RuntimeError("there is no tree to roll back")
        self._cache.keep(self._tree[0], [])
        self._tree = None

    def _forward(
        self,
        tokens: Sequence[int],
        depths: Sequence[int],
        visible: torch.Tensor,
        last_only: bool = False,
    ) -> torch.Tensor:
        device = self.model.get_input_embeddings().weight.device
        base = self._cache.length
        positions = torch.tensor(list(depths), dtype=torch.long) + base
        options: dict[str, Any] = {self._cache_name: self._cache}
        if last_only and self._can_skip_logits:
            options["logits_to_keep"] = 1
        output = self.model(
            input_ids=torch.tensor([list(tokens)], device=device),
            position_ids=positions[None].to(device),
            attention_mask=self._mask(base, positions, visible, device),
            use_cache=True,
            return_dict=True,
            **options,
        )
        logits: torch.Tensor = output.logits[0]
        return logits

    def _mask(
        self, base: int, positions: torch.Tensor, visible: torch.Tensor, device: torch.device
    ) -> Any:
        """Additive masks [1, 1, rows, base + rows]: one, or one per kind of layer."""
        seen = torch.cat([torch.ones(len(positions), base, dtype=torch.bool), visible], dim=1)
        keys = torch.cat([torch.arange(base), positions])
        distance = positions[:, None] - keys[None, :]
        dtype = self.model.dtype
        masks = {}
        for kind, window in self._windows.items():
            shown = seen if window is None else seen & (distance < window)
            mask = torch.zeros(shown.shape, dtype=dtype)
            mask.masked_fill_(~shown, torch.finfo(dtype).min)
            masks[kind] = mask[None, None].to(device)
        return masks if len(masks) > 1 else next(iter(masks.values()))


def tree_rows(parents: Sequence[int]) -> tuple[list[int], torch.Tensor]:
    """Return the depth of each row and which rows see which.

    Parameters
    ----------
    parents: parent index of each node, -1 for the root; a parent precedes its children.

    Returns
    -------
    depths: 1 + nodes entries, 0 for the root.
    visible: bool [1 + nodes, 1 + nodes]; entry (i, j) is set if j is i or an ancestor of i.

    Raises
    ------
    ValueError
        A parent that doesn't precede its child.
    """
    depths = [0]
    visible = torch.eye(len(parents) + 1, dtype=torch.bool)
    visible[:, 0] = True
    for node, parent in enumerate(parents):
        if not -1 <= parent < node:
            raise ValueError(f"parent {parent} of node {node} must be -1 or an earlier node")
        depths.append(depths[parent + 1] + 1)
        visible[node + 1] |= visible[parent + 1]
    return depths, visible


def _name(model: Any) -> str:
    return type(model).__name__


def _context(config: Any) -> int | None:
    """Return the longest text the model takes, None if it states none."""
    limit = getattr(config, "max_position_embeddings", None)
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    if "longrope" in (rope.get("rope_type"), rope.get("type")):
        # Such a model rotates all rows of a pass differently once one of them lies beyond the
        # original context, so a deep node there would change its ancestors' logits.
        original = rope.get("original_max_position_embeddings") or getattr(
            config, "original_max_position_embeddings", None
        )
        limit = min(limit or original, original) if original else limit
    return int(limit) if limit else None


def _layer_windows(config: Any, name: str) -> dict[str, int | None]:
    """Return the attention window of each kind of layer, None for full attention."""
    window = getattr(config, "sliding_window", None)
    kinds = set(getattr(config, "layer_types", None) or ())
    if not kinds:
        if getattr(config, "attention_chunk_size", None):
            raise ModelError(f"{name} attends in chunks, which tree attention does not support")
        sliding = window is not None and getattr(config, "use_sliding_window", True)
        kinds = {"sliding_attention" if sliding else "full_attention"}
    if kinds - _KINDS:
        raise ModelError(
            f"{name} has {', '.join(sorted(kinds - _KINDS))} layers; tree verification supports "
            f"{' and '.join(sorted(_KINDS))}"
        )
    if "sliding_attention" in kinds and not isinstance(window, int):
        raise ModelError(f"{name} has sliding_attention layers but no sliding_window")
    return {kind: window if kind == "sliding_attention" else None for kind in sorted(kinds)}


@torch.no_grad()
def _compare_with_plain_forward(model: Any) -> None:
    """Refuse a model whose tree attention differs from its plain forward pass.

    A model may accept a 4-D mask or position ids and ignore them; nothing but running it tells.
    """
    verifier = TreeVerifier(model, probe=False)
    prompt = [token % verifier.vocab_size for token in (5, 17, 3, 29, 11)]
    tokens, parents = [token % verifier.vocab_size for token in (7, 13, 19, 23)], [-1, -1, 0, 1]
    paths = [[], [7], [13], [7, 19], [13, 23]]
    root = prompt[-1]
    try:
        verifier.prefill(prompt[:-1])
        rows = verifier.score(root, tokens, parents)
        device = model.get_input_embeddings().weight.device
        plain = torch.stack(
            [
                model(
                    input_ids=torch.tensor(
                        [prompt + [token % verifier.vocab_size for token in path]], device=device
                    ),
                    use_cache=False,
                ).logits[0, -1]
                for path in paths
            ]
        )
    except ModelError:
        raise
    except Exception as error:  # whatever a model's code raises on a mask it doesn't know
        reason = (str(error).splitlines() or [""])[0]
        raise ModelError(
            f"{_name(model)} cannot run a token tree: {type(error).__name__}: {reason}"
        ) from error
    rows, plain = rows.float(), plain.float()
    if bool(plain.isnan().any()):
        raise ModelError(f"{_name(model)} computes logits that are NaN: its weights are damaged")
    scale = max(1.0, plain.where(plain.isfinite(), 0.0).abs().max().item())
    # Right results differ by rounding (fp32: 1e-4 at most); bf16 logits move by several percent.
    allowed = scale * (1e-3 if model.dtype == torch.float32 else 0.1)
    # Tokens that both rule out with -infinity don't differ.
    found = torch.where(rows == plain, 0.0, (rows - plain).abs()).max().item()
    if not found <= allowed:
        raise ModelError(
            f"{_name(model)} ignores tree masks or position ids: its logits differ from plain "
            f"decoding by {found:.3g} (at most {allowed:.3g} is rounding)"
        )
