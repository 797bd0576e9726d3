"""The memory of source files: losing it costs time, nothing else."""

import sqlite3

import pytest

from streamcache.dataset_cache.sources.memory import Origin, SourceMemory, memory_folder, open_memory
from streamcache.dataset_cache.sources.source_files import Facts

STAMP = bytes(range(32))
ROWS = [
    ("/set", "a.png", STAMP, Facts(b"x" * 16, 64, 48, True, "PNG")),
    ("/set", "ü.txt", STAMP, Facts(b"y" * 16, text="eine Katze\nzwei")),
    ("/set", "empty.txt", STAMP, Facts(b"z" * 16, text="")),
    ("/set", "new.png", STAMP, Facts(width=3, height=4)),
    ("/set", "bad.png", STAMP, Facts(b"w" * 16, error="not an image")),
]


def test_facts_are_remembered_unchanged():
    with open_memory("one") as memory:
        memory.remember_files(ROWS)
    with open_memory("one") as memory:
        assert memory.files("/set") == {name: (stamp, facts) for _, name, stamp, facts in ROWS}
        assert memory.files("/other") == {}
        memory.forget_files("/set", ["a.png"])
        assert "a.png" not in memory.files("/set")


def test_origins_and_runs_are_remembered():
    with open_memory("one") as memory:
        memory.remember_origins([("a.png", "latent", Origin("c", "t", "e"))])
        memory.remember_run("encode", "sig", "gen", {"samples": 3})
        assert memory.origins(["a.png", "b.png"]) == {"a.png": {"latent": Origin("c", "t", "e")}}
        assert memory.run("encode") == ("sig", "gen", {"samples": 3})
        assert memory.run("other") is None


def test_a_damaged_record_is_ignored():
    with open_memory("one") as memory:
        memory.remember_files(ROWS)
        path = memory.path
    data = path.read_bytes()
    assert b"eine Katze" in data
    path.write_bytes(data.replace(b"eine Katze", b"eine Tatze"))
    with open_memory("one") as memory:
        assert set(memory.files("/set")) == {row[1] for row in ROWS} - {"ü.txt"}


@pytest.mark.parametrize("garbage", [b"", b"not a database at all" * 100, None])
def test_a_destroyed_memory_starts_over(garbage):
    with open_memory("one") as memory:
        memory.remember_files(ROWS)
        path = memory.path
    path.write_bytes(path.read_bytes()[:100] + b"\xff" * 9000 if garbage is None else garbage)
    with open_memory("one") as memory:
        assert memory.files("/set") == {}
        memory.remember_files(ROWS)
        assert len(memory.files("/set")) == 5 and not memory.problem


def test_a_memory_of_another_version_starts_over():
    with open_memory("one") as memory:
        path = memory.path
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 999")
    db.close()
    with open_memory("one") as memory:
        memory.remember_files(ROWS)
        assert len(memory.files("/set")) == 5


def test_an_unwritable_folder_is_reported_and_does_no_harm(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("STREAMCACHE_STATE_DIR", str(tmp_path / "file"))
    with open_memory("one") as memory:
        assert "the next run hashes again" in memory.problem
        memory.remember_files(ROWS)
        assert len(memory.files("/set")) == 5


def test_a_memory_adopts_the_records_of_another():
    with open_memory(None) as first, open_memory("one") as second:
        first.remember_files(ROWS)
        second.remember_files([("/set", "a.png", STAMP, Facts(b"v" * 16))])
        second.adopt(first)
        assert len(second.files("/set")) == 5
        assert second.files("/set")["a.png"][1].content == b"v" * 16


def test_the_memory_folder_follows_the_environment(monkeypatch, tmp_path, state_dir):
    assert memory_folder() == state_dir
    monkeypatch.delenv("STREAMCACHE_STATE_DIR")
    assert memory_folder().name == "streamcache"


def test_threads_share_a_memory():
    from concurrent.futures import ThreadPoolExecutor

    with SourceMemory(None) as memory, ThreadPoolExecutor(4) as pool:
        rows = [("/set", f"{n}.png", STAMP, Facts(width=n + 1)) for n in range(200)]
        list(pool.map(lambda row: memory.remember_files([row]), rows))
        assert len(memory.files("/set")) == 200


def test_an_error_of_the_program_does_not_remove_the_memory(tmp_path):
    memory = SourceMemory(tmp_path / "memory.sqlite")
    memory.remember_files([("folder", "a.png", b"s" * 32, Facts(b"c" * 16, 1, 1))])
    memory.close()
    assert memory.files("folder") == {} and memory.problem
    with SourceMemory(tmp_path / "memory.sqlite") as again:
        assert list(again.files("folder")) == ["a.png"]
