"""Which file in a cache folder has which purpose."""

from pathlib import Path

import pytest

from streamcache.dataset_cache import CacheWriter, Problem, open_cache
from streamcache.dataset_cache.upkeep import verify

from ...support.datasets import (
    put_sample,
    write_set,
)


def check(path: Path, kind: str | None = None) -> list[Problem]:
    return [problem for problem in verify(path) if kind in (None, problem.kind)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_set(tmp_path / "my set ünï", range(5))


def test_files_of_a_killed_publisher_are_debris(path: Path):
    (path / ".index.123.tmp").write_bytes(b"12345")
    (path / ".build" / "compact-00aa").mkdir(parents=True)
    (path / ".build" / "compact-00aa" / "0").write_bytes(b"123")
    stray = path / "shards" / f"s-00099-{'0' * 32}.safetensors"
    stray.write_bytes(b"1234567")
    places = {problem.place for problem in check(path, "debris")}
    assert {".index.123.tmp", ".build/compact-00aa/0", f"shards/{stray.name}"} <= places


def test_files_of_the_user_are_not_debris(path: Path):
    for name in ("notes.txt", "shards/preview.png", "index-old.safetensors", ".hidden"):
        (path / name).write_bytes(b"mine")
    assert check(path) == []


def test_an_unfinished_build_is_not_debris(path: Path):
    writer = CacheWriter(path)
    put_sample(writer, 7)
    writer.flush()
    assert check(path) == []  # while it is written
    writer.close()
    assert check(path) == []  # and while it waits to be taken over


def test_an_older_generation_in_use_is_not_debris(path: Path):
    reader = open_cache(path)
    write_set(path, [1])
    assert check(path) == []
    assert len(reader) == 5
