"""The list of caches: one row per cache, with its problem if it cannot be read."""

import os
import shutil
import time
from pathlib import Path

import pytest
import torch

from streamcache.dataset_cache import CacheWriter, open_cache
from streamcache.dataset_cache.encode.encode import encode
from streamcache.dataset_cache.encode.plan import make_plan
from streamcache.dataset_cache.encode.settings import Settings
from streamcache.dataset_cache.format.manifest import read_manifest
from streamcache.dataset_cache.sources.folder_source import FolderSource
from streamcache.dataset_cache.sources.transforms import Transform
from streamcache.nodes.server.cache_list import cache_row, list_rows

from ...support.samples import write_cache
from .captioned import jpeg, snapshot, write_captions


class TestRows:
    def test_a_row_shows_the_manifest(self, tmp_path: Path):
        write_captions(tmp_path / "group" / "set", [["a"], ["b"], ["c"]], jpeg((1, 2, 3)))
        (row,) = list_rows([tmp_path], [])
        assert (row.name, row.samples, row.problem, row.thumbnails) == ("group/set", 3, "", True)
        assert row.buckets == [{"name": "64×64", "samples": 2}, {"name": "128×64", "samples": 1}]
        assert row.generation == read_manifest(tmp_path / "group" / "set").generation
        assert abs(row.published - time.time()) < 600
        assert (row.readers, row.writer, row.sources) == ((), None, "none")

    def test_latents_of_unknown_pixels_are_named_by_shape(self, tmp_path: Path):
        with CacheWriter(tmp_path / "set") as writer:
            writer.add({"samples": torch.zeros(1, 16, 4, 6)}, [[torch.zeros(1, 2, 4), {}]])
        (row,) = list_rows([tmp_path], [])
        assert row.buckets == [{"name": "16×4×6", "samples": 1}]

    def test_an_unreadable_cache_does_not_hide_others(self, tmp_path: Path):
        write_cache(tmp_path / "good", 2)
        for name, content in {
            "text": b"no JSON",
            "deep": b"[" * 100_000,
            "other": b'{"format": 99}',
            "empty": b"",
        }.items():
            (tmp_path / name).mkdir()
            (tmp_path / name / "dataset.json").write_bytes(content)
        rows = {row.name: row for row in list_rows([tmp_path], [])}
        assert set(rows) == {"good", "text", "deep", "other", "empty"}
        assert rows.pop("good").problem == ""
        assert all(row.problem for row in rows.values())

    def test_a_link_out_of_the_root_does_not_hide_others(self, tmp_path: Path):
        write_cache(tmp_path / "second" / "set", 2)
        (tmp_path / "first").mkdir()
        (tmp_path / "first" / "set").symlink_to(tmp_path)
        assert [row.name for row in list_rows([tmp_path / "first", tmp_path / "second"], [])] == ["set"]

    def test_readers_are_named(self, tmp_path: Path):
        write_cache(tmp_path / "set", 2)
        with_reader = open_cache(tmp_path / "set")
        (row,) = list_rows([tmp_path], [])
        assert f"process {os.getpid()}" in row.readers[0]
        assert len(with_reader) == 2

    def test_a_row_changes_with_its_cache(self, tmp_path: Path):
        write_cache(tmp_path / "set", 2)
        assert list_rows([tmp_path], [])[0].samples == 2
        write_cache(tmp_path / "set", 5)
        assert list_rows([tmp_path], [])[0].samples == 5

    def test_two_hundred_caches_are_listed_quickly(self, tmp_path: Path):
        first = write_cache(tmp_path / "set-000", 3)
        for n in range(1, 200):
            folder = tmp_path / f"set-{n:03d}"
            folder.mkdir()
            for file in first.glob("*.*"):
                if file.is_file():
                    os.link(file, folder / file.name)
        started = time.perf_counter()
        rows = list_rows([tmp_path], [])
        seconds = time.perf_counter() - started
        assert len(rows) == 200 and not any(row.problem for row in rows)
        assert seconds < 60, "a listing of manifests takes a fraction of a second, also on a busy machine"


class TestSources:
    def test_source_folders_are_found_where_they_were(self, tmp_path: Path, picture, images, texts):
        for name in ("here/cats/a.png", "there/cats/b.png"):
            picture(name)
        sources = [FolderSource(tmp_path / place / "cats", set=place) for place in ("here", "there")]
        settings = Settings(Transform((64,), step=8), thumbnail=0)
        encode(make_plan(sources, image_encoder=images, text_encoder=texts, settings=settings), tmp_path / "set")

        def found() -> str:
            return cache_row("set", tmp_path / "set", []).sources

        before = snapshot(tmp_path)
        assert found() == "present" and snapshot(tmp_path) == before
        shutil.rmtree(tmp_path / "here")
        assert found() == "partly"
        shutil.rmtree(tmp_path / "there")
        assert found() == "missing"

    def provenance(self, tmp_path: Path, provenance: dict) -> str:
        write_cache(tmp_path / "set", 1, provenance=provenance)
        return cache_row("set", tmp_path / "set", [tmp_path / "input"]).sources

    def test_without_a_record_source_folders_are_found_by_name(self, tmp_path: Path):
        for name in ("cats", "dogs"):
            (tmp_path / "input" / name).mkdir(parents=True)

        def sources(*names: str) -> dict:
            return {"encode": {"sources": [{"folder": name} for name in names]}}

        assert self.provenance(tmp_path, sources("cats", "dogs")) == "present"
        assert self.provenance(tmp_path, sources("cats", "birds")) == "partly"
        assert self.provenance(tmp_path, sources("birds")) == "missing"
        assert self.provenance(tmp_path, sources("..")) == "missing"
        assert self.provenance(tmp_path, {"merged": [{"provenance": sources("cats")}]}) == "present"

    @pytest.mark.parametrize("odd", [{"encode": 1}, {"encode": {"sources": {"a": 1}}}, {"encode": {"sources": [1]}}])
    def test_an_invalid_record_counts_as_none(self, tmp_path: Path, odd: dict):
        assert self.provenance(tmp_path, odd) == "none"
