"""A target and a draft device, loaded once, for any number of requests; and `generate`."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from dfvg_host.cli.values import check as check_value
from dfvg_host.models import DEFAULT_TARGET, LoadedTarget, load_target
from dfvg_host.timing import DEFAULT_PROFILE, load_profile
from dfvg_host.verify import SamplingParams
from dfvg_hw.config import DeviceConfig, get_config
from dfvg_hw.errors import BuildError, ModelError, UsageError

from .loop import decode, print_warning
from .params import DecodeParams
from .prompts import encode
from .result import Result

if TYPE_CHECKING:
    from dfvg_host.compile import DraftImage
    from dfvg_host.device.protocol import VirtualTimeDevice

__all__ = ["Engine", "generate"]

NO_DRAFT = "none"


class Engine:
    """What stays loaded between requests.

    Parameters
    ----------
    target: a packaged name, folder, ``.gguf`` file or hub id; or a target loaded already. None is
        the default target.
    draft: a model, draft folder or ``.dfvg`` image; ``none`` for target-only decoding; or an image
        loaded already. None is the draft shipped for the target.
    device: ``emulator`` or ``rtl``.
    config: name of a device configuration.
    dtype, threads: of the target, see `load_target`.
    verifier_profile: name or path, see `load_profile`.
    progress: called with one line before whatever takes seconds.
    rtl_options: more arguments for the simulated card, e.g. where to write a waveform.

    Raises
    ------
    DfvgError
        In one line: something unknown, missing, damaged, or that doesn't fit together. Cheap
        checks come before anything is loaded.
    """

    def __init__(
        self,
        target: str | LoadedTarget | None = None,
        draft: str | DraftImage | None = None,
        device: str = "emulator",
        config: str | DeviceConfig = "sim",
        dtype: str = "fp32",
        threads: int = 1,
        verifier_profile: str | None = None,
        progress: Callable[[str], None] = lambda _: None,
        rtl_options: dict[str, Any] | None = None,
    ) -> None:
        check_value("device", device)
        self.profile = load_profile(
            DEFAULT_PROFILE if verifier_profile is None else verifier_profile
        )
        shape = get_config(config) if isinstance(config, str) else config
        if isinstance(target, str | None):
            name = DEFAULT_TARGET if target is None else target
            progress(f"loading target {name}")
            target = load_target(name, dtype=dtype, threads=threads)
        self.target = target
        self.device: VirtualTimeDevice | None = None
        self.draft_name: str | None = None
        self.draft_context: int | None = None
        if draft == NO_DRAFT:
            return
        image = self._image(draft, shape, progress)
        _check_vocabulary(image, self.draft_name, target)
        _mention_other_target(image, self.draft_name, target)
        self.draft_context = image.context
        self.device = open_device(device, image, progress, rtl_options or {})

    def _image(
        self,
        draft: str | DraftImage | None,
        config: DeviceConfig,
        progress: Callable[[str], None],
    ) -> DraftImage:
        from dfvg_host.compile import draft_image

        if draft is None:
            draft = _shipped_draft(self.target)
        if isinstance(draft, str):
            self.draft_name = draft
            return draft_image(draft, config, self.target, progress=progress)
        self.draft_name = str(draft.source.get("name", "image"))
        return draft

    def encode(self, prompt: str, chat: bool = False) -> list[int]:
        """Return the token ids of a prompt."""
        return encode(self.target.tokenizer, prompt, chat, self.target.name)

    def decode(
        self,
        prompt: Sequence[int],
        params: DecodeParams | None = None,
        on_text: Callable[[str], None] | None = None,
        warn: Callable[[str], None] = print_warning,
    ) -> Result:
        """Run one request, see `dfvg_host.decode.decode`."""
        return decode(
            self.target,
            self.device,
            prompt,
            params,
            profile=self.profile,
            draft=self.draft_name,
            draft_context=self.draft_context,
            on_text=on_text,
            warn=warn,
        )

    def close(self) -> None:
        """Give up the device."""
        if self.device is not None:
            self.device.close()
            self.device = None

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _shipped_draft(target: LoadedTarget) -> str:
    from dfvg_host.distill.checkpoint import shipped_draft

    folder = shipped_draft()
    if target.name.lower() != DEFAULT_TARGET or not (folder / "config.json").is_file():
        raise UsageError(
            f"no draft is shipped for target {target.name}: give --draft MODEL, or --draft "
            f"{NO_DRAFT} for target-only decoding"
        )
    return str(folder)


def _check_vocabulary(image: DraftImage, draft: str | None, target: LoadedTarget) -> None:
    """Refuse a pair that can't share a tokenizer; padding at a vocabulary's end is allowed."""
    config = target.model.config.get_text_config(decoder=True)
    known = len(target.tokenizer) if target.tokenizer is not None else config.vocab_size
    if image.dims.vocab < known:
        raise ModelError(
            f"draft {draft} has a vocabulary of {image.dims.vocab}, target {target.name} one of "
            f"{known}: they must share a tokenizer"
        )
    highest = int(image.output_ids.max())
    if highest >= config.vocab_size:
        raise ModelError(
            f"draft {draft} has a vocabulary of {image.dims.vocab} and can propose id {highest}, "
            f"target {target.name} has one of {config.vocab_size}: they must share a tokenizer, "
            "and the draft's head may not be padded beyond the target's"
        )


def _mention_other_target(image: DraftImage, draft: str | None, target: LoadedTarget) -> None:
    """Say so if the draft was made for another target of the same tokenizer; it may still help."""
    made_for = image.source.get("target")
    if made_for is not None and made_for != target.digest:
        print_warning(
            f"draft {draft} was compiled for another target than {target.name}: the text is "
            "not affected, but fewer tokens may be accepted"
        )


def open_device(
    name: str,
    image: DraftImage,
    progress: Callable[[str], None],
    rtl_options: dict[str, Any],
) -> VirtualTimeDevice:
    """Open a simulated device with an image loaded.

    Raises
    ------
    BuildError
        ``rtl`` without what its simulation needs.
    """
    if name == "emulator":
        from dfvg_host.device.compute import IntegerCompute
        from dfvg_host.device.emulator import EmulatorDevice

        return EmulatorDevice(image.config, IntegerCompute.from_image(image))
    try:
        rtl = importlib.import_module("dfvg_host.device.rtl")
    except ImportError as error:
        raise BuildError(
            f"device rtl cannot be simulated here: {error} (see `dfvg doctor`)"
        ) from None
    device: VirtualTimeDevice = rtl.open_rtl(image, progress=progress, **rtl_options)
    return device


def generate(
    prompt: str | Sequence[int],
    *,
    target: str | LoadedTarget | None = None,
    draft: str | DraftImage | None = None,
    device: str = "emulator",
    config: str | DeviceConfig = "sim",
    chat: bool = False,
    dtype: str = "fp32",
    threads: int = 1,
    verifier_profile: str | None = None,
    on_text: Callable[[str], None] | None = None,
    max_new_tokens: int = 128,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 0,
    stop: Sequence[str] = (),
    tree_budget: int = 16,
    passes_per_round: int | None = None,
    schedule: str = "overlap",
    check: bool = False,
    exact: bool = False,
) -> Result:
    """Write a text with a target model, drafted by a simulated device.

    Loads everything anew; use `Engine` for more than one prompt.

    Parameters
    ----------
    prompt: a text, or token ids.
    target, draft, device, config, dtype, threads, verifier_profile: see `Engine`.
    chat: put the text into the target's chat template.
    on_text: called with each piece of text as soon as it's certain.
    max_new_tokens, stop, tree_budget, passes_per_round, schedule, check, exact: see `DecodeParams`.
    temperature, top_k, top_p, seed: see `SamplingParams`.

    Returns
    -------
    Result
        `text`, `tokens` and the statistics of docs/stats.md.

    Raises
    ------
    DfvgError
        In one line: input that can't be used.

    Examples
    --------
    >>> import dfvg_host
    >>> result = dfvg_host.generate("Why is the sky blue?", chat=True, check=True)
    >>> print(result.text, result.acceptance_length, result.identical)
    """
    params = DecodeParams(
        max_new_tokens=max_new_tokens,
        sampling=SamplingParams(temperature, top_k, top_p, seed),
        stop=tuple(stop),
        tree_budget=tree_budget,
        passes_per_round=passes_per_round,
        schedule=schedule,
        check=check,
        exact=exact,
    )
    with Engine(target, draft, device, config, dtype, threads, verifier_profile) as engine:
        ids = engine.encode(prompt, chat) if isinstance(prompt, str) else list(prompt)
        return engine.decode(ids, params, on_text)
