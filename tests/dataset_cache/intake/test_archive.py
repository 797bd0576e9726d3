"""Zips of images: what is taken, and that hostile ones harm nothing."""

import struct
import zipfile
from pathlib import Path

import pytest

from streamcache.dataset_cache import CacheError
from streamcache.dataset_cache.intake import archive as archives
from streamcache.dataset_cache.intake.archive import Archive

from .zips import picture, write_link_zip, write_zip


def unpack(path: Path, into: Path) -> tuple[dict[str, bytes], dict[str, str]]:
    """Name → content of the files that are taken, and name → reason of the others."""
    into.mkdir()
    with Archive(path) as archive:
        taken = {file.name: file.path.read_bytes() for file in archive.extract(into, lambda count: None)}
        return taken, {skipped.name: skipped.reason for skipped in archive.skipped}


def test_images_captions_masks_and_metadata_are_taken_and_others_named(tmp_path: Path):
    files = {"a.png": b"1", "b.JPG": b"2", "a.txt": b"3", "a-masklabel.png": b"4", "masks/b.png": b"5"}
    files |= {"metadata.jsonl": b"6", "b.caption": b"7", "sub/a.png": b"8"}
    others = {"setup.exe": b"x", "model.safetensors": b"x", "noextension": b"x", "page.svg": b"<svg/>"}
    taken, skipped = unpack(write_zip(tmp_path / "a.zip", files | others), tmp_path / "out")
    assert taken == files
    assert skipped == dict.fromkeys(others, "not an image, a caption or a mask")


def test_the_folder_around_all_files_is_left_out(tmp_path: Path):
    taken, _ = unpack(write_zip(tmp_path / "a.zip", {"x/y/a.png": b"1", "x/y/z/b.png": b"2"}), tmp_path / "out")
    assert sorted(taken) == ["a.png", "z/b.png"]


def test_a_folder_that_says_how_often_to_repeat_stays(tmp_path: Path):
    taken, _ = unpack(write_zip(tmp_path / "a.zip", {"set/10_cat/a.png": b"1"}), tmp_path / "out")
    assert sorted(taken) == ["10_cat/a.png"]


def test_files_of_systems_are_left_out_silently(tmp_path: Path):
    debris = ["__MACOSX/._a.png", ".DS_Store", "Thumbs.db", "sub/desktop.ini", ".hidden/a.png"]
    taken, skipped = unpack(write_zip(tmp_path / "a.zip", dict.fromkeys(["a.png", *debris], b"1")), tmp_path / "out")
    assert list(taken) == ["a.png"] and skipped == {}


@pytest.mark.parametrize(
    "name",
    [
        "../a.png", "x/../../a.png", "/etc/a.png", "//server/a.png", "..\\a.png", "C:\\a.png", "C:a.png", "c:/a.png",
        "\\\\server\\share\\a.png", "a.png:stream.png", "con.png", "nul/a.png", "a\nb.png", "a?.png", "a*.png",
        "x /a.png", "x" * 300 + ".png", "é" * 150 + ".png", "/".join("abcdefgh") + "/a.png", "a\u0000.png/../../b.png",
    ],
)  # fmt: skip
def test_names_that_lead_elsewhere_or_that_some_system_refuses_are_skipped(tmp_path: Path, name: str):
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        entry = zipfile.ZipInfo("x")
        entry.filename = entry.orig_filename = name
        archive.writestr(entry, picture())
        archive.writestr("good.png", picture())
    taken, skipped = unpack(path, tmp_path / "out")
    assert list(taken) in (["good.png"], ["a", "good.png"]) and len(skipped) == 1
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.zip", "out"]
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["000000.png"]


def test_links_are_skipped(tmp_path: Path):
    taken, skipped = unpack(write_link_zip(tmp_path / "a.zip", "a.png", "/etc/passwd"), tmp_path / "out")
    assert taken == {} and skipped == {"a.png": "a link or a device"}


def test_encrypted_files_are_skipped(tmp_path: Path):
    path = write_zip(tmp_path / "a.zip", {"a.png": picture()})
    data = bytearray(path.read_bytes())
    data[data.index(b"PK\1\2") + 8] |= 1  # the flag in the table of contents
    path.write_bytes(data)
    taken, skipped = unpack(path, tmp_path / "out")
    assert taken == {} and skipped["a.png"].startswith("encrypted")


def test_zips_in_zips_are_named(tmp_path: Path):
    inner = write_zip(tmp_path / "inner.zip", {"a.png": picture()}).read_bytes()
    taken, skipped = unpack(write_zip(tmp_path / "a.zip", {"inner.zip": inner}), tmp_path / "out")
    assert taken == {} and "unpack it first" in skipped["inner.zip"]


def test_a_name_twice_is_taken_once(tmp_path: Path):
    path = tmp_path / "a.zip"
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.png", b"1")
        archive.writestr("a.png", b"2")
    taken, skipped = unpack(path, tmp_path / "out")
    assert taken == {"a.png": b"1"} and skipped == {"a.png": "twice in the zip"}


def test_names_in_another_case_are_both_taken(tmp_path: Path):
    taken, skipped = unpack(write_zip(tmp_path / "a.zip", {"a.png": b"1", "A.png": b"2"}), tmp_path / "out")
    assert taken == {"a.png": b"1", "A.png": b"2"} and skipped == {}


def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(archives, "ALWAYS_ALLOWED", 1 << 20)
    path = write_zip(tmp_path / "a.zip", {f"{n}.png": bytes(1 << 20) for n in range(5)})
    with pytest.raises(CacheError, match="would unpack to"):
        Archive(path)


def test_a_size_that_is_wrong_does_not_let_more_through(tmp_path: Path):
    """The table of contents says 10 bytes, the data has a million."""
    path = write_zip(tmp_path / "a.zip", {"a.png": bytes(1_000_000), "b.png": picture()})
    data = bytearray(path.read_bytes())
    at = data.index(b"PK\1\2")
    data[at + 24 : at + 28] = struct.pack("<I", 10)
    path.write_bytes(data)
    taken, skipped = unpack(path, tmp_path / "out")
    assert list(taken) == ["b.png"] and "damaged" in skipped["a.png"]


def test_a_huge_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("streamcache.dataset_cache.intake.incoming.MAX_FILE", 100)
    taken, skipped = unpack(write_zip(tmp_path / "a.zip", {"a.png": bytes(101), "b.png": b"1"}), tmp_path / "out")
    assert list(taken) == ["b.png"] and skipped["a.png"] == "101 bytes, expected at most 100"


def test_too_many_entries_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(archives, "MAX_ENTRIES", 9)
    with pytest.raises(CacheError, match="10 entries; at most 9"):
        Archive(write_zip(tmp_path / "a.zip", {f"{n}.png": b"1" for n in range(10)}))


def test_a_huge_table_of_contents_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(archives, "MAX_DIRECTORY", 70_000)
    path = write_zip(tmp_path / "a.zip", {f"{n:0100}.png": b"" for n in range(1000)})
    with pytest.raises(CacheError, match="table of contents"):
        Archive(path)


@pytest.mark.parametrize("data", [b"", b"PK", b"PK\3\4" + bytes(100), b"\x89PNG\r\n", b"Rar!\x1a\x07"])
def test_what_is_not_a_zip_is_refused(tmp_path: Path, data: bytes):
    (tmp_path / "a.zip").write_bytes(data)
    with pytest.raises(CacheError, match="not a zip file"):
        Archive(tmp_path / "a.zip")


def test_damaged_files_are_named_and_others_taken(tmp_path: Path):
    path = write_zip(tmp_path / "a.zip", {"a.png": bytes(range(256)) * 40, "b.png": b"1"})
    data = bytearray(path.read_bytes())
    data[60:80] = bytes(20)
    path.write_bytes(data)
    taken, skipped = unpack(path, tmp_path / "out")
    assert taken == {"b.png": b"1"} and "damaged" in skipped["a.png"]
    assert len(list((tmp_path / "out").iterdir())) == 1


def test_a_cut_zip_is_refused(tmp_path: Path):
    path = write_zip(tmp_path / "a.zip", {"a.png": picture()})
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(CacheError, match="not a zip file, or a damaged one"):
        Archive(path)


def test_a_zip_larger_than_the_free_disk_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(archives, "_RESERVE", 1 << 60)
    with pytest.raises(CacheError, match="the disk is too full"):
        unpack(write_zip(tmp_path / "a.zip", {"a.png": picture()}), tmp_path / "out")
