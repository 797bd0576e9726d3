"""Uploads: what arrives is added as a whole, and nothing is left behind."""

import os
import shutil
import time
from pathlib import Path

import pytest

from streamcache.dataset_cache import CacheError
from streamcache.dataset_cache.intake import Upload, remove_abandoned
from streamcache.dataset_cache.intake import upload as uploads
from streamcache.dataset_cache.intake.adding import KEEP_BOTH
from streamcache.dataset_cache.intake.upload import FILES

from .zips import picture, write_zip


def store(upload: Upload, name: str, data: bytes, number: int = 0) -> None:
    """As ComfyUI's upload route does."""
    path = upload.folder / FILES / os.path.dirname(name) / f"{number:06}-{os.path.basename(name)}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def test_files_and_zips_of_one_upload_are_added_together(tmp_path: Path):
    upload = Upload.begin(tmp_path, 100)
    store(upload, "a.png", picture(1), 0)
    store(upload, "a.txt", b"one", 1)
    store(upload, "sub/2-b.png", picture(2), 2)
    write_zip(upload.zip_path(0), {"cats/c.png": picture(3), "cats/c.txt": b"three", "cats/bad.exe": b""})
    seen: list[tuple[int, int]] = []
    added = upload.add_to(tmp_path / "set", KEEP_BOTH, lambda done, total: seen.append((done, total)))
    assert (added.images, added.captions) == (3, 2)
    assert [skipped.name for skipped in added.skipped] == ["cats/bad.exe"]
    names = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file())
    assert names == ["set/a.png", "set/a.txt", "set/c.png", "set/c.txt", "set/sub/2-b.png"]
    assert os.listdir(tmp_path) == ["set"]
    assert seen[0][0] == 0 and seen[-1][0] == seen[-1][1] == max(total for _, total in seen)


def test_an_error_or_a_stop_leaves_nothing(tmp_path: Path):
    upload = Upload.begin(tmp_path, 1)
    upload.zip_path(0).write_bytes(b"no zip")
    store(upload, "a.png", picture())
    with pytest.raises(CacheError, match="not a zip"):
        upload.add_to(tmp_path / "set", KEEP_BOTH, lambda done, total: None)
    assert os.listdir(tmp_path) == []
    upload = Upload.begin(tmp_path, 1)
    write_zip(upload.zip_path(0), {f"{n}.png": picture(n) for n in range(9)})

    def stop(done: int, total: int) -> None:
        if done > 300:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        upload.add_to(tmp_path / "set", KEEP_BOTH, stop)
    assert os.listdir(tmp_path) == []


def test_a_full_disk_is_refused_at_the_start(tmp_path: Path):
    with pytest.raises(CacheError, match="the disk is too full"):
        Upload.begin(tmp_path, shutil.disk_usage(tmp_path).total * 2)
    assert os.listdir(tmp_path) == []


def test_a_place_that_cannot_be_written_is_refused_at_the_start(tmp_path: Path):
    (tmp_path / "datasets").write_text("a file")
    with pytest.raises(CacheError, match="cannot be written"):
        Upload.begin(tmp_path / "datasets", 1)


def test_ids_cannot_point_elsewhere(tmp_path: Path):
    for odd in ("", "..", "../x", "0" * 15, "0" * 17, "G" * 16, "0" * 16 + "\n", "/" * 16):
        with pytest.raises(CacheError):
            Upload(tmp_path, odd)
    (tmp_path / "victim").mkdir()
    (tmp_path / f".adding-{'0' * 16}").symlink_to(tmp_path / "victim")
    upload = Upload(tmp_path, "0" * 16)
    assert not upload.exists()
    upload.discard()
    assert (tmp_path / "victim").is_dir()


def test_links_in_an_upload_are_not_followed(tmp_path: Path):
    (tmp_path / "secret.png").write_bytes(picture())
    upload = Upload.begin(tmp_path / "datasets", 1)
    (upload.folder / FILES / "0-a.png").symlink_to(tmp_path / "secret.png")
    added = upload.add_to(tmp_path / "set", KEEP_BOTH, lambda done, total: None)
    assert added.images == 0 and (tmp_path / "secret.png").exists()


def test_abandoned_uploads_are_removed_and_others_stay(tmp_path: Path):
    old, new = Upload.begin(tmp_path, 1), Upload.begin(tmp_path, 1)
    before = time.time() - uploads._ABANDONED_SECONDS - 10
    os.utime(old.folder, (before, before))
    (tmp_path / "cats").mkdir()
    os.utime(tmp_path / "cats", (before, before))
    remove_abandoned(tmp_path)
    assert sorted(os.listdir(tmp_path)) == sorted([new.folder.name, "cats"])
