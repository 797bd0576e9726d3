"""The list of folders of images: counts, and that unchanged directories are not listed again."""

import os
from pathlib import Path

from streamcache.dataset_cache.intake import list_image_folders

from ...support.file_calls import file_calls
from .zips import picture


def fill(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(picture() if name.endswith(("png", "jpg")) else b"text")
    return folder


def settle(top: Path) -> None:
    """As if the directories had been written a minute ago."""
    for above, _, _ in os.walk(top):
        os.utime(above, ns=(os.stat(above).st_mtime_ns - 60 * 10**9,) * 2)


def test_folders_are_listed_with_images_captions_and_covers(tmp_path: Path):
    fill(tmp_path / "in" / "datasets" / "cats", "a.png", "a.txt", "B.JPG", "b.txt", "c-masklabel.png", "sub/d.png")
    fill(tmp_path / "in" / "datasets" / "cats", "masks/a.png", "metadata.jsonl", "notes.txt")
    fill(tmp_path / "in" / "pasted", "x.png")
    fill(tmp_path / "in", "loose.png", "empty/readme.txt", ".hidden/a.png", "datasets/.adding-0/files/a.png")
    fill(tmp_path / "sets" / "dogs", "deep/er/a.png")
    (tmp_path / "in" / "link").symlink_to(tmp_path / "sets" / "dogs")
    rows = list_image_folders({"input": [tmp_path / "in"], "datasets": [tmp_path / "sets"]}, ["input/datasets"])
    assert [row.name for row in rows] == ["datasets/dogs", "input/datasets/cats", "input/pasted"]
    cats = rows[1]
    assert (cats.images, cats.captions, cats.metadata) == (3, 2, True)
    assert cats.covers == ("B.JPG", "a.png", "sub/d.png")
    assert rows[0].covers == ("deep/er/a.png",)


def test_unchanged_directories_are_not_listed_again(tmp_path: Path):
    for number in range(20):
        fill(tmp_path / "in" / f"set{number}", "a.png", "sub/b.png")
    settle(tmp_path)
    roots = {"input": [tmp_path / "in"]}
    first = list_image_folders(roots)
    with file_calls(tmp_path) as calls:
        assert list_image_folders(roots) == first
    assert [call for call, _ in calls if call not in ("stat", "lstat")] == []
    fill(tmp_path / "in" / "set3", "c.png")
    with file_calls(tmp_path) as calls:
        changed = list_image_folders(roots)
    assert sum(row.images for row in changed) == 41
    assert {Path(path).name for call, path in calls if call == "os.scandir"} == {"set3"}


def test_a_missing_root_or_a_folder_that_cannot_be_listed_hides_no_other(tmp_path: Path):
    fill(tmp_path / "in" / "cats", "a.png")
    rows = list_image_folders({"input": [tmp_path / "gone", tmp_path / "in"], "datasets": [tmp_path / "file"]})
    assert [row.name for row in rows] == ["input/cats"]


def test_caches_are_not_taken_for_images(tmp_path: Path):
    fill(tmp_path / "in" / "cats", "a.png", "cache/dataset.json", "cache/b.png")
    assert list_image_folders({"input": [tmp_path / "in"]})[0].images == 1
