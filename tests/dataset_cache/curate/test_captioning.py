"""Texts from a captioning node reach the caption files of their images."""

import pytest
from PIL import Image

from streamcache.dataset_cache import FolderSource
from streamcache.dataset_cache.curate import images_to_caption, undo_edit, write_captions
from streamcache.errors import CacheError


def texts(folder) -> dict[str, str]:
    return {path.relative_to(folder).as_posix(): path.read_text() for path in sorted(folder.rglob("*.txt"))}


def test_texts_in_order_are_written_and_existing_captions_kept(cats):
    done = write_captions([FolderSource(cats)], ["one", "two", " three\n\nlines "])
    assert done.written == ["cats/sub/c.png"] and done.kept == ["cats/a.png", "cats/b.png"] and not done.refused
    assert texts(cats)["sub/c.txt"] == "three lines" and texts(cats)["a.txt"] == "a cat, sitting"
    assert list(done.lines()) == ["Wrote 1 caption", "Kept 2 existing captions"]
    undo_edit(cats)
    assert "sub/c.txt" not in texts(cats)


def test_texts_belong_to_names_in_any_order(cats):
    names = ["cats/sub/c.png", "cats/a.png"]
    done = write_captions([FolderSource(cats)], ["c\nsecond", "a"], names, overwrite=True, variants=True)
    assert sorted(done.written) == ["cats/a.png", "cats/sub/c.png"]
    assert texts(cats) == {"a.txt": "a", "b.txt": "a cat\nthe cat, asleep", "sub/c.txt": "c\nsecond"}


def test_several_sources_are_written_in_their_order(cats, tmp_path, picture):
    picture("dogs/d.png")
    write_captions([FolderSource(tmp_path / "dogs"), FolderSource(cats)], list("dabc"), overwrite=True)
    assert texts(tmp_path) == {"cats/a.txt": "a", "cats/b.txt": "b", "cats/sub/c.txt": "c", "dogs/d.txt": "d"}


def test_excluded_and_damaged_images_are_not_captioned(cats, view):
    (cats / "streamcache.json").write_text('{"images": {"a.png": {"excluded": true}}}')
    (cats / "b.png").write_bytes(b"no image")
    assert list(images_to_caption(view())) == ["cats/sub/c.png"]
    assert write_captions([FolderSource(cats)], ["c"]).written == ["cats/sub/c.png"]


def test_images_without_a_caption_can_be_chosen(cats, view):
    (cats / "a.txt").write_text("")
    assert list(images_to_caption(view(), without_caption=True)) == ["cats/sub/c.png"]


@pytest.mark.parametrize(
    ("given", "names", "reason"),
    [
        (["a", "b"], None, "2 texts for 3 images: connect one text per image"),
        (["a"], ["cats/a.png", "cats/b.png"], "1 text for 2 names"),
        (["a"], ["dogs/a.png"], "no image of the source has the name dogs/a.png"),
        (["a", "b"], ["cats/a.png", "cats/a.png"], "several texts for cats/a.png"),
    ],
)
def test_texts_that_do_not_fit_are_refused(cats, given, names, reason):
    before = texts(cats)
    with pytest.raises(CacheError, match=reason):
        write_captions([FolderSource(cats)], given, names, overwrite=True)
    assert texts(cats) == before


def test_an_empty_text_is_not_written(cats):
    done = write_captions([FolderSource(cats)], ["", " \n", "c"], overwrite=True)
    assert done.refused == {"cats/a.png": "its text is empty", "cats/b.png": "its text is empty"}
    assert texts(cats)["a.txt"] == "a cat, sitting" and "Not written: 2 captions" in list(done.lines())


def test_a_picture_is_upright_opaque_and_at_most_as_large_as_asked(tmp_path, view):
    (tmp_path / "set").mkdir()
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (40, 20), "red").save(tmp_path / "set" / "a.jpg", exif=exif)
    Image.new("RGBA", (8, 8), (0, 0, 0, 0)).save(tmp_path / "set" / "b.png")
    now = view(tmp_path / "set")
    assert now.picture("a.jpg").size == (20, 40) and now.picture("a.jpg", 10).size == (5, 10)
    assert now.picture("b.png", 100).size == (8, 8) and now.picture("b.png").getpixel((0, 0)) == (255, 255, 255)
    (tmp_path / "set" / "b.png").write_bytes(b"damaged")
    with pytest.raises(CacheError, match=r"b\.png"):
        now.picture("b.png")
