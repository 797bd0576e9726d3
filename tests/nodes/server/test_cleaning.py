"""Cleaning from a page removes exactly what was shown, or nothing."""

import json
from pathlib import Path

import pytest

from streamcache.dataset_cache import CacheBusy, CacheWriter, open_cache
from streamcache.nodes.library import open_caches
from streamcache.nodes.outside.untrusted import Refused
from streamcache.nodes.server.cache_view import close_views
from streamcache.nodes.server.cleaning import clean_as_shown, clean_preview

from ...support.datasets import content, folder_bytes, listing, write_set


@pytest.fixture(autouse=True)
def nothing_open():
    yield
    open_caches.close_idle()
    close_views()


class TestCleaning:
    @staticmethod
    def wasteful(path: Path) -> Path:
        write_set(path, range(6))
        write_set(path, range(2))
        open_caches.close_idle()
        (path / ".index.123.tmp").write_bytes(b"x" * 1000)
        return path

    def test_exactly_what_was_shown_is_removed(self, tmp_path: Path):
        path = self.wasteful(tmp_path / "set")
        before, size = content(path), folder_bytes(path)
        shown = clean_preview(path)
        done = clean_as_shown(path, shown["plan"], ["debris", "superseded", "unused"])
        assert done["bytes"] == shown["bytes"] > 0
        lock = sum(file.stat().st_size for file in path.glob(".lock*"))
        assert folder_bytes(path) - lock == size - done["bytes"]
        assert content(path) == before

    def test_a_preview_changes_nothing(self, tmp_path: Path):
        path = self.wasteful(tmp_path / "set")
        before = listing(path)
        first = clean_preview(path)
        assert clean_preview(path) == first and listing(path) == before
        assert json.dumps(first)

    def test_only_chosen_categories_are_removed(self, tmp_path: Path):
        path = self.wasteful(tmp_path / "set")
        done = clean_as_shown(path, clean_preview(path)["plan"], ["debris"])
        assert [removal["category"] for removal in done["removals"]] == ["debris"] and done["bytes"] == 1000
        assert not (path / ".index.123.tmp").exists()

    def test_a_cache_that_has_changed_is_not_cleaned(self, tmp_path: Path):
        path = self.wasteful(tmp_path / "set")
        plan = clean_preview(path)["plan"]
        (path / ".index.124.tmp").write_bytes(b"new")
        before = listing(path)
        with pytest.raises(Refused, match="changed") as refusal:
            clean_as_shown(path, plan, ["debris"])
        assert refusal.value.status == 409 and listing(path) == before

    def test_a_cache_with_a_writer_is_not_cleaned(self, tmp_path: Path):
        path = self.wasteful(tmp_path / "set")
        with CacheWriter(path, append=True):
            plan = clean_preview(path)["plan"]
            with pytest.raises(CacheBusy):
                clean_as_shown(path, plan, ["debris"])

    def test_a_reader_keeps_what_it_reads(self, tmp_path: Path):
        path = write_set(tmp_path / "set", range(6))
        reader = open_cache(path)
        write_set(path, range(2))
        shown = clean_preview(path)
        held = next(removal for removal in shown["removals"] if removal["category"] == "superseded")
        assert held["held_by"]
        with pytest.raises(CacheBusy, match="reads"):
            clean_as_shown(path, shown["plan"], ["superseded"])
        assert len(content(reader)) == 6

    @pytest.mark.parametrize("categories", [[], ["everything"], ["debris", "../x"]])
    def test_an_unknown_category_is_refused(self, tmp_path: Path, categories: list[str]):
        path = self.wasteful(tmp_path / "set")
        with pytest.raises(Refused, match="categories"):
            clean_as_shown(path, clean_preview(path)["plan"], categories)
