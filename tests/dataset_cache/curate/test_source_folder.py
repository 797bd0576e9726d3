"""A folder of images as it is now: captions with their files, choices, masks, and problems in words."""

import json
import os
import unicodedata

import pytest
from PIL import Image

from streamcache.dataset_cache.curate import (
    CaptionChange,
    SourceFolder,
    apply_changes,
    choose_images,
    preview_edit,
    protect_folder,
    protection_of,
    set_text,
    undo_edit,
    write_captions,
)
from streamcache.dataset_cache.curate.source_folder import FolderImage
from streamcache.dataset_cache.sources import FolderSource
from streamcache.errors import CacheError

from ...support.fixtures import settle, touch


def by_name(view) -> dict[str, FolderImage]:
    return {image.name: image for image in view.images}


def test_every_image_has_its_caption_file_and_its_lines(view):
    images = by_name(view())
    assert list(images) == ["a.png", "b.png", "sub/c.png"]
    assert images["b.png"].lines == ("a cat", "the cat, asleep")
    assert images["b.png"].caption.text == "a cat\nthe cat, asleep" and images["b.png"].caption.file == "b.txt"
    assert images["sub/c.png"].caption.file == "sub/c.txt" and images["sub/c.png"].caption.stamp == ""
    assert (images["a.png"].width, images["a.png"].height) == (64, 64)
    assert images["a.png"].bytes > 0 and images["a.png"].modified > 0


def test_captions_of_a_metadata_file_are_edited_in_a_file_of_their_own(cats, view):
    (cats / "metadata.jsonl").write_text(json.dumps({"file_name": "sub/c.png", "text": "listed"}))
    caption = by_name(view())["sub/c.png"].caption
    assert (caption.text, caption.file, caption.stamp, caption.locked) == ("listed", "sub/c.txt", "", "")


def test_captions_in_json_are_shown_and_locked(cats, view):
    (cats / "sub" / "c.json").write_text('{"caption": "from json"}')
    caption = by_name(view())["sub/c.png"].caption
    assert caption.text == "from json" and "c.json" in caption.locked


def test_an_alpha_channel_counts_as_a_mask(cats, view):
    Image.new("RGBA", (32, 32), (1, 2, 3, 128)).save(cats / "clear.png")
    images = by_name(view())
    assert images["clear.png"].masked and not images["clear.png"].mask
    assert not images["a.png"].masked


def test_a_damaged_image_with_a_mask_is_named(cats, view, picture):
    picture("cats/b-masklabel.png")
    (cats / "b.png").write_bytes(b"not an image")
    damaged = by_name(view())["b.png"]
    assert "not an image" in damaged.problem and not damaged.masked


def test_a_mask_that_changed_has_another_stamp(cats, picture):
    picture("cats/b-masklabel.png")
    settle()
    folder = SourceFolder(cats)
    before = by_name(folder.read())
    (cats / "b-masklabel.png").write_bytes((cats / "b-masklabel.png").read_bytes() + b" ")
    after = by_name(folder.read())
    assert before["b.png"].mask_stamp != after["b.png"].mask_stamp and before["a.png"].mask_stamp == b""


def test_excluded_and_repeated_images_and_masks_are_shown(cats, view, picture):
    (cats / "streamcache.json").write_text('{"images": {"a.png": {"excluded": true}, "b.png": {"repeats": 3}}}')
    picture("cats/b-masklabel.png")
    images = by_name(view())
    assert images["a.png"].excluded and not images["b.png"].excluded and images["b.png"].repeats == 3
    assert images["b.png"].mask == "b-masklabel.png" and "b-masklabel.png" not in images


def test_what_cannot_be_used_is_named_and_the_rest_is_shown(cats, view):
    (cats / "a.png").write_bytes(b"not an image")
    (cats / "b.txt").write_bytes(b"\xff\xffcaf\xe9")
    images = by_name(view())
    assert "not an image" in images["a.png"].problem and images["a.png"].lines == ("a cat, sitting",)
    assert "not UTF-8" in images["b.png"].problem and "not UTF-8" in images["b.png"].caption.problem
    assert images["b.png"].caption.stamp


def test_damaged_choices_are_a_problem_of_the_images_of_their_folder_only(cats, view):
    (cats / "streamcache.json").write_text('{"images": ')
    images = by_name(view())
    assert "streamcache.json" in images["a.png"].problem and "invalid JSON" in images["a.png"].problem
    assert not images["sub/c.png"].problem


def test_names_are_found_in_any_unicode_form(cats, view, picture):
    picture(f"cats/{unicodedata.normalize('NFD', 'café')}.png")
    (cats / f"{unicodedata.normalize('NFC', 'café')}.txt").write_text("coffee")
    image = view().find(unicodedata.normalize("NFC", "café.png"))
    assert image.lines == ("coffee",)


def test_unknown_names_and_missing_folders_are_refused_and_empty_folders_shown(tmp_path, view):
    with pytest.raises(CacheError, match="dog.png: this image is not in"):
        view().find("dog.png")
    with pytest.raises(CacheError, match="missing"):
        view(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    assert view(tmp_path / "empty").images == []


def test_unchanged_files_are_not_opened_again(cats, view, monkeypatch):
    folder = SourceFolder(cats)
    first = folder.read()
    opened = []
    real = os.open
    monkeypatch.setattr(os, "open", lambda path, *rest: opened.append(str(path)) or real(path, *rest))
    assert folder.read() is first
    assert view().images == first.images
    touch(cats / "a.txt")
    again = folder.read()
    assert again is not first and again.images == first.images
    assert [path for path in opened if str(cats) in path] == [str(cats / "a.txt")]


def test_changes_additions_and_removals_are_seen(cats, picture):
    folder = SourceFolder(cats)
    folder.read()
    (cats / "a.txt").write_text("changed")
    (cats / "b.png").unlink()
    picture("cats/d.png", caption="new")
    settle()
    images = by_name(folder.read())
    assert list(images) == ["a.png", "d.png", "sub/c.png"]
    assert images["a.png"].lines == ("changed",)


def test_subfolders_can_be_left_out(cats):
    assert [image.name for image in SourceFolder(cats, recursive=False).read().images] == ["a.png", "b.png"]


def test_a_read_can_be_interrupted(cats):
    def stop(done: int, total: int) -> None:
        raise InterruptedError

    folder = SourceFolder(cats)
    with pytest.raises(InterruptedError):
        folder.read(stop)
    assert len(folder.read().images) == 3


def test_nothing_in_a_protected_folder_is_edited(cats, view):
    before = {path: path.read_bytes() for path in cats.rglob("*") if path.is_file()}
    shown = view()
    protect_folder(cats, "it belongs to the tests; copy it")
    assert protection_of(cats / "sub") and not protection_of(cats.parent) and not protection_of(f"{cats}2")
    assert {image.caption.locked for image in view().images} == {"it belongs to the tests; copy it"}
    found = preview_edit(view(), ["a.png"], set_text("mine"))
    assert not found.changes and found.refused == {"a.png": "it belongs to the tests; copy it"}
    change = CaptionChange("a.png", "a cat, sitting", "mine", shown.find("a.png").caption.stamp)
    for edit in (
        lambda: apply_changes(shown, [change]),
        lambda: choose_images(shown, ["a.png"], excluded=True),
        lambda: undo_edit(cats),
        lambda: write_captions([FolderSource(cats)], ["mine"] * 3, overwrite=True),
    ):
        with pytest.raises(CacheError, match="copy it"):
            edit()
    assert {path: path.read_bytes() for path in cats.rglob("*") if path.is_file()} == before
