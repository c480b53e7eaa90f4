"""Reports, journals and the command of the benchmarks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dfvg_host.bench import Report, Setting
from dfvg_host.bench.__main__ import BENCHMARKS, main
from dfvg_host.bench.acceptance import DEMO_PASSES
from dfvg_host.bench.decoding import interval
from dfvg_host.bench.journal import Journal
from dfvg_host.bench.report import table
from dfvg_host.bench.rtl import FREE, differences
from dfvg_host.decode.result import Result
from dfvg_host.distill.heldout import demo_prompts
from dfvg_hw.errors import UsageError


def test_table_aligns_numbers_right_and_words_left() -> None:
    rows = [
        {"kind": "a", "value": 1.5, "same": True},
        {"kind": "long", "value": None, "same": False},
    ]
    assert table(rows) == ["kind  value  same", "a     1.500   yes", "long      -    no"]
    assert table([]) == []


def test_report_is_printed_and_written(tmp_path: Path) -> None:
    report = Report("name", "what it is", {"prompts": 3}, {"ratio": 0.25}, [{"a": 1}], ["a note"])
    lines = report.lines()
    assert lines[:2] == ["name: what it is", "  (prompts 3)"]
    assert "  ratio  0.250" in lines
    assert lines[-1] == "  a note"
    found = json.loads(report.write(tmp_path / "new").read_text())
    assert found["figures"] == {"ratio": 0.25}
    assert found["bench"] == "name"
    assert found["machine"]["cpu"]
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"cannot write .*name\.json"):
        report.write(tmp_path / "file")


def test_journal_goes_on_after_an_interruption(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    made: list[int] = []

    def make(value: int) -> int:
        made.append(value)
        return value

    first = Journal(path, {"a": 1})
    assert first.get("x", lambda: make(1)) == 1
    assert first.get("x", lambda: make(2)) == 1
    path.write_text(path.read_text() + '{"key": "cut off')
    again = Journal(path, {"a": 1})
    assert again.get("x", lambda: make(3)) == 1
    assert made == [1]


def test_journal_knows_other_settings_and_fresh_starts(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    Journal(path, {"a": 1}).get("x", lambda: 1)
    assert Journal(path, {"a": 2}).get("x", lambda: 2) == 2
    assert Journal(path, {"a": 1}).get("x", lambda: 3) == 1
    assert Journal(path, {"a": 1}, fresh=True).get("x", lambda: 4) == 4
    assert Journal(None, {}).get("x", lambda: 5) == 5


def test_journal_does_not_outlive_the_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "j.jsonl"
    Journal(path, {}).get("x", lambda: 1)
    monkeypatch.setattr("dfvg_host.bench.journal.code_digest", lambda: "other")
    assert Journal(path, {}).get("x", lambda: 2) == 2


def test_a_line_cut_off_does_not_swallow_the_next(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    path.write_text('{"key": "cut o')
    Journal(path, {}).get("x", lambda: 1)
    assert Journal(path, {}).get("x", lambda: 2) == 1


def test_interval_brackets_the_mean_and_narrows() -> None:
    few, many = [1.0, 3.0] * 5, [1.0, 3.0] * 200
    low, high = interval(few)
    assert 1.0 < low < 2.0 < high < 3.0
    assert interval(many)[0] > low
    assert interval(many)[1] < high
    assert interval([2.5]) == (2.5, 2.5)


def test_spread_covers_all_kinds() -> None:
    items = list(range(130))
    assert Setting(limit=13).spread(items) == items[::10]
    assert Setting(limit=200).spread(items) == items
    assert Setting().spread(items) == items
    assert len(Setting().spread(items, 20)) == 20
    assert len(Setting(limit=7).spread(items, 20)) == 7


def test_differences_name_every_field_but_the_free_ones() -> None:
    names = set(Result.__dataclass_fields__) - {"tie"}
    assert names >= FREE
    one = dict.fromkeys(names, 1)
    for name in names:
        assert differences(one, one | {name: 2}) == ([] if name in FREE else [name])


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (["nothing"], "unknown benchmark 'nothing': accepted are acceptance, demo"),
        (["demo", "--profile", "x.json"], "--profile x.json belongs to the benchmark verify"),
        (["demo", "--target", "no/such/model"], "no/such/model"),
    ],
)
def test_bad_input_gets_one_line(
    argv: list[str], line: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main([*argv, "--out", str(tmp_path)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert line in err
    assert len(err.strip().splitlines()) == 1


def test_all_run_on_small_parts_and_one_failure_stops_no_other(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    limits = {}

    def fake(name: str) -> Report:
        def run(setting: Setting) -> Report:
            limits[name] = setting.limit
            if name == "agree":
                raise UsageError("cannot be built here")
            return Report(name, "t")

        return run  # type: ignore[return-value]

    small = {name: entry[1] for name, entry in BENCHMARKS.items()}
    for name, entry in list(BENCHMARKS.items()):
        monkeypatch.setitem(BENCHMARKS, name, (fake(name), *entry[1:]))
    assert main(["--out", str(tmp_path)]) == 1
    assert limits == small
    assert "agree: cannot be built here" in capsys.readouterr().err
    assert len(list(tmp_path.glob("*.json"))) == len(BENCHMARKS) - 1
    assert main(["demo", "--out", str(tmp_path)]) == 0
    assert limits["demo"] is None


def test_demo_is_measured_as_it_is_run() -> None:
    makefile = (Path(__file__).parents[3] / "Makefile").read_text()
    recipe = makefile[makefile.index("\ndemo: setup") :].split("\n\n")[0]
    assert "--passes-per-round $(PASSES)" in recipe
    assert f"\nPASSES ?= {DEMO_PASSES}\n" in makefile
    # The slow test shows that this prompt's answer is as long as asked for.
    assert f"\nPROMPT ?= {demo_prompts()[0].text}\n" in makefile
    assert "--max-new-tokens 64" in recipe
    assert "--device rtl" in recipe
    assert "--check" in recipe
