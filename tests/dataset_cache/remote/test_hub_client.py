"""Writing to Hugging Face: commits that follow each other, on a server of its kind."""

import hashlib
from pathlib import Path

import pytest

from streamcache.dataset_cache import CacheError, open_cache, storage_at, verify
from streamcache.dataset_cache.travel import pull, push

from ...support.datasets import content, write_set
from ...support.hub_server import REPO, Hub, hub_server

ADDRESS = f"hf://datasets/{REPO}/my_set"


@pytest.fixture
def hub(tmp_path, monkeypatch):
    constants = pytest.importorskip("huggingface_hub.constants")
    first = hashlib.sha1(b"first").hexdigest()
    with hub_server() as hub:
        (tmp_path / "hub" / first).mkdir(parents=True)
        hub.commits[first] = tmp_path / "hub" / first
        monkeypatch.setenv("HF_TOKEN", "hf_planted_token")
        monkeypatch.setattr(constants, "ENDPOINT", hub.address)
        template = hub.address + constants.HUGGINGFACE_CO_URL_TEMPLATE.partition("huggingface.co")[2]
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        yield hub


def newest(hub: Hub) -> Path:
    return list(hub.commits.values())[-1] / "my_set"


def test_f6_a_dataset_is_pushed_to_hugging_face_and_pulled_again(hub, tmp_path):
    folder = write_set(tmp_path / "my_set", range(7))
    assert push(folder, storage_at(ADDRESS)).files and push(folder, storage_at(ADDRESS)).files == 0
    assert content(newest(hub)) == content(folder) and list(verify(newest(hub))) == []
    write_set(folder, range(3))
    push(folder, storage_at(ADDRESS))
    pull(storage_at(ADDRESS), tmp_path / "copy")
    assert content(tmp_path / "copy") == content(folder) and len(open_cache(tmp_path / "copy")) == 3


def test_f6_of_two_that_write_to_hugging_face_one_is_refused(hub):
    storage_at(ADDRESS).replace("file", b"old")
    one, other = storage_at(ADDRESS), storage_at(ADDRESS)
    seen = one.stat("file").stamp
    assert other.stat("file").stamp == seen
    assert one.replace_if("file", b"one", seen) and not other.replace_if("file", b"other", seen)
    assert (newest(hub) / "file").read_bytes() == b"one"
    assert other.replace_if("file", b"one", seen)  # what it wants is there
    assert not storage_at(ADDRESS).replace_if("file", b"new", None)


def test_what_is_read_from_hugging_face_does_not_change_until_it_is_written_to(hub):
    reader, writer = storage_at(ADDRESS), storage_at(ADDRESS)
    writer.replace("file", b"before")
    assert reader.list() == ["file"]
    writer.replace("file", b"after")
    assert bytes(reader.open("file").read(0, 6)) == b"before" and bytes(writer.open("file").read(0, 5)) == b"after"
    reader.replace("second", b"")
    assert bytes(reader.open("file").read(0, 5)) == b"after"
    assert reader.remove("file") and reader.remove("file") and reader.list() == ["second"]


def test_a_file_that_fails_half_way_is_in_no_commit(hub):
    with pytest.raises(KeyError), storage_at(ADDRESS).create("file") as file:
        file.write(b"half of it")
        raise KeyError
    assert len(hub.commits) == 1


def test_a_revision_that_is_no_branch_is_not_written_to(hub):
    fixed = storage_at(ADDRESS.replace("/my_set", f"@{next(iter(hub.commits))}/my_set"))
    with pytest.raises(CacheError, match="the request was refused"):
        fixed.replace("file", b"abc")
    assert len(hub.commits) == 1
