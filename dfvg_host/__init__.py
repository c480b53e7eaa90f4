"""The host side: models, compiler, draft devices, decode loop, verifier, distillation, CLI.

`dfvg_host.generate` is the Python entry point. It's loaded on first use because it brings in
torch and transformers, which take seconds to import.
"""

from typing import Any

from dfvg_hw.version import __version__

__all__ = ["__version__", "generate"]


def __getattr__(name: str) -> Any:
    if name == "generate":
        from dfvg_host.decode import generate

        return generate
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
