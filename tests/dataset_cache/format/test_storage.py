"""The contract of a storage. Another implementation is one more parameter of `make`."""

import os
from collections.abc import Callable

import pytest
import torch

from streamcache.dataset_cache import (
    CacheError,
    CacheWriter,
    LocalStorage,
    Storage,
    clean,
    current_publisher,
    has_build,
    is_published,
    named_publisher,
    open_cache,
    preview_clean,
    published_at,
    storage_at,
)

from ...support.remote_servers import BUCKET


@pytest.fixture(params=["local", "s3"])
def make(request, tmp_path) -> Callable[[str], Storage]:
    """Makes storages of one kind, by name. A test in `TestFolders` is about what object stores lack."""
    root = f"s3://{BUCKET}/{tmp_path.name}" if request.param == "s3" else tmp_path
    if request.param == "s3":
        request.getfixturevalue("s3")

    def make(name: str) -> Storage:
        storage = storage_at(f"{root}/{name}")
        storage.make_folder()
        return storage

    return make


@pytest.fixture
def storage(make) -> Storage:
    return make("set")


def content(storage: Storage, name: str) -> bytes:
    file = storage.open(name)
    return bytes(file.read(0, file.size))


def kind(storage: Storage, name: str) -> str | None:
    status = storage.stat(name)
    return None if status is None else status.kind


def test_a_missing_folder_does_not_exist_and_lists_nothing(make):
    storage = storage_at(str(make("set").path / "missing"))
    assert not storage.exists() and storage.list() == [] and storage.list("shards") == []
    assert storage.stat("dataset.json") is None


def test_stat_names_the_kind_and_size(storage):
    storage.replace("file", b"abc")
    storage.make_folder("folder/inner")
    storage.replace("folder/inner/file", b"")
    status = storage.stat("file")
    assert status is not None and (status.kind, status.size) == ("file", 3)
    assert kind(storage, "folder") == kind(storage, "folder/inner") == "folder"
    assert storage.stat("missing") is None and storage.stat("file/below") is None


def test_the_stamp_changes_when_a_file_is_replaced(storage):
    storage.replace("file", b"abc")
    before = storage.stat("file")
    storage.replace("file", b"abcd")
    assert storage.stat("file").stamp != before.stamp


def test_list_returns_sorted_names(storage):
    for name in ("b", "a", "c"):
        storage.replace(name, b"")
    storage.make_folder("folder")
    storage.replace("folder/inner", b"")
    assert storage.exists()
    assert storage.list() == ["a", "b", "c", "folder"] and storage.list("folder") == ["inner"]


def test_replace_leaves_the_old_file_to_its_readers(storage):
    storage.replace("file", b"old")
    reader = storage.open("file")
    storage.replace("file", b"newer")
    assert bytes(reader.read(0, reader.size)) == b"old", "readers never see a part of the new file"
    assert content(storage, "file") == b"newer" and storage.list() == ["file"], "no temporary file is left"
    assert storage.open("file").identity != reader.identity


def test_f6_replace_if_lets_only_one_of_two_writers_win(storage):
    assert storage.replace_if("file", b"first", None)
    assert not storage.replace_if("file", b"second", None), "something is there"
    seen = storage.stat("file").stamp
    assert storage.replace_if("file", b"by one writer", seen)
    assert not storage.replace_if("file", b"by the other", seen), "it was replaced meanwhile"
    assert not storage.replace_if("missing", b"", seen) and storage.list() == ["file"]
    assert content(storage, "file") == b"by one writer"


def test_reads_are_positional(storage):
    storage.replace("file", b"0123456789")
    file = storage.open("file")
    first, second = bytearray(2), bytearray(3)
    file.read_into(4, [memoryview(first), memoryview(second)], 5)
    file.will_need(0, 10)
    assert (bytes(first), bytes(second), bytes(file.map())) == (b"45", b"678", b"0123456789")
    with pytest.raises(CacheError):
        file.read(8, 5)


def test_opening_refuses_what_is_not_a_file(storage):
    storage.make_folder("folder")
    storage.replace("folder/file", b"")
    for name in ("folder", "missing"):
        with pytest.raises(CacheError, match=name):
            storage.open(name)


@pytest.mark.parametrize("durable", [True, False])
def test_create_takes_the_place_of_a_file(storage, durable):
    storage.replace("file", b"a longer old content")
    with storage.create("file", durable) as file:
        file.write(b"new")
    assert content(storage, "file") == b"new"


def test_move_replaces_the_target(storage):
    storage.replace("a", b"moved")
    storage.replace("b", b"old")
    storage.move("a", "b")
    storage.sync()
    assert content(storage, "b") == b"moved" and storage.list() == ["b"]


def test_touch_creates_a_file_and_keeps_its_content(storage):
    storage.touch("file")
    assert content(storage, "file") == b""
    storage.replace("file", b"abc")
    storage.touch("file")
    assert content(storage, "file") == b"abc"


def test_remove_accepts_a_missing_file_and_keeps_folders(storage):
    storage.replace("file", b"")
    storage.make_folder("folder")
    storage.replace("folder/inner", b"")
    assert storage.remove("file") and storage.remove("file") and not storage.remove("folder")
    assert storage.list() == ["folder"]


def test_a_folder_is_removed_if_empty_or_with_its_content(storage):
    storage.make_folder("folder", new=True)
    storage.replace("folder/file", b"")
    with pytest.raises(OSError):
        storage.make_folder("folder", new=True)
    storage.remove_folder("folder")
    assert storage.list() == ["folder"], "not empty"
    storage.remove_folder("folder", content=True)
    assert storage.list() == []
    storage.remove_folder("folder")


@pytest.mark.parametrize("links", [True, False])
def test_a_file_given_to_another_dataset_outlives_the_first(make, monkeypatch, links):
    monkeypatch.setattr("streamcache.dataset_cache.format.files.HAS_LINKS", links)
    source, target = make("source"), make("target")
    source.replace("file", b"abc")
    shared = source.link_or_copy("file", target, "copy")
    assert links or not shared
    source.remove("file")
    assert content(target, "copy") == b"abc"


class TestFolders:
    """What only folders on a disk can do: object stores have neither locks nor files that grow."""

    @pytest.fixture
    def storage(self, tmp_path) -> LocalStorage:
        storage = LocalStorage(tmp_path / "set")
        storage.make_folder()
        return storage

    def test_list_refuses_what_cannot_be_listed(self, storage):
        storage.replace("file", b"")
        with pytest.raises(CacheError, match="file: cannot be listed"):
            storage.list("file")

    def test_edit_writes_at_any_position(self, storage):
        file = storage.edit("file", new=True)
        file.write(4, b"efgh")
        file.write(0, b"abcd")
        file.start_writing(0, 8)
        assert file.read(2, 4) == b"cdef"
        file.truncate(6)
        file.sync()
        file.close()
        assert content(storage, "file") == b"abcdef"
        with pytest.raises(OSError):
            storage.edit("file", new=True)
        with pytest.raises(OSError):
            storage.edit("missing")

    def test_a_lock_is_held_until_it_is_released(self, storage):
        with pytest.raises(OSError):
            storage.is_locked("lock")
        assert storage.list() == [], "asking creates no file"
        lock = storage.lock("lock")
        assert storage.is_locked("lock")
        with pytest.raises(TimeoutError):
            storage.lock("lock", 0.05)
        lock.release()
        assert not storage.is_locked("lock")
        storage.lock("lock").release()

    def test_a_dataset_is_written_read_and_cleaned_on_its_storage(self, storage):
        assert not is_published(storage) and not has_build(storage) and published_at(storage) == 0
        with CacheWriter(storage) as writer:
            writer.add(latent=torch.zeros(4, 8, 8), caption="a cat")
            assert has_build(storage) and not is_published(storage)
        assert is_published(storage) and not has_build(storage) and published_at(storage) > 0
        assert current_publisher(storage) is None and named_publisher(storage) is None
        assert open_cache(storage)[0].caption == "a cat"
        storage.replace(".index.1.tmp", b"left behind")
        plan = preview_clean(storage, ["debris"])
        assert plan.storage is storage and plan.removals[0].files == (".index.1.tmp",)
        assert clean(plan).bytes == 11 and ".index.1.tmp" not in storage.list()


class TestLinks:
    """Only folders on a disk can contain links."""

    @pytest.fixture
    def linked(self, tmp_path) -> LocalStorage:
        storage, outside = LocalStorage(tmp_path / "set"), tmp_path / "outside"
        storage.make_folder()
        outside.mkdir()
        (outside / "file").write_bytes(b"private")
        os.symlink(outside / "file", storage.path / "file")
        os.symlink(outside, storage.path / "folder")
        return storage

    def test_links_are_named_and_refused(self, linked):
        for name in ("file", "folder"):
            assert kind(linked, name) == "link"
            with pytest.raises(CacheError, match="symbolic link"):
                linked.refuse_link(name)
            with pytest.raises(CacheError, match="symbolic link"):
                linked.open(name)
        linked.refuse_link("missing")
        assert linked.list("folder") == []
        with pytest.raises(OSError):
            linked.edit("file")

    @pytest.mark.parametrize("write", ["create", "replace", "move", "copy"])
    def test_nothing_is_written_through_a_link(self, linked, monkeypatch, write):
        monkeypatch.setattr("streamcache.dataset_cache.format.files.HAS_LINKS", False)
        linked.replace("new", b"new")
        if write == "create":
            with linked.create("file") as file:
                file.write(b"new")
        elif write == "replace":
            linked.replace("file", b"new")
        elif write == "move":
            linked.move("new", "file")
        else:
            linked.link_or_copy("new", linked, "file")
        assert content(linked, "file") == b"new" and kind(linked, "file") == "file"
        assert (linked.path.parent / "outside" / "file").read_bytes() == b"private"
