"""What pages see of caches: rows, details, samples, pictures. Looking leaves no trace, and a bad cache hides none."""

import gc
import io
import json
import os
import shutil
import time
import weakref
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from streamcache.dataset_cache import CacheWriter, SampleFacts, open_cache
from streamcache.dataset_cache.encode.encode import encode
from streamcache.dataset_cache.encode.plan import Settings, make_plan
from streamcache.dataset_cache.errors import CacheError
from streamcache.dataset_cache.format.manifest import read_manifest, write_manifest
from streamcache.dataset_cache.sources.source import FolderSource
from streamcache.dataset_cache.sources.transforms import Transform
from streamcache.nodes.library.open_caches import Kept
from streamcache.nodes.server import views
from streamcache.nodes.server.cache_list import cache_row, list_rows
from streamcache.nodes.server.cache_view import sample_page
from streamcache.nodes.server.detail import cache_detail
from streamcache.nodes.server.refusals import Refused
from streamcache.nodes.server.thumbnail import false_colours, thumbnail
from streamcache.nodes.server.untrusted import cut
from streamcache.nodes.server.views import view

from ...support.datasets import forge, write_set
from ...support.samples import write_cache


@pytest.fixture(autouse=True)
def nothing_open():
    yield
    views.close()


def snapshot(folder: Path) -> dict[str, tuple]:
    found = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        found[path.relative_to(folder).as_posix()] = (status.st_size, status.st_mtime_ns)
    return found


def jpeg(colour: tuple[int, int, int]) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (8, 8), colour).save(file, "JPEG")
    return file.getvalue()


def write_captions(path: Path, captions: list[list[str]], picture: bytes = b"") -> Path:
    """A sample for each list of captions; its latent is 8×8 or 8×16, for pictures of eight times that."""
    with CacheWriter(path) as writer:
        writer.put("text", [[torch.zeros(1, 2, 4), {}]], "conditioning")
        for n, texts in enumerate(captions):
            width = 8 + 8 * (n % 2)
            keys = {"latent": [f"latent {n}"], "conditioning": ["text"] * len(texts)}
            writer.put(f"latent {n}", {"samples": torch.randn(1, 4, 8, width)}, "latent")
            if picture:
                writer.put(f"picture {n}", torch.frombuffer(bytearray(picture), dtype=torch.uint8), "thumbnail")
                keys["thumbnail"] = [f"picture {n}"]
            writer.sample(keys, SampleFacts(texts, f"Folder/IMG_{n}.png", (1000, 500), (0, 0, width * 8, 64)))
    return path


class TestRows:
    def test_a_row_tells_what_the_manifest_says(self, tmp_path: Path):
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

    def test_a_cache_that_cannot_be_read_hides_no_other(self, tmp_path: Path):
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

    def test_a_link_that_leads_out_hides_no_other(self, tmp_path: Path):
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

    def test_two_hundred_caches_are_listed_at_once(self, tmp_path: Path):
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
        assert seconds < 5, "a listing of manifests takes a fraction of a second"


class TestSources:
    def test_folders_are_remembered_where_they_were(self, tmp_path: Path, picture, images, texts):
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

    def test_without_a_record_folders_are_looked_for_by_name(self, tmp_path: Path):
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
    def test_a_strange_record_counts_as_none(self, tmp_path: Path, odd: dict):
        assert self.provenance(tmp_path, odd) == "none"


class TestSamples:
    def test_pages_follow_each_other(self, tmp_path: Path):
        shown = view(write_captions(tmp_path / "set", [[f"caption {n}"] for n in range(7)]))
        pages = [sample_page(shown, start, 3) for start in (0, 3, 6, 9, 1 << 52)]
        assert [[row["number"] for row in page["samples"]] for page in pages] == [[0, 1, 2], [3, 4, 5], [6], [], []]
        assert {page["total"] for page in pages} == {7}
        first = pages[0]["samples"][1]
        assert first["captions"] == ["caption 1"] and first["source"] == "Folder/IMG_1.png"
        assert (first["width"], first["height"], first["bucket"], first["set"]) == (1000, 500, "128×64", "")
        assert (first["repeats"], first["weight"]) == (1, 1.0)

    def test_every_word_must_occur_in_a_caption_or_the_source(self, tmp_path: Path):
        captions = [["A red Cat", "second line"], ["a red dog"], ["Ünïcode ÉTÉ"], [""]]
        shown = view(write_captions(tmp_path / "set", captions))

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
        assert found("folder") == []  # which is the name of all pictures' folder, not of one
        assert found("", "128×64") == [1, 3]
        assert found("", "no such bucket") == []
        with pytest.raises(Refused, match="words"):
            found(" ".join(map(str, range(21))))

    def test_a_generation_that_is_gone_is_refused(self, tmp_path: Path):
        path = write_cache(tmp_path / "set", 2)
        old = read_manifest(path).generation
        shown = view(path, old)
        write_cache(path, 3)
        assert view(path, old) is shown, "what is open still can be looked at"
        views.close(path)
        with pytest.raises(Refused, match="saved again") as refusal:
            view(path, old)
        assert refusal.value.status == 409
        assert sample_page(view(path), 0, 10)["total"] == 3

    def test_damaged_numbers_are_an_error_and_no_crash(self, tmp_path: Path):
        path = write_set(tmp_path / "set", range(4))
        forge(path, lambda arrays: arrays["samples"].__setitem__("source", 1 << 31))
        for search in ("", "caption"):
            with pytest.raises(CacheError, match="damaged"):
                sample_page(view(path), 0, 10, search)

    def test_numbers_that_are_none_do_not_reach_json(self, tmp_path: Path):
        path = write_set(tmp_path / "set", range(2))
        forge(path, lambda arrays: arrays["samples"].__setitem__("weight", np.nan))
        assert json.dumps(sample_page(view(path), 0, 2), allow_nan=False)


class TestThumbnails:
    def test_stored_bytes_are_handed_on_as_they_are(self, tmp_path: Path):
        picture = jpeg((200, 10, 10))
        assert thumbnail(view(write_captions(tmp_path / "set", [["a"]], picture)), 0) == picture

    def test_without_one_the_latent_is_shown(self, tmp_path: Path):
        shown = view(write_captions(tmp_path / "set", [["a"], ["b"]]))
        sizes = [Image.open(io.BytesIO(thumbnail(shown, n))).size for n in range(2)]
        assert sizes == [(128, 128), (128, 64)]

    def test_what_is_no_jpeg_is_not_handed_on(self, tmp_path: Path):
        shown = view(write_captions(tmp_path / "set", [["a"]], b"<script>alert(1)</script>"))
        assert Image.open(io.BytesIO(thumbnail(shown, 0))).format == "JPEG"

    @pytest.mark.parametrize("size", [(1025, 8), (8, 65000), (16384, 16384)])
    def test_a_stored_picture_that_is_huge_is_not_given(self, tmp_path: Path, size: tuple[int, int]):
        file = io.BytesIO()
        Image.new("L", (8, 8)).save(file, "JPEG")
        picture = bytearray(file.getvalue())
        at = picture.index(b"\xff\xc0") + 5  # a browser takes the size from here, whatever follows
        picture[at : at + 4] = size[1].to_bytes(2, "big") + size[0].to_bytes(2, "big")
        shown = view(write_captions(tmp_path / "set", [["a"]], bytes(picture)))
        assert max(Image.open(io.BytesIO(thumbnail(shown, 0))).size) == 128

    def test_a_stored_picture_of_1024_pixels_is_given_as_it_is(self, tmp_path: Path):
        file = io.BytesIO()
        Image.new("L", (1024, 1024)).save(file, "JPEG")
        shown = view(write_captions(tmp_path / "set", [["a"]], file.getvalue()))
        assert thumbnail(shown, 0) == file.getvalue()

    def test_a_sample_that_is_not_there_is_refused(self, tmp_path: Path):
        with pytest.raises(Refused, match="no sample 2"):
            thumbnail(view(write_cache(tmp_path / "set", 2)), 2)

    @pytest.mark.parametrize(
        "latent",
        [
            None,
            {},
            {"samples": 3},
            {"samples": torch.zeros(0, 4, 8, 8)},
            {"samples": torch.zeros(5)},
            {"samples": torch.full((1, 4, 8, 8), float("nan"))},
            {"samples": torch.full((1, 2, 8, 8), float("inf"))},
            {"samples": torch.zeros(1, 4, 3, 8, 8)},
            {"samples": torch.zeros(1, 1, 1, 5000)},
            {"samples": torch.zeros(1, 4, 8, 8).to(torch.float8_e4m3fn)},
            {"samples": torch.zeros(1, 4, 8, 8, dtype=torch.complex64)},
            {"samples": torch.ones(1, 4, 8, 8, dtype=torch.bool)},
        ],
    )
    def test_something_is_always_seen(self, latent):
        assert Image.open(io.BytesIO(false_colours(latent))).format == "JPEG"


def test_details_add_up(tmp_path: Path):
    path = write_set(tmp_path / "set", range(6))
    detail = cache_detail(cache_row("set", path, []), view(path))
    assert json.dumps(detail, allow_nan=False)
    assert [field["name"] for field in detail["fields"]] == sorted(detail["parts"]["fields"])
    assert detail["captions"]["total"] == 12 and detail["captions"]["common"][0] == ["shared caption", 6]
    unshared = sum(field["bytes_unshared"] for field in detail["fields"])
    stored = sum(field["bytes"] for field in detail["fields"]) + detail["parts"]["unused"]
    assert detail["saved_bytes"] == unshared - stored > 0
    assert detail["sets"] == [{"name": "main", "samples": 6, "facts": {"prior": False, "weight": 1.0}}]


def test_what_nobody_looks_at_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(views, "KEPT", Kept(views._open_published, idle_seconds=0.05))
    gone = weakref.ref(view(write_cache(tmp_path / "set", 1)))
    end = time.monotonic() + 30
    while gone() is not None and time.monotonic() < end:
        time.sleep(0.02)
        gc.collect()
    assert gone() is None


def test_only_a_few_stay_open(tmp_path: Path):
    for n in range(8):
        view(write_cache(tmp_path / str(n), 1))
        latest = weakref.ref(view(tmp_path / str(n)))
    gc.collect()
    assert len(views.KEPT) == 4 and latest() is not None


def test_looking_leaves_no_trace(tmp_path: Path):
    path = write_set(tmp_path / "set", range(4))
    before = snapshot(tmp_path)
    cache_detail(cache_row("set", path, []), view(path))
    sample_page(view(path), 0, 4, "caption")
    thumbnail(view(path), 1)
    assert snapshot(tmp_path) == before


def test_strange_facts_are_cut(tmp_path: Path):
    deep: list = []
    for _ in range(500):
        deep = [deep]
    strange = {"deep": deep, "long": "x" * 10_000, "many": list(range(9999)), "nan": float("nan"), "odd": object()}
    shown = cut(strange)
    assert len(json.dumps(shown, allow_nan=False)) < 20_000
    assert shown["nan"] is None and len(shown["many"]) == 200


def test_a_manifest_with_strange_facts_is_shown(tmp_path: Path):
    path = write_cache(tmp_path / "set", 1)
    forged = replace(read_manifest(path), provenance={"encode": {"excluded": [1], "encoders": 7, "x": float("inf")}})
    (path / read_manifest(path).index_name).rename(path / forged.index_name)
    write_manifest(path, forged)
    detail = cache_detail(cache_row("set", path, []), view(path))
    assert json.dumps(detail, allow_nan=False) and detail["excluded"] == {"count": 0, "files": []}
