"""The Datasets tab on caches whose index is in several files, and on those with trimmed text."""

import io
import json
from pathlib import Path

import pytest
from PIL import Image

from streamcache.dataset_cache import CacheWriter, open_cache, read_manifest
from streamcache.nodes.library import open_caches
from streamcache.nodes.server.cache_list import cache_row
from streamcache.nodes.server.cache_view import cache_detail, close_views, open_view, sample_page
from streamcache.nodes.server.cleaning import clean_as_shown, clean_preview
from streamcache.nodes.server.moves import CACHE, Root, list_trash, move_to_trash, rename, restore, unused
from streamcache.nodes.server.thumbnail import thumbnail

from ...support.datasets import content, folder_bytes
from ...support.joined import COUNT, KINDS, append, growing, put, write_joined


@pytest.fixture(autouse=True)
def nothing_open():
    yield
    open_caches.close_idle()
    close_views()


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def path(tmp_path: Path, kind: str) -> Path:
    return write_joined(tmp_path / "set", kind)


def test_details_samples_searches_and_thumbnails(path: Path, kind: str):
    row, shown = cache_row("set", path, []), open_view(path)
    detail = cache_detail(row, shown)
    assert json.dumps(detail) and detail["row"]["samples"] == COUNT
    assert detail["row"]["bytes"] == folder_bytes(path) - sum(
        file.stat().st_size for file in [path / "dataset.json", *path.glob(".l*/*"), *path.glob(".lock*")]
    )
    assert (detail["trimmed_bytes"] > 0) == (kind != "segments")
    page = sample_page(shown, 0, 100)
    assert [sample["source"] for sample in page["samples"]] == [f"{i}.png" for i in range(COUNT)]
    last = COUNT - 1
    assert [row["number"] for row in sample_page(shown, 0, 9, f"caption {last}")["samples"]] == [last]
    buckets = {row["bucket"] for row in page["samples"]}
    assert sum(sample_page(shown, 0, 99, bucket=name)["total"] for name in buckets) == COUNT and len(buckets) == 2
    assert all(Image.open(io.BytesIO(thumbnail(shown, i))).format == "JPEG" for i in range(COUNT))


def test_a_search_finds_samples_that_were_reordered_in_several_files(path: Path, kind: str):
    with growing(), CacheWriter(path, trim=kind != "segments") as writer:
        assert writer.adopt_sets()
        writer.keep(COUNT - 1, 1)
        put(writer, 77)
        writer.keep(1, 2)
    shown = open_view(path)
    assert [row["source"] for row in sample_page(shown, 0, 9)["samples"]] == [
        f"{COUNT - 1}.png",
        "77.png",
        "1.png",
        "2.png",
    ]
    assert [row["number"] for row in sample_page(shown, 0, 9, "caption 77")["samples"]] == [1]


def test_cleaning_frees_exactly_what_was_shown(path: Path, kind: str):
    open_view(path)
    append(path, kind, range(COUNT, COUNT + 2))
    with growing(), CacheWriter(path, trim=kind != "segments") as writer:
        assert writer.adopt_sets()
        writer.keep(2, COUNT - 2)
    close_views()
    open_cache(path).close()
    before, size = content(path), folder_bytes(path)
    shown = clean_preview(path)
    done = clean_as_shown(path, shown["plan"], ["debris", "superseded", "unused"])
    locks = sum(file.stat().st_size for file in path.glob(".lock*"))
    assert done["bytes"] == shown["bytes"] > 0 and folder_bytes(path) - locks == size - done["bytes"]
    assert content(path) == before and len(list(path.glob("index-*"))) == len(read_manifest(path).index_files)


def test_renamed_and_back_from_the_trash_it_is_the_same(path: Path, tmp_path: Path):
    before = content(path)
    moved = rename("set", "group/new", [tmp_path])
    root = Root(tmp_path, CACHE)
    number = move_to_trash(root, "group/new", moved, lambda: unused(moved))
    assert [row.name for row in list_trash([root])] == ["group/new"] and not moved.exists()
    restore(number, [root])
    assert content(moved) == before
