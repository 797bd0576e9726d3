"""A folder as a source: images find their captions, and names of folders count."""

import pytest

from streamcache.dataset_cache.encode.plan import make_plan
from streamcache.dataset_cache.encode.settings import Settings
from streamcache.dataset_cache.sources.captions import Captions
from streamcache.dataset_cache.sources.folder_source import FolderSource
from streamcache.dataset_cache.sources.transforms import Transform


@pytest.fixture
def collected(tmp_path, texts):
    def collect(**options):
        source = FolderSource(tmp_path / "set", **options)
        plan = make_plan(source, text_encoder=texts, settings=Settings(Transform((64,), step=8)))
        return plan

    return collect


def captions(plan) -> dict[str, list[str]]:
    return {plan.source(i): plan.captions(i) for i in range(len(plan))}


def test_the_first_sidecar_that_exists_is_the_caption(tmp_path, picture, collected):
    for name in "abcd":
        picture(f"set/{name}.png")
    folder = tmp_path / "set"
    (folder / "a.txt").write_text("txt")
    (folder / "a.caption").write_text("not this")
    (folder / "b.caption").write_text("caption")
    (folder / "c.JSON").write_text('{"caption": "json"}')
    (folder / "metadata.jsonl").write_text(
        '{"file_name": "d.png", "text": "metadata"}\n{"file_name": "a.png", "text": "no"}'
    )
    assert captions(collected()) == {
        "set/a.png": ["txt"],
        "set/b.png": ["caption"],
        "set/c.png": ["json"],
        "set/d.png": ["metadata"],
    }


def test_a_metadata_file_covers_the_folders_below_it(tmp_path, picture, collected):
    picture("set/deep/er/a.png")
    (tmp_path / "set" / "metadata.jsonl").write_text('{"file_name": "deep/er/a.png", "text": "far"}')
    assert captions(collected()) == {"set/deep/er/a.png": ["far"]}


def test_broken_metadata_excludes_the_images_that_need_it(tmp_path, picture, collected):
    picture("set/a.png", caption="own")
    picture("set/b.png")
    (tmp_path / "set" / "metadata.jsonl").write_bytes(b"\xff\xff\xff")
    plan = collected()
    assert captions(plan) == {"set/a.png": ["own"]}
    assert "its caption in metadata.jsonl: not UTF-8" in plan.layout.excluded[0].reason


def test_a_folder_named_like_a_file_keeps_its_captions(picture, collected):
    picture("set/set.png_v2/a.png", caption="still here")
    assert captions(collected()) == {"set/set.png_v2/a.png": ["still here"]}


def test_a_folder_name_is_a_caption_if_enabled(picture, collected):
    picture("set/10_black cat/a.png")
    assert captions(collected()) == {"set/10_black cat/a.png": [""]}
    plan = collected(captions=Captions(fallback="folder"))
    assert captions(plan) == {"set/10_black cat/a.png": ["black cat"]}
    assert plan.column("repeats").tolist() == [10]


def test_subfolders_can_be_excluded(picture, collected):
    picture("set/a.png")
    picture("set/below/b.png")
    assert len(collected()) == 2 and len(collected(recursive=False)) == 1


def test_samples_are_sorted_whatever_order_the_disk_lists(picture, collected):
    for name in ("b/2.png", "b/10.png", "a.png", "B.png", "a/z.png"):
        picture(f"set/{name}")
    assert list(captions(collected())) == ["set/B.png", "set/a.png", "set/a/z.png", "set/b/10.png", "set/b/2.png"]


def test_a_prompt_is_the_caption_of_all_images(picture, collected):
    picture("set/a.png", caption="its own")
    assert captions(collected(prompt="a dog", captions=Captions(prefix="photo of "))) == {
        "set/a.png": ["photo of a dog"]
    }
