"""Filters, orders, pages and charts of a folder, as pages ask for them."""

from pathlib import Path

import pytest

from streamcache.dataset_cache import Transform
from streamcache.dataset_cache.curate import ImageFilter
from streamcache.nodes.folders.alike import find_alike, groups_of
from streamcache.nodes.folders.charts import folder_charts
from streamcache.nodes.folders.folder_view import view_page
from streamcache.nodes.folders.open_folders import FolderNow, look_at
from streamcache.nodes.folders.query import Query
from streamcache.nodes.outside.untrusted import Refused

from .pictures import write_folder


@pytest.fixture
def now(tmp_path: Path) -> FolderNow:
    return look_at(
        write_folder(tmp_path / "cats", {"a.png": "red, cat", "b.png": "red", "3_c/c.png": "", "d.png": "x"})
    )


def test_a_list_is_made_once(now: FolderNow):
    query = Query(ImageFilter(tag="RED"), "caption length", descending=True)
    assert [image.name for image in query.images(now)] == ["a.png", "b.png"]
    assert query.images(now) is Query(ImageFilter(tag="RED"), "caption length", descending=True).images(now)


def test_what_cannot_be_asked_is_refused():
    with pytest.raises(Refused, match="order"):
        Query(order="beauty")
    with pytest.raises(Refused, match="21 words"):
        Query(ImageFilter(words="a " * 21))


def test_look_alikes_are_needed_first(now: FolderNow):
    query = Query(ImageFilter(alike=True), "similarity")
    with pytest.raises(Refused, match="find look-alikes first") as refused:
        query.images(now)
    assert refused.value.status == 409
    steps = []
    find_alike(now, lambda done, total: steps.append((done, total)))
    assert steps[-1] == (4, 4) and groups_of(now)
    assert len(query.images(now)) == 4, "all of them are plain"


def test_pages_cover_everything_once(now: FolderNow):
    pages = [view_page(now, Query(), start, 3)["images"] for start in (0, 3, 6)]
    assert [row["name"] for page in pages for row in page] == [image.name for image in now.view.images]
    assert view_page(now, Query(), 1 << 53, 1)["images"] == []


def test_a_long_caption_is_cut_on_a_page(tmp_path: Path):
    now = look_at(write_folder(tmp_path / "long", {"a.png": "x" * 100_000}))
    (row,) = view_page(now, Query(), 0, 1)["images"]
    assert row["cut"] and len(row["caption"]) == 20_000


def test_charts_count_what_a_run_will_see(now: FolderNow):
    charts = folder_charts(now, Transform((64,)))
    assert charts["counts"]["samples"] == 3 + 3 and charts["buckets"] == [["64×64", 4]]
    assert charts["tags"] == [["red", 2], ["cat", 1], ["x", 1]] and charts["lengths"] == [[0, 1], [1, 2], [2, 1]]
    assert charts["sets"][1] == {"folder": "3_c", "images": 1, "repeats": 3, "samples": 3}
    assert folder_charts(now, Transform((64,)))["words"] is charts["words"], "counted once"
