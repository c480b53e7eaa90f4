"""The command line: every option is there, bad values get one clear line, bugs keep a traceback."""

import subprocess
import sys
import types

import pytest

from dfvg_host.cli import doctor, main
from dfvg_host.cli.main import COMMANDS, build_parser
from dfvg_host.cli.values import RULES, check
from dfvg_hw.errors import DfvgError, ImageError, UsageError
from dfvg_hw.version import __version__
from sim.toolchain import Need

DECODE_OPTIONS = """
--target --draft --device --config --prompt --prompt-file --jsonl --chat --max-new-tokens
--temperature --top-k --top-p --seed --stop --tree-budget --passes-per-round --schedule
--verifier-profile --dtype --threads --check --exact --stats --quiet --vcd
""".split()


@pytest.fixture
def decoded(monkeypatch):
    """Put a recorder in the place of the decode loop; yields the list of its calls."""
    calls = []
    module = types.ModuleType("dfvg_host.decode.run")
    module.main = lambda args: calls.append(args) or 0
    package = types.ModuleType("dfvg_host.decode")
    package.run = module
    monkeypatch.setitem(sys.modules, "dfvg_host.decode", package)
    monkeypatch.setitem(sys.modules, "dfvg_host.decode.run", module)
    return calls


def fails(capsys, *argv):
    """Run the command, check that it ends with status 2 and one line, and return the line."""
    assert main(list(argv)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("dfvg: error: ")
    assert err.count("\n") == 1
    return err


def test_version_needs_no_torch():
    code = (
        "import sys; from dfvg_host.cli import main\n"
        "try: main(['--version'])\n"
        "except SystemExit as end: assert not end.code\n"
        "heavy = {'torch', 'transformers', 'numpy', 'amaranth'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"dfvg {__version__}\n"


@pytest.mark.parametrize("command", ["decode", "compile", "elaborate", "doctor"])
def test_help_names_the_options(command, capsys):
    with pytest.raises(SystemExit) as end:
        main([command, "--help"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    wanted = {
        "decode": DECODE_OPTIONS,
        "compile": ["MODEL", "--output", "--config", "--target"],
        "elaborate": ["--config", "--output"],
        "doctor": ["--help"],
    }
    for option in wanted[command]:
        assert option in text
    assert "None" not in text, "a default that means nothing to a reader"


def test_defaults_and_conversions(decoded, tmp_path):
    assert main(["decode", "--prompt", "x"]) == 0
    args = decoded.pop()
    assert (args.device, args.config, args.schedule, args.dtype) == (
        "emulator",
        "sim",
        "overlap",
        "fp32",
    )
    assert (args.temperature, args.top_k, args.top_p, args.seed) == (0.0, 0, 1.0, 0)
    assert (args.target, args.draft, args.passes_per_round, args.stats) == (None,) * 4
    assert (args.stop, args.check, args.exact, args.quiet, args.chat) == ([], *[False] * 4)
    words = ["--temperature", "0.8", "--top-p", "0.9", "--seed", "3", "--stop", "a", "--stop", "b"]
    words += ["--max-new-tokens", "0", "--device", "rtl", "--vcd", str(tmp_path / "x.vcd")]
    assert main(["decode", "--prompt", "", *words, "--vcd-passes", "2:5"]) == 0
    args = decoded.pop()
    assert (args.temperature, args.top_p, args.seed) == (0.8, 0.9, 3)
    assert (args.max_new_tokens, args.stop, args.vcd_passes) == (0, ["a", "b"], (2, 5))
    assert args.prompt == ""


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--temperature -0.1", "--temperature is '-0.1': expected a number, 0 or more"),
        ("--temperature nan", "--temperature is 'nan': expected a number, 0 or more"),
        ("--temperature inf", "--temperature is 'inf': expected a number, 0 or more"),
        ("--top-p 0", "--top-p is '0': expected a number above 0 and up to 1"),
        ("--top-p 1.01", "--top-p is '1.01': expected a number above 0 and up to 1"),
        ("--top-k -1", "--top-k is '-1': expected a whole number, 0 or more"),
        ("--tree-budget -1", "--tree-budget is '-1': expected a whole number from 0 to 4096"),
        ("--tree-budget 1.5", "--tree-budget is '1.5': expected a whole number from 0 to 4096"),
        ("--max-new-tokens -1", "--max-new-tokens is '-1': expected a whole number, 0 or more"),
        ("--passes-per-round x", "--passes-per-round is 'x': expected a whole number from 0"),
        ("--threads 0", "--threads is '0': expected a whole number from 1 to 1024"),
        ("--seed -1", "--seed is '-1': expected a whole number from 0"),
        ("--device gpu", "--device is 'gpu': expected emulator or rtl"),
        ("--schedule both", "--schedule is 'both': expected lockstep or overlap"),
        ("--dtype fp16", "--dtype is 'fp16': expected fp32 or bf16"),
        (
            "--stats /no/such/folder/x.json",
            "--stats is '/no/such/folder/x.json': expected the name of",
        ),
        ("--stats /proc/x.json", "--stats is '/proc/x.json': expected the name of a file that can"),
        (f"--stats {'a' * 300}", "(302 characters): expected the name of a file"),
        (f"--max-new-tokens 1{'0' * 5000}", "(5003 characters): expected a whole number"),
        ("--vcd-passes 3:1", "--vcd-passes is '3:1': expected FIRST:LAST"),
        ("--vcd x.vcd", "--vcd needs --device rtl: the device is emulator"),
        ("--stop=", "--stop is '': expected a text that is not empty"),
        ("--bogus", "unrecognized arguments: --bogus"),
        ("--seed", "--seed: expected one argument"),
        ("--jsonl x", "--jsonl is 'x': expected a readable file (No such file or directory)"),
        ("--temp 1", "unrecognized arguments: --temp 1"),
    ],
)
def test_bad_decode_values(decoded, capsys, words, line):
    assert line in fails(capsys, "decode", "--prompt", "x", *words.split())
    assert not decoded, "a bad value must be found before anything is loaded"


def test_prompts_exclude_each_other_and_one_is_needed(decoded, capsys, tmp_path):
    file = tmp_path / "p.txt"
    file.write_text("hello")
    assert "--prompt --prompt-file --jsonl is required" in fails(capsys, "decode")
    text = fails(capsys, "decode", "--prompt", "x", "--prompt-file", str(file))
    assert "not allowed with argument --prompt" in text
    assert main(["decode", "--prompt-file", str(file)]) == 0
    assert decoded[0].prompt_file == file


def test_bad_commands_and_outputs(capsys, tmp_path):
    known = ", ".join(COMMANDS)
    assert f"no command: expected one of {known}" in fails(capsys)
    assert f"command is 'train': expected one of {known}" in fails(capsys, "train")
    assert "--output is" in fails(capsys, "compile", "m", "-o", str(tmp_path))
    assert "--output is" in fails(capsys, "compile", "m", "-o", str(tmp_path / "no" / "x.dfvg"))
    assert "--output is" in fails(capsys, "compile", "m", "-o", str(tmp_path / ("a" * 252)))
    assert "arguments are required: -o/--output" in fails(capsys, "compile", "m")
    assert "--output is" in fails(capsys, "elaborate", "-o", "/proc/new")
    (tmp_path / "file").write_text("")
    assert "expected a folder" in fails(capsys, "elaborate", "-o", str(tmp_path / "file"))


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (
            ImageError("x.dfvg is truncated:\n  12 of 64 bytes"),
            2,
            "dfvg: error: x.dfvg is truncated: 12 of 64 bytes\n",
        ),
        (KeyboardInterrupt(), 130, "dfvg: interrupted\n"),
    ],
)
def test_errors_become_a_status_and_a_line(monkeypatch, decoded, capsys, error, status, line):
    def fail(args):
        raise error

    monkeypatch.setattr(sys.modules["dfvg_host.decode.run"], "main", fail)
    assert main(["decode", "--prompt", "x"]) == status
    assert capsys.readouterr().err == line


def test_a_bug_keeps_its_traceback(monkeypatch, decoded):
    monkeypatch.setattr(sys.modules["dfvg_host.decode.run"], "main", lambda args: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        main(["decode", "--prompt", "x"])


def test_the_status_of_the_work_is_the_command_s(monkeypatch, decoded):
    monkeypatch.setattr(sys.modules["dfvg_host.decode.run"], "main", lambda args: 1)
    assert main(["decode", "--prompt", "x"]) == 1


def test_every_rule_belongs_to_an_option_and_names_what_it_accepts():
    parser = build_parser("decode")
    text = parser._subparsers._group_actions[0].choices["decode"].format_help()
    parser = build_parser("compile")
    text += parser._subparsers._group_actions[0].choices["compile"].format_help()
    for name, rule in RULES.items():
        assert f"--{name.replace('_', '-')} " in text
        with pytest.raises(UsageError) as error:
            check(name, "\0")
        assert str(error.value) == f"{name} is '\\x00': expected {rule.accepted()}"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("seed", True),
        ("seed", 1.5),
        ("top_p", None),
        ("max_new_tokens", -1),
        ("top_k", "many"),
        ("temperature", float("nan")),
        ("vcd_passes", (1,)),
        ("seed", 2**64),
    ],
)
def test_python_callers_get_the_same_judgement(name, value):
    with pytest.raises(UsageError, match=f"^{name} is "):
        check(name, value)


@pytest.mark.parametrize(
    ("name", "value", "result"),
    [
        ("seed", 2**64 - 1, 2**64 - 1),
        ("top_p", 1, 1.0),
        ("max_new_tokens", 0, 0),
        ("temperature", "1e-3", 0.001),
        ("tree_budget", 16.0, 16),
        ("vcd_passes", (0, 0), (0, 0)),
    ],
)
def test_limits_are_accepted(name, value, result):
    assert check(name, value) == result


def test_user_errors_are_value_errors_with_status_2():
    assert issubclass(DfvgError, ValueError)
    assert DfvgError.exit_code == 2


def test_doctor_reports_each_need_and_fails_only_for_what_is_needed(capsys):
    good = Need("python", True, "3.11")
    slow = Need("ccache", False, "not found", "apt-get install ccache", optional=True)
    bad = Need("perl", False, "not found", "apt-get install perl")
    assert doctor.run(None, lambda: iter([good, slow])) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "ok    python         3.11",
        "note  ccache         not found; to mend: apt-get install ccache",
        "all that decoding needs is here",
    ]
    assert doctor.run(None, lambda: iter([good, bad])) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[1:] == [
        "FAIL  perl           not found; to mend: apt-get install perl",
        "1 to mend",
    ]


def test_doctor_looks_at_everything_that_it_promises(monkeypatch, tmp_path):
    monkeypatch.setenv("DFVG_CACHE", str(tmp_path / "cache"))
    needs = {need.name: need for need in doctor.machine_needs()}
    assert set(needs) >= {
        "python",
        "torch",
        "CUDA",
        "transformers",
        "accelerate",
        "gguf",
        "safetensors",
        "numpy",
        "amaranth",
        "verilator",
        "g++",
        "perl",
        "make",
        "ccache",
        "pyosys",
        "disk",
        "memory",
        "cache",
    }
    assert needs["torch"].ok
    assert needs["cache"].ok
    for need in needs.values():
        assert need.ok or need.mend or need.name == "CUDA"


def test_doctor_finds_what_is_missing(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setenv("DFVG_CACHE", "/proc/dfvg")
    from sim import toolchain

    toolchain.compiler_identity.cache_clear()
    try:
        needs = {need.name: need for need in doctor.machine_needs()}
    finally:
        toolchain.compiler_identity.cache_clear()
    assert {n for n, need in needs.items() if not need.ok} >= {"g++", "make", "perl", "cache"}
    assert "no-such-compiler" in needs["g++"].detail


@pytest.mark.verilator
@pytest.mark.synth
def test_elaborate_checks_what_was_written(monkeypatch, capsys, tmp_path):
    texts = {
        "good": "module good(input a, output b); assign b = ~a; endmodule\n",
        "worse": "module worse(input e, input d, output reg q);\n"
        "  always_latch if (e) q = d;\nendmodule\n",
    }
    module = types.ModuleType("dfvg_hw.elaborate")
    written = ["good"]

    def write(args):
        for name in written:
            (args.output / f"{name}.v").write_text(texts[name])
        return 0

    module.main = write
    monkeypatch.setitem(sys.modules, "dfvg_hw.elaborate", module)
    assert main(["elaborate", "-o", str(tmp_path), "--check"]) == 0
    assert "good.v: no lint finding" in capsys.readouterr().out
    written.append("worse")
    assert main(["elaborate", "-o", str(tmp_path)]) == 0, "not checked, as not asked for"
    capsys.readouterr()
    assert main(["elaborate", "-o", str(tmp_path), "--check"]) == 2
    assert "worse" in capsys.readouterr().err
    written.clear()
    (tmp_path / "empty").mkdir()
    assert main(["elaborate", "-o", str(tmp_path / "empty"), "--check"]) == 2
