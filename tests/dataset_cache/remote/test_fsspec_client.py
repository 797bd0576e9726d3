"""Addresses through fsspec: a file system of fsspec, and reading Hugging Face on a server of its kind."""

import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from streamcache.dataset_cache import CacheError, RemoteStorage, open_cache, verify
from streamcache.dataset_cache.address import Address
from streamcache.dataset_cache.remote.fsspec_client import FsspecClient
from streamcache.dataset_cache.remote.roots import Options
from streamcache.dataset_cache.travel import push

from ...support.datasets import content, flip, write_set
from ...support.hub_server import REPO, TOKEN, hub_server

ROOT = Path(__file__).parents[3]


@pytest.fixture
def storage(tmp_path, monkeypatch) -> RemoteStorage:
    """The folder `tmp_path / "www"` as a place that only fsspec reaches."""
    (tmp_path / "www").mkdir()
    local = importlib.import_module("fsspec.implementations.local").LocalFileSystem(auto_mkdir=True)
    opened = "streamcache.dataset_cache.remote.fsspec_client._open_file_system"
    monkeypatch.setattr(opened, lambda address, options: (local, str(tmp_path / "www")))
    address = Address.parse("s3://bucket/my_set")
    return RemoteStorage(address, FsspecClient(address, Options()))


def test_f4_a_dataset_is_read_through_fsspec_as_from_a_folder(storage, tmp_path):
    folder = write_set(tmp_path / "my_set", range(7))
    shutil.copytree(folder, tmp_path / "www", dirs_exist_ok=True)
    assert content(open_cache(storage, check=True)) == content(open_cache(folder)) and not list(verify(storage))
    assert open_cache(storage).read_batch([0, 2]).captions == open_cache(folder).read_batch([0, 2]).captions


def test_files_are_written_through_fsspec_and_a_race_is_noticed(storage):
    assert not storage.exists() and storage.stat("file") is None
    with storage.create("folder/file") as file:
        file.write(b"abc")
    assert storage.list() == ["folder"] and bytes(storage.open("folder/file").read(0, 3)) == b"abc"
    assert storage.replace_if("file", b"first", None) and not storage.replace_if("file", b"second", None)
    seen = storage.stat("file").stamp
    assert storage.replace_if("file", b"longer", seen) and not storage.replace_if("file", b"again", seen)
    storage.move("file", "other")
    assert storage.list() == ["folder", "other"] and storage.remove("other") and storage.remove("other")
    with pytest.raises(CacheError, match="s3://bucket/my_set/other: is missing"):
        storage.open("other")


def test_a_file_that_was_not_written_to_its_end_is_not_there(storage, tmp_path):
    storage.replace("file", b"before")
    for name in ("file", "new"):
        with pytest.raises(KeyError), storage.create(name) as file:
            file.write(b"half of it")
            raise KeyError
    assert bytes(storage.open("file").read(0, 6)) == b"before" and storage.stat("new") is None


def test_f6_a_damaged_file_is_not_pushed_through_fsspec_by_a_second_attempt(storage, tmp_path):
    folder = write_set(tmp_path / "my_set", range(7))
    shard = next((folder / "shards").iterdir())
    flip(shard, shard.stat().st_size - 50)
    for _ in range(2):
        with pytest.raises(CacheError, match="do not match their hash"):
            push(folder, storage)
    assert not storage.exists() or storage.stat("dataset.json") is None


SCRIPT = """
import sys
sys.path.insert(0, {root!r})
from tests.support.package import register_package
register_package()
from streamcache.dataset_cache import CacheError, open_cache, verify
from tests.support.datasets import content
for address, folder in zip(sys.argv[1::2], sys.argv[2::2]):
    try:
        cache = open_cache(address)
        print(content(cache) == content(open_cache(folder)), len(list(verify(address))), cache.path)
    except CacheError as error:
        print(error)
"""


@pytest.fixture
def hub(tmp_path):
    with hub_server() as hub:
        for commit, count in (("aaa", 5), ("bbb", 6)):
            hub.commits[commit] = tmp_path / commit
            write_set(tmp_path / commit / "my_set", range(count))
        yield hub


def read(hub, tmp_path: Path, token: str, *places: object) -> list[str]:
    """What a process of its own prints, because the hub's address counts when its package is loaded."""
    script = tmp_path / "read.py"
    script.write_text(SCRIPT.format(root=str(ROOT)))
    variables = {**os.environ, "HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path / "home"), "HF_TOKEN": token}
    run = subprocess.run(
        [sys.executable, script, *places], capture_output=True, text=True, timeout=100, cwd=ROOT, env=variables
    )
    assert TOKEN not in run.stdout + run.stderr and run.returncode == 0, run.stderr
    return run.stdout.splitlines()


@pytest.mark.slow
def test_f4_f7_a_dataset_on_hugging_face_is_read_as_from_a_folder_with_the_token_of_the_environment(hub, tmp_path):
    new, old = f"hf://datasets/{REPO}/my_set", f"hf://datasets/{REPO}@aaa/my_set"
    hub.private = True
    missing = f"hf://datasets/{REPO}/missing"
    places = [new, tmp_path / "bbb/my_set", old, tmp_path / "aaa/my_set", missing, "-"]
    assert read(hub, tmp_path, TOKEN, *places) == [f"True 0 {new}", f"True 0 {old}", f"{missing}: no such cache"]


def test_f7_a_private_repository_without_a_token_is_refused(hub, tmp_path):
    hub.private = True
    (said,) = read(hub, tmp_path, "", f"hf://datasets/{REPO}/my_set", "-")
    assert "access was denied" in said and "set HF_TOKEN or log in" in said


@pytest.mark.parametrize("address", ["hf://models/owner/name", "hf://datasets/owner"])
def test_what_is_no_dataset_of_the_hub_is_refused(address):
    with pytest.raises(CacheError, match="is not a dataset of Hugging Face; expected hf://datasets/owner/name/path"):
        open_cache(address)
