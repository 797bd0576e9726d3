"""The first look at a folder shows what reading it shows, and reads only what is shown."""

import json
from pathlib import Path

import pytest
from PIL import Image

from streamcache.dataset_cache.curate import SourceFolder, first_look, look_first
from streamcache.dataset_cache.sources import FolderSource, Masks


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Images with captions, a mask, a choice, a caption in metadata.jsonl, and a damaged file."""
    root = tmp_path / "set"
    for name in ("a.png", "b.png", "c.png", "10_sub/d.png", "a-masklabel.png"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (64, 48), (9, 99, 200)).save(root / name)
    (root / "a.txt").write_text("first\nsecond")
    (root / "b.json").write_text('{"text": "from json"}')
    (root / "C.TXT").write_text("another case")
    (root / "e.png").write_bytes(b"no image")
    (root / "metadata.jsonl").write_text('{"file_name": "10_sub/d.png", "text": "listed"}')
    (root / "streamcache.json").write_text(json.dumps({"images": {"b.png": {"excluded": True}}}))
    return root


def source(folder: Path) -> FolderSource:
    return FolderSource(folder, masks=Masks("auto"))


def test_it_shows_what_reading_shows(folder: Path):
    look, read = look_first(source(folder)), SourceFolder(folder).read()
    assert not look.whole and read.whole
    assert [image.name for image in look.images] == [image.name for image in read.images]
    assert read.images[0].mask
    for mine, theirs in zip(look.images, read.images, strict=True):
        assert mine == theirs
    assert look.problems == read.problems


def test_only_what_is_shown_is_read(folder: Path, monkeypatch):
    opened, read_facts = [], first_look.read_facts
    monkeypatch.setattr(first_look, "read_facts", lambda path, whole: opened.append(path) or read_facts(path, whole))
    look = look_first(source(folder))
    of_the_folder = {Path(path).name for path in opened}
    assert of_the_folder == {"metadata.jsonl", "streamcache.json"} and len(look.images) == 5
    opened.clear()
    look.images[2:3]
    assert sorted(Path(path).name for path in opened) == ["C.TXT", "c.png"]
    look.images[2:3]
    assert len(opened) == 2, "and only once"


def test_a_file_that_was_removed_meanwhile_is_a_problem_of_its_image(folder: Path):
    look = look_first(source(folder))
    (folder / "c.png").unlink()
    assert "cannot be read" in look.images[2].problem
