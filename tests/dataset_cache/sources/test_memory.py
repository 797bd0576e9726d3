"""The state remembers, and loses nothing but time when it is lost."""

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


def test_facts_come_back_as_they_were():
    with open_memory("one") as state:
        state.remember_files(ROWS)
    with open_memory("one") as state:
        assert state.files("/set") == {name: (stamp, facts) for _, name, stamp, facts in ROWS}
        assert state.files("/other") == {}
        state.forget_files("/set", ["a.png"])
        assert "a.png" not in state.files("/set")


def test_origins_and_runs_come_back():
    with open_memory("one") as state:
        state.remember_origins([("a.png", "latent", Origin("c", "t", "e"))])
        state.remember_run("encode", "sig", "gen", {"samples": 3})
        assert state.origins(["a.png", "b.png"]) == {"a.png": {"latent": Origin("c", "t", "e")}}
        assert state.run("encode") == ("sig", "gen", {"samples": 3})
        assert state.run("other") is None


def test_a_damaged_record_is_forgotten_not_believed():
    with open_memory("one") as state:
        state.remember_files(ROWS)
        path = state.path
    data = path.read_bytes()
    assert b"eine Katze" in data
    path.write_bytes(data.replace(b"eine Katze", b"eine Tatze"))
    with open_memory("one") as state:
        assert set(state.files("/set")) == {row[1] for row in ROWS} - {"ü.txt"}


@pytest.mark.parametrize("garbage", [b"", b"not a database at all" * 100, None])
def test_a_destroyed_state_starts_anew(garbage):
    with open_memory("one") as state:
        state.remember_files(ROWS)
        path = state.path
    path.write_bytes(path.read_bytes()[:100] + b"\xff" * 9000 if garbage is None else garbage)
    with open_memory("one") as state:
        assert state.files("/set") == {}
        state.remember_files(ROWS)
        assert len(state.files("/set")) == 5 and not state.problem


def test_a_state_of_another_version_starts_anew():
    with open_memory("one") as state:
        path = state.path
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 999")
    db.close()
    with open_memory("one") as state:
        state.remember_files(ROWS)
        assert len(state.files("/set")) == 5


def test_a_folder_that_cannot_be_written_is_said_and_lived_with(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("STREAMCACHE_STATE_DIR", str(tmp_path / "file"))
    with open_memory("one") as state:
        assert "the next run hashes again" in state.problem
        state.remember_files(ROWS)
        assert len(state.files("/set")) == 5


def test_one_state_takes_over_what_another_knows():
    with open_memory(None) as first, open_memory("one") as second:
        first.remember_files(ROWS)
        second.remember_files([("/set", "a.png", STAMP, Facts(b"v" * 16))])
        second.adopt(first)
        assert len(second.files("/set")) == 5
        assert second.files("/set")["a.png"][1].content == b"v" * 16


def test_the_state_folder_follows_the_environment(monkeypatch, tmp_path, state_dir):
    assert memory_folder() == state_dir
    monkeypatch.delenv("STREAMCACHE_STATE_DIR")
    assert memory_folder().name == "streamcache"


def test_threads_share_a_state():
    from concurrent.futures import ThreadPoolExecutor

    with SourceMemory(None) as state, ThreadPoolExecutor(4) as pool:
        rows = [("/set", f"{n}.png", STAMP, Facts(width=n + 1)) for n in range(200)]
        list(pool.map(lambda row: state.remember_files([row]), rows))
        assert len(state.files("/set")) == 200
