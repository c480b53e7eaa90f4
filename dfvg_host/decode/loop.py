"""The decode loop: draft, verify, commit, until the output ends.

    OPEN; the target runs the prompt and draws the first token
    repeat: VERDICT; (wait for a pass if that pays); choose nodes; verify; walk; commit

The text depends on the target's logits and the sampler alone. The device decides only which draws
can share a pass.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from dfvg_host.files import tell
from dfvg_host.timing import VerifierProfile, VirtualClock, load_profile
from dfvg_host.verify import Draw, Sampler, TreeVerifier
from dfvg_hw.errors import ModelError, UsageError

from .budget import FixedBudget
from .check import Reference
from .drafter import Drafter
from .interrupts import Interrupts
from .output import Output, stop_ids
from .pace import Pacer
from .params import DecodeParams
from .result import Result, build_result
from .stats import StepCounters
from .walk import Tree, walk

if TYPE_CHECKING:
    from dfvg_host.device.protocol import VirtualTimeDevice
    from dfvg_host.models import LoadedTarget

__all__ = ["Interrupted", "TargetFailed", "decode"]

_PLAIN_HERTZ = 1_000_000_000  # resolution of virtual time without a device


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during a run; `result` holds what there was until then, `finish_reason` None."""

    def __init__(self, result: Result) -> None:
        super().__init__("interrupted")
        self.result = result


class TargetFailed(ModelError):
    """The target failed during a run; `result` holds what there was, `finish_reason` None."""

    def __init__(self, text: str, result: Result) -> None:
        super().__init__(text)
        self.result = result


def print_warning(text: str) -> None:
    """Print a warning to standard error; standard output belongs to the text."""
    tell(f"dfvg: {text}")


def decode(
    target: LoadedTarget,
    device: VirtualTimeDevice | None,
    prompt: Sequence[int],
    params: DecodeParams | None = None,
    *,
    profile: VerifierProfile | None = None,
    draft: str | None = None,
    draft_context: int | None = None,
    on_text: Callable[[str], None] | None = None,
    warn: Callable[[str], None] = print_warning,
) -> Result:
    """Write a text with the target, drafted by the device.

    Parameters
    ----------
    target: the model that decides the text.
    device: a virtual-time draft device with its image loaded, or None for target-only decoding.
        It's left open, with no sequence on it.
    prompt: token ids, at least one, at most the target's context.
    params: the request.
    profile: latencies of the verifier for virtual time.
    draft: name of the draft, for the statistics.
    draft_context: most tokens that the draft can follow; None takes the device's limit. Behind it
        decoding goes on target-only.
    on_text: called with each piece of text as soon as it's certain.
    warn: called with one line if the device is given up or can't be used.

    Returns
    -------
    Result

    Raises
    ------
    UsageError
        The prompt is empty, too long for the target, or holds ids it doesn't know.
    ModelError
        The target can't run token trees.
    TargetFailed
        Its logits aren't numbers; with the result so far.
    Interrupted
        Ctrl-C, which is held back until a round ends; with the result so far.
    KeyboardInterrupt
        Ctrl-C twice: in the middle of a round, without a result.
    """
    run = _Run(
        target, device, prompt, params or DecodeParams(), profile, draft_context, on_text, warn
    )
    with Interrupts() as interrupts:
        try:
            run.execute(interrupts.check)
            interrupts.check()
        except KeyboardInterrupt:
            if interrupts.impatient:
                raise
            raise Interrupted(run.broken_off(draft)) from None
        except ModelError as error:
            text = f"{error} (after {len(run.output.tokens)} tokens of output)"
            raise TargetFailed(text, run.broken_off(draft)) from error
        finally:
            run.close()
        return run.result(draft)


class _Run:
    """One request in progress."""

    def __init__(
        self,
        target: LoadedTarget,
        device: VirtualTimeDevice | None,
        prompt: Sequence[int],
        params: DecodeParams,
        profile: VerifierProfile | None,
        draft_context: int | None,
        on_text: Callable[[str], None] | None,
        warn: Callable[[str], None],
    ) -> None:
        self.started = time.perf_counter()
        self.target = target
        self.device = device
        self.prompt = [int(token) for token in prompt]
        self.params = params
        self.profile = profile or load_profile()
        self.verifier = TreeVerifier(target.model)
        _check_prompt(self.prompt, self.verifier)
        self.sampler = Sampler(params.sampling)
        stops = tuple(
            token
            for token in stop_ids(target.model, target.tokenizer, params)
            if token < self.verifier.vocab_size
        )
        context = self.verifier.context
        room = None if context is None else context - len(self.prompt)
        self.output = Output(params, stops, room, target.tokenizer, on_text)
        config = device.info.config if device is not None else None
        self.clock = VirtualClock(config.clock_hz if config else _PLAIN_HERTZ)
        self.steps = StepCounters()
        self.reference: Reference | None = None
        # While a walk goes on: its tree, and the tokens before it.
        self._step: tuple[Tree, int] | None = None
        self.drafter: Drafter | None = None
        self.pacer = Pacer(
            clock=self.clock,
            profile=self.profile,
            budget=FixedBudget(params.tree_budget),
            overlap=params.schedule == "overlap",
            cap=params.passes_per_round,
            link_cycles=self.clock.cycles(config.link.latency_ns * 1e-9) if config else 0,
        )
        limit = config.max_ctx if config else 0
        limit = limit if draft_context is None else min(limit, draft_context)
        if self._can_draft(limit, warn):
            assert device is not None
            self.drafter = Drafter(
                device,
                self.prompt,
                self.verifier.vocab_size,
                stops,
                self.pacer.limits(self.output.remaining),
                limit,
                warn,
            )
            self.pacer.attach(self.drafter)

    def _can_draft(self, limit: int, warn: Callable[[str], None]) -> bool:
        """Whether opening the device is of use."""
        if self.device is None or self.output.remaining <= 1:
            return False
        if self.params.tree_budget == 0 or self.params.passes_per_round == 0:
            return False
        if len(self.prompt) >= limit:
            warn(
                f"prompt of {len(self.prompt)} tokens does not fit the draft's context of {limit}: "
                "decoding goes on target-only"
            )
            return False
        return True

    def execute(self, check: Callable[[], None]) -> None:
        """Run to the end of the output; ``check`` may raise, at times when nothing is half done."""
        if self.output.finish_reason:
            return
        self.pacer.begin_round(self.output.remaining)
        logits = self.verifier.prefill(self.prompt)
        if self.params.check:
            self.reference = Reference(self.verifier.fork(), logits, self.sampler)
        tree = Tree()
        self._step = tree, 0
        path = walk(logits[None], tree, self.sampler, 0, self._commit)
        self.steps.prefilled = True
        self._step, done = None, 0
        self.pacer.target_works(self.profile.prefill(len(self.prompt)), last=self._ended)
        while not self._ended:
            check()
            new, done = self.output.tokens[done:], len(self.output.tokens)
            self.pacer.verdict(new, len(path), tree, self.output.remaining)
            self.pacer.begin_round(self.output.remaining)
            tree = self.pacer.tree()
            path = self._verify(tree)

    def broken_off(self, draft: str | None) -> Result:
        """Return the statistics of a run that didn't come to its end."""
        self.output.flush()
        self._count_broken_step()
        return self.result(draft)

    def _count_broken_step(self) -> None:
        """Count the step of tokens that were committed before it was interrupted.

        Otherwise they'd be tokens without a step, which makes the acceptance length look better.
        """
        if self._step is None or len(self.output.tokens) == self._step[1]:
            return
        tree, before = self._step
        if not self.steps.prefilled:
            self.steps.prefilled = True
            seconds = self.profile.prefill(len(self.prompt))
        else:
            # Every token of this walk but the last was carried by a node.
            self.steps.count(tree, len(self.output.tokens) - before - 1)
            seconds = self.profile.verify(len(tree))
        self.clock.advance(self.clock.cycles(seconds))

    @property
    def _ended(self) -> bool:
        return self.output.finish_reason is not None

    def _verify(self, tree: Tree) -> list[int]:
        """Run one verify pass, commit its tokens and return the nodes they went through."""
        root, index = self.output.tokens[-1], len(self.output.tokens)
        self._step = tree, index
        logits = self.verifier.score(root, tree.tokens, tree.parents)
        seconds = self.profile.verify(len(tree))
        if self.params.exact:
            path, replayed = self._replay(root, logits, tree, index)
            seconds += replayed * self.profile.verify(0)
        else:
            path = walk(logits, tree, self.sampler, index, self._commit)
            self.verifier.commit(path)
        self.steps.count(tree, len(path))
        self._step = None
        self.pacer.target_works(seconds, last=self._ended)
        return path

    def _replay(
        self, root: int, logits: torch.Tensor, tree: Tree, index: int
    ) -> tuple[list[int], int]:
        """Walk the tree, then commit what one-token passes draw, as far as they agree."""
        drawn: list[int] = []

        def note(draw: Draw, row: torch.Tensor) -> bool:
            drawn.append(draw.token)
            return False

        path = walk(logits, tree, self.sampler, index, note)
        self.verifier.rollback()
        for place, expected in enumerate(drawn):
            row = self.verifier.score(root)[0]
            self.verifier.commit()
            draw = self.sampler.draw(row, index + place)
            root = draw.token
            if self._commit(draw, row) or root != expected:
                agreed = place + (root == expected)
                return path[:agreed], place + 1
        return path, len(drawn)

    def _commit(self, draw: Draw, row: torch.Tensor) -> bool:
        if self.reference is not None:
            self.reference.observe(draw, row)
        return self.output.append(draw.token)

    def close(self) -> None:
        """Take the sequence off the device."""
        if self.drafter is not None:
            self.drafter.close()

    def result(self, draft: str | None) -> Result:
        """Return the statistics of what has been committed."""
        return build_result(self, draft)


def _check_prompt(prompt: Sequence[int], verifier: TreeVerifier) -> None:
    if not prompt:
        raise UsageError("prompt has no tokens: at least one is needed")
    worst = max(prompt, key=lambda token: abs(token - verifier.vocab_size // 2))
    if not 0 <= worst < verifier.vocab_size:
        raise UsageError(
            f"prompt holds token id {worst}: the target's ids are 0 to {verifier.vocab_size - 1}"
        )
    if verifier.context is not None and len(prompt) > verifier.context:
        raise UsageError(
            f"prompt of {len(prompt)} tokens is longer than the target's context of "
            f"{verifier.context}"
        )
