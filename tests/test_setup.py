"""The set-up script and the project's own metadata."""

import ast
import re
import sys
import tomllib
from pathlib import Path

import pytest

from sim.toolchain import VERILATOR_VERSION, Need
from tools import setup_env

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def installed(monkeypatch):
    """Record what would be run instead of running it."""
    commands = []
    monkeypatch.setattr(setup_env, "run", lambda what, command, log: commands.append(command))
    return commands


@pytest.mark.parametrize(
    ("version", "kept"),
    [
        ("2.13.0+cpu", True),
        ("2.9.0", True),
        ("2.14.1", True),
        ("2.15.0", False),
        ("2.8.1", False),
        ("1.13.1", False),
        ("3.0", False),
        ("nightly", False),
    ],
)
def test_a_torch_in_range_is_kept(version, kept, installed, tmp_path, monkeypatch):
    monkeypatch.delenv("TORCH_INDEX_URL", raising=False)
    found = setup_env.install_torch(["pip"], tmp_path, (version, "/some/where"), tmp_path / "log")
    link = tmp_path / "dfvg_torch.pth"
    if kept:
        assert found == version
        assert link.read_text() == "/some/where\n"
        assert installed == []
    else:
        assert found == setup_env.TORCH
        assert not link.exists()
        assert installed == [["pip", "install", f"torch=={setup_env.TORCH}"]]


def test_the_chosen_index_is_for_torch_alone(installed, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_INDEX_URL", "https://wheels.example/cpu")
    setup_env.install_torch(["pip"], tmp_path, None, tmp_path / "log")
    wanted = ["--index-url", "https://wheels.example/cpu", f"torch=={setup_env.TORCH}"]
    assert installed == [["pip", "install", *wanted]]


def test_the_range_is_that_of_the_metadata():
    (low, high) = setup_env.TORCH_RANGE
    text = f"torch>={low[0]}.{low[1]},<{high[0]}.{high[1]}"
    assert text in project()["dependencies"]
    assert setup_env.usable(setup_env.TORCH)


def test_the_torch_of_this_python_is_found(monkeypatch):
    import torch

    monkeypatch.delenv("DFVG_TORCH", raising=False)
    version, folder = setup_env.present_torch()
    assert version == torch.__version__
    assert Path(folder) == Path(torch.__file__).parent.parent
    monkeypatch.setenv("DFVG_TORCH", "own")
    assert setup_env.present_torch() is None


def test_the_stamp_covers_what_is_installed(monkeypatch, tmp_path):
    monkeypatch.delenv("TORCH_INDEX_URL", raising=False)
    stamps = [setup_env.stamp_text()]
    assert setup_env.stamp_text() == stamps[0]
    monkeypatch.setenv("TORCH_INDEX_URL", "https://wheels.example/cpu")
    stamps.append(setup_env.stamp_text())
    monkeypatch.setattr(setup_env, "ROOT", tmp_path)
    (tmp_path / "pyproject.toml").write_text("")
    stamps.append(setup_env.stamp_text())
    assert len(set(stamps)) == 3


def test_every_lack_is_named_with_its_mend(monkeypatch, tmp_path, capsys):
    lacks = [
        Need("perl", False, "not found", "get perl"),
        Need("make", True, "/bin/make"),
        Need("g++", False, "none", "get g++"),
    ]
    monkeypatch.setattr(setup_env, "host_needs", lambda: lacks)
    monkeypatch.setattr(
        setup_env, "make_environment", lambda *args: pytest.fail("went on without them")
    )
    assert setup_env.main([str(tmp_path / "venv")]) == 2
    text = capsys.readouterr().err
    for words in ("perl: not found", "mend: get perl", "g++: none", "mend: get g++"):
        assert words in text
    assert "make" not in text


def test_a_finished_environment_is_left_alone(monkeypatch, tmp_path, capsys):
    venv = tmp_path / "venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python").write_text("")
    (venv / ".dfvg-stamp").write_text(setup_env.stamp_text())
    monkeypatch.setattr(setup_env, "check_needs", lambda venv: pytest.fail("looked again"))
    assert setup_env.main([str(venv)]) == 0
    assert capsys.readouterr().out == ""


def test_a_failed_step_shows_the_end_of_its_log(tmp_path):
    log = tmp_path / "log"
    command = [sys.executable, "-c", "print('no such package'); raise SystemExit(3)"]
    with pytest.raises(setup_env.SetupError, match=r"(?s)status 3; .*no such package"):
        setup_env.run("installing", command, log)


def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_every_dependency_has_a_version_and_a_reason():
    text = (ROOT / "pyproject.toml").read_text()
    block = text[text.index("dependencies = [") : text.index("[project.scripts]")]
    previous = ""
    for line in block.splitlines():
        found = re.match(r'\s+"([a-z][^"]*)",', line)
        if found and not found[1].startswith("dfvg["):
            assert re.search(r"[=<>]=", found[1]), f"{found[1]} has no version"
            assert previous.strip().startswith("#"), f"{found[1]} has no reason"
        previous = line


def test_the_command_and_the_verilator_hint_are_right():
    assert project()["scripts"] == {"dfvg": "dfvg_host.cli:main"}
    assert f"verilator=={VERILATOR_VERSION}" in (ROOT / "pyproject.toml").read_text()


def test_the_citation_names_this_version():
    from dfvg_hw.version import __version__

    text = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {__version__}\n" in text
    assert f"\nlicense: {project()['license']}\n" in text


def imports(file):
    """Return the top-level names of everything that a file imports."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield str(node.module).split(".")[0]


@pytest.mark.parametrize(
    ("package", "forbidden"),
    [
        ("dfvg_hw", {"torch", "transformers", "cocotb", "dfvg_host", "sim", "boards"}),
        ("sim", {"torch", "transformers", "dfvg_host", "boards"}),
        ("dfvg_host", {"cocotb", "boards"}),
    ],
)
def test_packages_depend_in_one_direction(package, forbidden):
    files = sorted((ROOT / package).rglob("*.py"))
    assert files
    wrong = {f"{f.relative_to(ROOT)}: {n}" for f in files for n in imports(f) if n in forbidden}
    assert not wrong
