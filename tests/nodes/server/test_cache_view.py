"""One cache on a page: its samples, searches and details. Looking leaves no trace on disk."""

import gc
import json
import time
import weakref
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from streamcache.dataset_cache.format.manifest import read_manifest, write_manifest
from streamcache.errors import CacheError
from streamcache.nodes.library.open_caches import OpenPool
from streamcache.nodes.outside.untrusted import Refused
from streamcache.nodes.server import cache_view
from streamcache.nodes.server.cache_list import cache_row
from streamcache.nodes.server.cache_view import (
    VIEWS,
    _open_published,
    cache_detail,
    close_views,
    open_view,
    sample_page,
)
from streamcache.nodes.server.thumbnail import thumbnail

from ...support.datasets import forge, write_set
from ...support.samples import write_cache
from .captioned import snapshot, write_captions


@pytest.fixture(autouse=True)
def nothing_open():
    yield
    close_views()


class TestSamples:
    def test_pages_follow_each_other(self, tmp_path: Path):
        shown = open_view(write_captions(tmp_path / "set", [[f"caption {n}"] for n in range(7)]))
        pages = [sample_page(shown, start, 3) for start in (0, 3, 6, 9, 1 << 52)]
        assert [[row["number"] for row in page["samples"]] for page in pages] == [[0, 1, 2], [3, 4, 5], [6], [], []]
        assert {page["total"] for page in pages} == {7}
        first = pages[0]["samples"][1]
        assert first["captions"] == ["caption 1"] and first["source"] == "Folder/IMG_1.png"
        assert (first["width"], first["height"], first["bucket"], first["set"]) == (1000, 500, "128×64", "")
        assert (first["repeats"], first["weight"]) == (1, 1.0)

    def test_every_word_must_occur_in_a_caption_or_the_source(self, tmp_path: Path):
        captions = [["A red Cat", "second line"], ["a red dog"], ["Ünïcode ÉTÉ"], [""]]
        shown = open_view(write_captions(tmp_path / "set", captions))

        def found(search: str, bucket: str = "") -> list[int]:
            return [row["number"] for row in sample_page(shown, 0, 10, search, bucket)["samples"]]

        assert found("RED") == [0, 1]
        assert found("red cat") == [0]
        assert found("cat dog") == []
        assert found("cat line") == [0]
        assert found("red img_1") == [1]
        assert found("été") == [2]
        assert found("  ") == [0, 1, 2, 3]
        assert found("folder/", "64×64") == [0, 2]
        assert found("folder") == []  # the name of the images' folder, not of an image
        assert found("", "128×64") == [1, 3]
        assert found("", "no such bucket") == []
        with pytest.raises(Refused, match="words"):
            found(" ".join(map(str, range(21))))

    def test_a_removed_generation_is_refused(self, tmp_path: Path):
        path = write_cache(tmp_path / "set", 2)
        old = read_manifest(path).generation
        shown = open_view(path, old)
        write_cache(path, 3)
        assert open_view(path, old) is shown, "what is open still can be looked at"
        close_views(path)
        with pytest.raises(Refused, match="saved again") as refusal:
            open_view(path, old)
        assert refusal.value.status == 409
        assert sample_page(open_view(path), 0, 10)["total"] == 3

    def test_damaged_numbers_raise_an_error(self, tmp_path: Path):
        path = write_set(tmp_path / "set", range(4))
        forge(path, lambda arrays: arrays["samples"].__setitem__("source", 1 << 31))
        for search in ("", "caption"):
            with pytest.raises(CacheError, match="damaged"):
                sample_page(open_view(path), 0, 10, search)

    def test_nan_does_not_reach_json(self, tmp_path: Path):
        path = write_set(tmp_path / "set", range(2))
        forge(path, lambda arrays: arrays["samples"].__setitem__("weight", np.nan))
        assert json.dumps(sample_page(open_view(path), 0, 2), allow_nan=False)


def test_details_add_up(tmp_path: Path):
    path = write_set(tmp_path / "set", range(6))
    detail = cache_detail(cache_row("set", path, []), open_view(path))
    assert json.dumps(detail, allow_nan=False)
    assert [field["name"] for field in detail["fields"]] == sorted(detail["parts"]["fields"])
    assert detail["captions"]["total"] == 12 and detail["captions"]["common"][0] == ["shared caption", 6]
    unshared = sum(field["bytes_unshared"] for field in detail["fields"])
    stored = sum(field["bytes"] for field in detail["fields"]) + detail["parts"]["unused"]
    named = 224  # an entry that no sample needs
    assert detail["saved_bytes"] == unshared - (stored - named) > 0
    assert detail["sets"] == [{"name": "main", "samples": 6, "facts": {"prior": False, "weight": 1.0}}]


def test_an_idle_view_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cache_view, "VIEWS", OpenPool(_open_published, idle_seconds=0.05))
    gone = weakref.ref(open_view(write_cache(tmp_path / "set", 1)))
    end = time.monotonic() + 30
    while gone() is not None and time.monotonic() < end:
        time.sleep(0.02)
        gc.collect()
    assert gone() is None


def test_only_a_few_views_stay_open(tmp_path: Path):
    for n in range(8):
        open_view(write_cache(tmp_path / str(n), 1))
        latest = weakref.ref(open_view(tmp_path / str(n)))
    gc.collect()
    assert len(VIEWS) == 4 and latest() is not None


def test_looking_leaves_no_trace(tmp_path: Path):
    path = write_set(tmp_path / "set", range(4))
    before = snapshot(tmp_path)
    cache_detail(cache_row("set", path, []), open_view(path))
    sample_page(open_view(path), 0, 4, "caption")
    thumbnail(open_view(path), 1)
    assert snapshot(tmp_path) == before


def test_a_manifest_with_invalid_provenance_is_shown(tmp_path: Path):
    path = write_cache(tmp_path / "set", 1)
    forged = replace(read_manifest(path), provenance={"encode": {"excluded": [1], "encoders": 7, "x": float("inf")}})
    (path / read_manifest(path).index_name).rename(path / forged.index_name)
    write_manifest(path, forged)
    detail = cache_detail(cache_row("set", path, []), open_view(path))
    assert json.dumps(detail, allow_nan=False) and detail["excluded"] == {"count": 0, "files": []}
