"""The caches at registered roots are listed without waiting for a root that is slow or gone."""

import gc
import time
import weakref
from pathlib import Path

import pytest

from streamcache.dataset_cache import CacheError, resolve, storage_at
from streamcache.dataset_cache.travel import push
from streamcache.nodes.library import place_to_open
from streamcache.nodes.remotes import roots as remote_roots
from streamcache.nodes.remotes.roots import READING, READY, UNREACHABLE, RemoteRoots

from ...support.datasets import write_set
from ...support.fault_proxy import STALL, FaultProxy

LONG = 60.0


def test_caches_are_found_in_folders_too_and_named_with_their_root(proxy: FaultProxy, tmp_path: Path):
    path = write_set(tmp_path / "set", range(3))
    push(path, resolve("studio/cats"))
    push(path, resolve("studio/group/deep/dogs"))
    listing = RemoteRoots()
    (root,) = listing.rows(LONG)
    assert (root.state, root.problem) == (READY, "")
    assert [cache.name for cache in root.caches] == ["studio/cats", "studio/group/deep/dogs"] == listing.names()
    assert all(cache.manifest.counts["samples"] == 3 for cache in root.caches)


def test_a_root_of_countless_folders_is_not_looked_through_to_its_end(proxy: FaultProxy, monkeypatch, tmp_path: Path):
    storage = storage_at(resolve("studio"))
    for number in range(30):
        storage.replace(f"other-{number:02d}/file", b"")
    push(write_set(tmp_path / "set", range(3)), resolve("studio/cats"))
    monkeypatch.setattr(remote_roots, "MOST_FOLDERS", 5)
    proxy.clear()
    (root,) = RemoteRoots().rows(LONG)
    assert root.state == READY and [cache.name for cache in root.caches] == ["studio/cats"]
    assert not any("other-07" in seen.path for seen in proxy.seen)


def test_a_list_is_read_again_only_when_it_is_old_or_asked_for(proxy: FaultProxy, tmp_path: Path):
    listing = RemoteRoots()
    assert listing.rows(LONG)[0].caches == ()
    push(write_set(tmp_path / "set", range(3)), resolve("studio/cats"))
    proxy.clear()
    assert listing.rows(LONG)[0].caches == () and proxy.seen == []
    assert len(listing.rows(LONG, again=True)[0].caches) == 1
    proxy.clear()
    listing.rows(LONG, again=True)
    assert not any(seen.method == "GET" and "dataset.json" in seen.path for seen in proxy.seen), "it is known"
    listing.forget()
    assert len(listing.rows(0.0)[0].caches) == 1, "what was known is shown while it is read again"


def test_a_cache_that_is_gone_from_a_root_is_not_kept_in_memory(proxy: FaultProxy, tmp_path: Path):
    push(write_set(tmp_path / "set", range(3)), resolve("studio/cats"))
    listing = RemoteRoots()
    manifest = weakref.ref(listing.rows(LONG)[0].caches[0].manifest)
    assert storage_at(resolve("studio/cats")).remove("dataset.json")
    assert listing.rows(LONG, again=True)[0].caches == ()
    gc.collect()
    assert manifest() is None


def test_a_root_that_does_not_answer_blocks_nothing(proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch):
    proxy.fault = lambda seen, number: STALL
    listing = RemoteRoots()
    began = time.monotonic()
    assert listing.rows(0.2)[0].state == READING
    assert time.monotonic() - began < 5
    monkeypatch.setattr(remote_roots, "MOST_SECONDS", 0.0)
    (root,) = listing.rows(0.0)
    assert root.state == UNREACHABLE and "no answer" in root.problem
    proxy.released.set()


def test_an_unreachable_root_stays_so_while_it_is_listed_again(proxy: FaultProxy):
    proxy.fault = lambda seen, number: 403
    listing = RemoteRoots()
    (first,) = listing.rows(LONG)
    assert first.state == UNREACHABLE and not first.again
    proxy.fault = lambda seen, number: STALL
    (root,) = listing.rows(0.0, again=True)
    assert (root.state, root.problem, root.again) == (UNREACHABLE, first.problem, True)
    proxy.fault = lambda seen, number: None
    proxy.released.set()
    (root,) = listing.rows(LONG)
    assert (root.state, root.again) == (READY, False)


def test_a_root_that_refuses_is_unreachable_with_its_reason(proxy: FaultProxy):
    proxy.fault = lambda seen, number: 403
    (root,) = RemoteRoots().rows(LONG)
    assert root.state == UNREACHABLE and "studio" in root.name and root.problem


def test_a_damaged_cache_hides_no_other(proxy: FaultProxy, tmp_path: Path):
    path = write_set(tmp_path / "set", range(3))
    push(path, resolve("studio/cats"))
    push(path, resolve("studio/dogs"))
    proxy.fault = lambda seen, number: 403 if seen.method == "GET" and "cats/dataset.json" in seen.path else None
    listing = RemoteRoots()
    (root,) = listing.rows(LONG)
    assert [bool(cache.problem) for cache in root.caches] == [True, False] and listing.names() == ["studio/dogs"]


def test_a_mistake_in_the_list_of_roots_hides_no_local_cache(state_dir: Path, tmp_path: Path):
    (state_dir / "remotes.toml").write_text("[roots.studio\n")
    here = write_set(tmp_path / "group/my_set", range(2))
    assert RemoteRoots().names() == [] and place_to_open("group/my_set", [tmp_path]) == here
    with pytest.raises(CacheError, match="is not TOML"):
        RemoteRoots().rows(LONG)
    with pytest.raises(CacheError, match="not found"):
        place_to_open("gone", [tmp_path])


def test_a_pulled_cache_is_opened_instead_of_the_remote_one(proxy: FaultProxy, tmp_path: Path):
    assert str(place_to_open("studio/cats", [tmp_path])) == resolve("studio/cats")
    here = write_set(tmp_path / "studio/cats", range(2))
    assert place_to_open("studio/cats", [tmp_path]) == here


def test_an_unregistered_root_is_no_place():
    with pytest.raises(CacheError):
        resolve("elsewhere/cats")
    assert RemoteRoots().rows(LONG) == []
