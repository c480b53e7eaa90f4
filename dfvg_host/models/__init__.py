"""Targets and drafts from Hugging Face folders, hub ids, GGUF files and the packaged default."""

from dfvg_hw.errors import ModelError

from .loader import DEFAULT_TARGET, LoadedTarget, load_target

__all__ = ["DEFAULT_TARGET", "LoadedTarget", "ModelError", "load_target"]
