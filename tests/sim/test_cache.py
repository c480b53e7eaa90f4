"""The build cache: atomic, made once among processes, pruned by age."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sim.cache import BuildCache, content_key, tree_digest

ROOT = Path(__file__).parents[2]


def test_keys_depend_on_contents_and_on_where_parts_end(tmp_path):
    file = tmp_path / "f"
    file.write_text("ab")
    assert content_key(["ab", "c"]) != content_key(["a", "bc"])
    assert content_key([file]) == content_key(["ab"]) == content_key([b"ab"])
    assert content_key([]) != content_key([""])


def test_tree_digest_sees_names_and_contents(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.py").write_text("1")
    digests = [tree_digest(tmp_path)]
    (tmp_path / "note.txt").write_text("not code")
    assert tree_digest(tmp_path) == digests[0]
    (tmp_path / "sub" / "a.py").rename(tmp_path / "sub" / "b.py")
    digests.append(tree_digest(tmp_path))
    (tmp_path / "sub" / "b.py").write_text("2")
    digests.append(tree_digest(tmp_path))
    assert len(set(digests)) == 3


def test_an_entry_is_made_once(tmp_path):
    cache, calls = BuildCache(tmp_path), []

    def make(folder):
        calls.append(folder)
        (folder / "x").write_text("done")

    first, second = cache.get("a", "k", make), cache.get("a", "k", make)
    assert first == second == tmp_path / "a-k"
    assert (first / "x").read_text() == "done"
    assert len(calls) == 1
    assert cache.get("a", "other", make) != first


def test_a_failed_build_leaves_nothing(tmp_path):
    cache = BuildCache(tmp_path)

    def make(folder):
        (folder / "half").write_text("")
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        cache.get("a", "k", make)
    assert [p for p in tmp_path.iterdir() if not p.name.endswith(".lock")] == []
    assert cache.get("a", "k", lambda folder: None).is_dir(), "the lock was released"


def test_processes_that_want_the_same_entry_make_it_once(tmp_path):
    code = (
        "import sys, time, os; from pathlib import Path; from sim.cache import BuildCache\n"
        "def make(folder):\n"
        "    with open(sys.argv[1] + '/made', 'a') as f: f.write('x')\n"
        "    time.sleep(0.5); (folder / 'ready').write_text('yes')\n"
        "entry = BuildCache(Path(sys.argv[1]) / 'builds').get('a', 'k', make)\n"
        "assert (entry / 'ready').read_text() == 'yes'\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    workers = [subprocess.Popen(command, cwd=ROOT) for _ in range(4)]
    assert [worker.wait(timeout=60) for worker in workers] == [0] * 4
    assert (tmp_path / "made").read_text() == "x"


def test_pruning_drops_what_was_unused_longest(tmp_path):
    cache = BuildCache(tmp_path)
    for age_hours, name in [(9, "oldest"), (5, "older"), (0.1, "recent"), (20, "kept")]:
        folder = tmp_path / f"{name}-k"
        folder.mkdir()
        (folder / "data").write_bytes(bytes(1000))
        stamp = time.time() - age_hours * 3600
        os.utime(folder, (stamp, stamp))
    (tmp_path / ".half-built").mkdir()
    kept = tmp_path / "kept-k"
    assert cache.prune(kept, limit=5000) == []
    assert cache.prune(kept, limit=2000) == [tmp_path / "oldest-k"]
    assert cache.prune(kept, limit=0) == [tmp_path / "older-k"]
    assert (tmp_path / "recent-k").is_dir(), "in use, perhaps"
    assert kept.is_dir()
    assert (tmp_path / ".half-built").is_dir(), "another process may be filling it"
    os.utime(tmp_path / ".half-built", (0, 0))
    cache.prune(kept)
    assert not (tmp_path / ".half-built").exists()


def test_a_hit_counts_as_use(tmp_path):
    cache = BuildCache(tmp_path)
    entry = cache.get("a", "k", lambda folder: None)
    os.utime(entry, (0, 0))
    cache.get("a", "k", lambda folder: None)
    assert time.time() - entry.stat().st_mtime < 60
