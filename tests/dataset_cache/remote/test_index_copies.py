"""Local copies of indexes: verified, shared, replaced when they are damaged, removed within a limit."""

import os
import threading

import pytest
import xxhash

from streamcache.dataset_cache import CacheError, open_cache, storage_at
from streamcache.dataset_cache.remote import index_copies
from streamcache.dataset_cache.remote.index_copies import open_copy, remove_old

from ...support import joined
from ...support.range_server import Line, serving
from ...support.remote_servers import BUCKET, upload
from ...support.samples import assert_holds, write_cache

DATA = bytes(range(256)) * 40
DIGEST = xxhash.xxh3_128(DATA).hexdigest()


@pytest.fixture
def copies(state_dir):
    return state_dir / "copies" / "indexes"


def copy(name: str = "index-a.safetensors", data: bytes = DATA, dataset: str = "d", calls: list | None = None):
    def pieces():
        if calls is not None:
            calls.append(name)
        yield bytearray(data[:1000])
        yield bytearray(data[1000:])

    return open_copy(f"s3://bucket/{name}", name, dataset, len(DATA), DIGEST, pieces)


def test_a_copy_is_made_once_and_again_if_it_is_damaged(copies):
    calls: list[str] = []
    assert bytes(copy(calls=calls).map()) == bytes(copy(calls=calls).map()) == DATA and len(calls) == 1
    path = copies / "d" / "index-a.safetensors"
    for damaged in (DATA[:-1], DATA[:-1] + b"x", b""):
        path.write_bytes(damaged)
        assert bytes(copy(calls=calls).map()) == DATA
    assert len(calls) == 4 and [file.name for file in path.parent.iterdir() if file.suffix != ".lock"][:1]


def test_a_large_copy_is_compared_once_in_a_process_and_when_it_has_changed(copies, monkeypatch):
    monkeypatch.setattr(index_copies, "_ALWAYS_CHECKED_BYTES", 0)
    monkeypatch.setattr(index_copies, "_compared", {})
    hashed, real = [], xxhash.xxh3_128
    calls: list[str] = []
    copy(calls=calls)
    monkeypatch.setattr(index_copies.xxhash, "xxh3_128", lambda *data: hashed.append(1) or real(*data))
    for _ in range(3):
        copy(calls=calls)
    assert len(hashed) == 1 and len(calls) == 1
    path = copies / "d" / "index-a.safetensors"
    damaged = DATA[:-1] + bytes([DATA[-1] ^ 1])
    path.write_bytes(damaged)
    assert bytes(copy(calls=calls).map()) == DATA and len(calls) == 2, "changed while this process runs"
    path.write_bytes(damaged)
    index_copies._compared.clear()
    assert bytes(copy(calls=calls).map()) == DATA and len(calls) == 3, "changed before this process began"


@pytest.mark.parametrize("data", [DATA[:-1], DATA[:-1] + b"x", DATA + b"x"])
def test_what_does_not_match_its_hash_is_refused_and_not_kept(copies, data):
    with pytest.raises(CacheError, match="index-a.safetensors: (has .* expected|its content does not match)"):
        copy(data=data)
    assert not list(copies.glob("*/*.safetensors"))


def test_two_threads_that_copy_the_same_index_do_not_write_into_one_file(copies, monkeypatch):
    """As after waiting in vain for the lock."""
    monkeypatch.setattr(index_copies, "take_lock", lambda *_: (_ for _ in ()).throw(OSError("no locks here")))
    first, second, found = threading.Event(), threading.Event(), list[bytes]()

    def slow():
        yield bytearray(DATA[:1000])
        first.set()
        assert second.wait(60)
        yield bytearray(DATA[1000:])

    def make():
        found.append(bytes(open_copy("s3://bucket/a", "index-a.safetensors", "d", len(DATA), DIGEST, slow).map()))

    thread = threading.Thread(target=make)
    thread.start()
    assert first.wait(60)
    stuck = threading.Event()

    def pieces():
        yield bytearray(DATA[:500])
        second.set()
        thread.join(60)  # the other one ends while this one is half way
        stuck.set()
        yield bytearray(DATA[500:])

    assert bytes(open_copy("s3://bucket/a", "index-a.safetensors", "d", len(DATA), DIGEST, pieces).map()) == DATA
    assert found == [DATA] and stuck.is_set()


def test_what_a_killed_process_has_left_is_removed(copies):
    (copies / "d").mkdir(parents=True)
    left, new = copies / "d" / ".index-b.safetensors.1.tmp", copies / "d" / ".index-c.safetensors.2.tmp"
    for path in (left, new):
        path.write_bytes(DATA)
    os.utime(left, (1, 1))
    copy()
    assert not left.exists() and new.exists()


def test_without_room_the_index_is_held_in_memory(copies, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(index_copies, "replacing", full)
    assert bytes(copy().map()) == DATA and not list(copies.glob("*/*.safetensors"))
    with pytest.raises(CacheError, match="does not match its hash"):
        copy(data=DATA[:-1] + b"x")


def test_several_readers_make_one_copy(copies):
    calls: list[str] = []
    threads = [threading.Thread(target=copy, kwargs={"calls": calls}) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 1


def test_f4_the_files_of_an_index_are_fetched_side_by_side(tmp_path, copies):
    pytest.importorskip("obstore")
    path = joined.write(tmp_path / "set", range(1))
    with joined.growing():
        for i in range(1, 12):
            joined.write(path, range(i, i + 1), append=True)
    with serving(path, Line(latency=0.5)) as (address, line):
        cache = open_cache(address)
        names = [name for name, *_ in line.requests if name.startswith("index-")]
        assert len(names) == len(set(names)) == 12 and line.most_in_flight > 6
    assert [cache.source(i) for i in range(12)] == [f"{i}.png" for i in range(12)]
    assert len(list((copies / cache.id).iterdir())) == 12, "no locks are left"


def test_copies_that_were_not_used_for_the_longest_time_are_removed_first(copies):
    for number, name in enumerate("abc"):
        copy(f"index-{name}.safetensors", dataset=name)
        os.utime(copies / name / f"index-{name}.safetensors", (1000 + number, 1000 + number))
    copy("index-a.safetensors", dataset="a")  # used again
    remove_old(limit=2 * len(DATA))
    assert sorted(path.parent.name for path in copies.glob("*/*.safetensors")) == ["a", "c"]
    remove_old(copies / "c" / "index-c.safetensors", limit=0)
    assert [path.parent.name for path in copies.glob("*/*.safetensors")] == ["c"], "never the one that is being opened"


def test_the_copy_of_a_dataset_is_named_by_its_id_and_generation(s3, tmp_path, copies):
    address = f"s3://{BUCKET}/{tmp_path.name}"
    upload(write_cache(tmp_path / "set", 4), storage_at(address))
    cache = open_cache(address)
    path = copies / cache.id / f"index-{cache.generation}.safetensors"
    assert path.read_bytes() == (tmp_path / "set" / path.name).read_bytes()
    storage_at(address).remove(path.name)
    assert_holds(open_cache(address), range(4))
