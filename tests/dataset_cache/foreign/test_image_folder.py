"""The folder of images: names, sizes and captions, and nothing outside of it."""

import os
from pathlib import Path

import pytest

from streamcache.dataset_cache.foreign.image_folder import ImageFolder, first_line_of, stem_of, walk_files, whole_text

from .trainers import image


def test_images_are_found_by_stem_and_by_the_longest_end_of_a_path(tmp_path: Path):
    image(tmp_path, "one.JPG")
    image(tmp_path, "cats/one.png", (30, 20), caption="x")
    folder = ImageFolder(tmp_path)
    assert folder.named("one") == "one.JPG" and folder.named("cats/one") == "cats/one.png"
    assert folder.matching("C:\\far\\cats\\one.png") == "cats/one.png" and folder.matching("/far/one.JPG") == "one.JPG"
    assert folder.matching("/far/two.png") is None and folder.named("two") is None
    assert folder.size("cats/one.png") == (30, 20) and folder.size(None) == (0, 0) == folder.size("missing.png")
    assert stem_of("a.b/c.png") == "a.b/c" and stem_of("a.b/c") == "a.b/c"


@pytest.mark.parametrize("name", ["../secret", "a/../../secret", "/etc/secret", "..\\secret", "C:secret", "a\0b", ""])
def test_f9_names_that_lead_elsewhere_find_nothing(tmp_path: Path, name: str):
    image(tmp_path, "secret.png", caption="secret")
    (tmp_path / "in").mkdir()
    folder = ImageFolder(tmp_path / "in")
    assert folder.named(name) is None and folder.text(name) is None
    assert folder.matching(f"{name}.png") is None


def test_f9_captions_and_files_behind_links_are_not_read(tmp_path: Path):
    image(tmp_path, "secret.png", caption="secret")
    (tmp_path / "in").mkdir()
    try:
        os.symlink(tmp_path / "secret.txt", tmp_path / "in" / "one.txt")
        os.symlink(tmp_path, tmp_path / "in" / "sub")
    except OSError:
        pytest.skip("no symbolic links here")
    assert ImageFolder(tmp_path / "in").text("one") is None
    assert walk_files(tmp_path / "in", ".png") == []


def test_captions_are_read_as_each_trainer_does(tmp_path: Path):
    image(tmp_path, "one.png", caption="  first \r\nsecond\n")
    image(tmp_path, "two.png", caption=None)
    text = ImageFolder(tmp_path).text("one")
    assert first_line_of(text) == ("first",) and whole_text(text) == ("first \nsecond",)
    assert ImageFolder(tmp_path).text("two") is None and first_line_of(None) == whole_text(" ") == ()
    (tmp_path / "two.txt").write_bytes(b"\xff\xfe\xff")
    assert ImageFolder(tmp_path).text("two") is None
