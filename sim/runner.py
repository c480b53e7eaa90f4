"""Runs cocotb testbenches on Verilator, built lean, cached and counted.

    run_bench(Queue(8, depth=4), "tests.cocotb.tb_queue", expected_tests=6)

cocotb's own Verilator runner makes every signal of the design public, which for large designs
multiplies compile time and slows simulation severely. Here a control file makes public only the
top's ports (and whatever is asked for by name), builds are shared by content between tests, and a
bench that finds fewer tests than expected fails instead of passing with nothing run.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from dfvg_hw.verilog import to_verilog
from sim.cache import BuildCache, content_key, say
from sim.toolchain import cache_root, compiler_identity, verilator_version
from sim.verilate import (
    WARNING_FLAGS,
    check_build_needs,
    failure_log,
    run_make,
    run_tool,
)

__all__ = ["BenchFailure", "BenchResult", "bench_seed", "build_bench", "control_file", "run_bench"]

_DEFAULT_SEED = 20260


class BenchFailure(AssertionError):
    """A bench whose tests failed, or of which too few or too many ran."""


@dataclass(frozen=True)
class BenchResult:
    """What a bench did.

    Parameters
    ----------
    tests, failures : int
        Counts from the results file.
    seed : int
        The seed that all randomness came from.
    folder : Path
        Working folder of the run: log, results, waveform. Gone if the run passed and neither
        `waves` nor `test_dir` was given.
    seconds : float
        Wall time of the simulation, without the build.
    """

    tests: int
    failures: int
    seed: int
    folder: Path
    seconds: float


def bench_seed(seed: int | None = None) -> int:
    """Return the seed of a run: `DFVG_SEED` if set, else the argument, else a fixed one."""
    text = os.environ.get("DFVG_SEED", "")
    if text:
        return int(text, 0)
    return _DEFAULT_SEED if seed is None else seed


def _ports(verilog: str, top: str) -> list[tuple[str, str]]:
    """Return (direction, name) of the top module's ports."""
    module = re.search(rf"^module {re.escape(top)}\b.*?^endmodule", verilog, re.M | re.S)
    if module is None:
        raise ValueError(f"no module {top!r} in the Verilog")
    found = re.findall(
        r"^\s*(input|output)\s+(?:wire|reg|logic)?\s*(?:\[[^]]*\]\s*)?(\w+)\s*[;,]?",
        module.group(0),
        re.M,
    )
    return [(direction, name) for direction, name in found]


def control_file(verilog: str, top: str, public: Sequence[str] = ()) -> str:
    """Return a Verilator control file that opens the top's ports to a testbench.

    Parameters
    ----------
    verilog : str
        The design.
    top : str
        The top module.
    public : sequence of str
        More signals to read, each as MODULE.SIGNAL.
    """
    lines = ["`verilator_config"]
    for direction, name in _ports(verilog, top):
        kind = "public_flat_rw" if direction == "input" else "public_flat_rd"
        lines.append(f'{kind} -module "{top}" -var "{name}"')
    for path in public:
        module, signal = path.rsplit(".", 1)
        lines.append(f'public_flat_rd -module "{module}" -var "{signal}"')
    return "\n".join(lines) + "\n"


def _to_verilog(design: Any, top: str) -> str:
    """Return Verilog text from text, a file, a component or a function that returns one."""
    if isinstance(design, Path):
        return design.read_text()
    if isinstance(design, str):
        return design
    return to_verilog(design() if callable(design) else design, top)


def build_bench(
    verilog: str,
    top: str,
    *,
    waves: bool = False,
    public: Sequence[str] = (),
    flags: Sequence[str] = (),
    cache: BuildCache | None = None,
) -> Path:
    """Build a simulator executable for cocotb, or take it from the cache.

    Parameters
    ----------
    verilog : str
        The design as text.
    top : str
        Its top module.
    waves : bool
        Able to write a waveform.
    public : sequence of str
        Signals below the top that the bench reads, each as MODULE.SIGNAL.
    flags : sequence of str
        More arguments for Verilator.

    Returns
    -------
    Path
        The executable, called like the top.
    """
    import cocotb
    import cocotb_tools.config as cocotb_config

    cache = cache or BuildCache()
    control = control_file(verilog, top, public)
    main = cocotb_config.share_dir / "lib" / "verilator" / "verilator.cpp"
    libs = str(cocotb_config.libs_dir)
    command = ["verilator", "--cc", "--exe", "-Mdir", "obj", "--prefix", "Vtop", "--vpi"]
    command += ["--top-module", top, "--no-timing", "--timescale", "1ns/1ps", *WARNING_FLAGS]
    command += ["--trace", "--trace-structs"] if waves else []
    command += [*flags, "-LDFLAGS", f"-Wl,-rpath,{libs} -L{libs} -lcocotbvpi_verilator"]
    command += ["-o", top, str(main), "ports.vlt", "top.v"]
    tools = [verilator_version(), compiler_identity(), cocotb.__version__]
    key = content_key(["bench-1", verilog, control, *command, *tools])

    def make(folder: Path) -> None:
        check_build_needs(cache.root)
        with cache.lock("one-build-at-a-time"):
            start = time.monotonic()
            log = failure_log(cache, top)
            (folder / "top.v").write_text(verilog)
            (folder / "ports.vlt").write_text(control)
            run_tool(command, folder, f"translating {top}", log)
            # Benches are short: compile time counts for more than speed.
            variables = ["OPT_FAST=-O1", "OPT_SLOW=-O0", "OPT_GLOBAL=-O1"]
            variables += [f"VM_TRACE={int(waves)}"]
            run_make(folder / "obj", "Vtop.mk", variables, f"compiling {top}", log)
            shutil.move(folder / "obj" / top, folder / top)
            shutil.rmtree(folder / "obj")
            shutil.move(log, folder / "build.log")
            say(f"[build] bench {top}: done in {time.monotonic() - start:.0f} s")

    return cache.get(f"bench-{top}", key, make) / top


def _verdict(results: Path) -> tuple[int, list[str]]:
    """Return the number of tests and a line about each that failed."""
    if not results.is_file():
        return 0, []
    tests, bad = 0, []
    for case in ElementTree.parse(results).getroot().iter("testcase"):
        tests += 1
        for kind in ("failure", "error"):
            for item in case.findall(kind):
                text = (item.get("message") or item.get("error_msg") or item.text or "").strip()
                bad.append(f"{case.get('name')}: {text.splitlines()[0] if text else kind}")
    return tests, bad


def _simulate(executable: Path, folder: Path, env: Mapping[str, str], **settings: Any) -> None:
    """Run the simulator; its exit status counts for nothing beside the results file."""
    from cocotb_tools.runner import get_runner

    runner = get_runner("verilator")
    try:
        runner.test(
            hdl_toplevel=executable.name,
            hdl_toplevel_lang="verilog",
            build_dir=executable.parent,
            test_dir=folder,
            results_xml=str(folder / "results.xml"),
            log_file=folder / "sim.log",
            extra_env=env,
            **settings,
        )
    except (SystemExit, RuntimeError):
        pass


def run_bench(
    design: Any,
    test_module: str,
    *,
    expected_tests: int,
    top: str = "top",
    seed: int | None = None,
    waves: bool = False,
    public: Sequence[str] = (),
    flags: Sequence[str] = (),
    parameters: Mapping[str, object] | None = None,
    testcase: str | Sequence[str] | None = None,
    test_dir: Path | None = None,
    cache: BuildCache | None = None,
) -> BenchResult:
    """Build a design, run a cocotb module on it, and check that the right number of tests passed.

    Parameters
    ----------
    design : component, callable, str or Path
        An Amaranth component, a function that returns one, or Verilog (text or file).
    test_module : str
        Import path of the Python module with the cocotb tests.
    expected_tests : int
        How many tests must run and pass, every value of a parametrised test counted.
    top : str
        Name of the top module.
    seed : int, optional
        Seed of all randomness; `DFVG_SEED` overrides it. Printed, and part of a failure's text.
    waves : bool
        Write `dump.vcd` into the working folder and keep the folder. `WAVES=1` does it too.
    public : sequence of str
        Signals below the top that the bench reads, each as MODULE.SIGNAL.
    flags : sequence of str
        More arguments for Verilator.
    parameters : mapping, optional
        Values the bench reads with `sim.cocotb.bench.parameter`, as environment variables.
    testcase : str or sequence of str, optional
        Run only these tests.
    test_dir : Path, optional
        Working folder; a temporary one, deleted on success, by default.

    Returns
    -------
    BenchResult

    Raises
    ------
    BenchFailure
        If a test failed, or the number of tests isn't `expected_tests`.
    BuildError
        If the simulator can't be built.
    """
    waves = waves or os.environ.get("WAVES", "") not in ("", "0")
    executable = build_bench(
        _to_verilog(design, top), top, waves=waves, public=public, flags=flags, cache=cache
    )
    chosen = bench_seed(seed)
    label = test_module.rsplit(".", 1)[-1]
    runs = cache_root() / "runs"
    runs.mkdir(parents=True, exist_ok=True)
    folder = Path(test_dir or tempfile.mkdtemp(prefix=f"{label}-", dir=runs)).absolute()
    env = {"DFVG_SEED": str(chosen), "PYTHONHASHSEED": "0", "COCOTB_ANSI_OUTPUT": "0"}
    env |= {f"DFVG_PARAM_{n.upper()}": str(v) for n, v in (parameters or {}).items()}
    print(f"[bench] {test_module}: seed {chosen}, in {folder}", file=sys.stderr)
    start = time.monotonic()
    _simulate(
        executable,
        folder,
        env,
        test_module=test_module,
        seed=chosen,
        waves=waves,
        testcase=testcase,
    )
    seconds = time.monotonic() - start
    tests, bad = _verdict(folder / "results.xml")
    if bad or tests != expected_tests:
        raise BenchFailure(_failure_text(test_module, tests, expected_tests, bad, chosen, folder))
    if test_dir is None and not waves:
        shutil.rmtree(folder)
    return BenchResult(tests, 0, chosen, folder, seconds)


def _failure_text(
    module: str, tests: int, expected: int, bad: Sequence[str], seed: int, folder: Path
) -> str:
    """Say what failed, how to run it again, and quote the end of the simulator's log."""
    log = folder / "sim.log"
    tail = log.read_text(errors="replace").splitlines()[-40:] if log.is_file() else ["no log"]
    head = f"{module}: {len(bad)} of {tests} tests failed, {expected} expected to pass"
    return "\n".join([head, f"again with DFVG_SEED={seed}; log: {log}", *bad, "", *tail])
