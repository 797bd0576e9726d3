"""Adding files to a folder: names, clashes, captions with their images, and files that are not taken."""

import errno
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from streamcache.dataset_cache import CacheError
from streamcache.dataset_cache.intake import adding
from streamcache.dataset_cache.intake.adding import KEEP_BOTH, REPLACE, SKIP, Added, add_files
from streamcache.dataset_cache.intake.incoming import Incoming

from .zips import picture

RED, BLUE = picture(200), picture(3)


def add(
    folder: Path, files: Mapping[str, bytes], if_exists: str = KEEP_BOTH, origin: Mapping[str, int] | None = None
) -> Added:
    waiting = folder.parent / "waiting"
    waiting.mkdir(exist_ok=True)
    incoming = []
    for number, (name, data) in enumerate(files.items()):
        path = waiting / f"{number}-{Path(name).name}"
        path.write_bytes(data)
        incoming.append(Incoming(path, name, (origin or {}).get(name, 0)))
    return add_files(incoming, folder, if_exists, lambda count: None)


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
    }


def reasons(added: Added) -> dict[str, str]:
    return {skipped.name: skipped.reason for skipped in added.skipped}


def test_images_go_to_a_new_folder_with_captions_masks_and_subfolders(tmp_path: Path):
    files = {
        "a.png": RED,
        "a.txt": b"red",
        "a-masklabel.png": BLUE,
        "masks/b.png": RED,
        "sub/b.jpg": picture(1, "JPEG"),
    }
    files |= {"sub/b.caption": b"b", "metadata.jsonl": b"{}", "streamcache.json": b"{}"}
    added = add(tmp_path / "set", files)
    assert contents(tmp_path / "set") == dict(sorted(files.items()))
    assert (added.images, added.captions, added.masks, added.metadata, added.skipped) == (2, 2, 2, 2, [])


def test_bad_files_are_named_and_never_reach_the_folder(tmp_path: Path):
    files = {"good.png": RED, "text.png": b"not an image", "empty.jpg": b"", "cut.png": RED[:20], "tool.exe": b"MZ"}
    files |= {"readme.txt": b"hello", "text.txt": b"caption of a bad image", "good.txt": b"\xff\xfe\xff"}
    added = add(tmp_path / "set", files)
    assert list(contents(tmp_path / "set")) == ["good.png"]
    found = reasons(added)
    assert found["text.png"] == "not an image that Pillow can read" and found["empty.jpg"] == "the file is empty"
    assert "cut.png" in found and found["tool.exe"] == "not an image, a caption or a mask"
    assert found["readme.txt"] == "no image has this name" == found["text.txt"] and "UTF-16" in found["good.txt"]


def test_if_nothing_is_usable_no_folder_is_left(tmp_path: Path):
    assert reasons(add(tmp_path / "set", {"a.png": b""})) == {"a.png": "the file is empty"}
    assert not (tmp_path / "set").exists()


def test_the_same_files_again_change_nothing(tmp_path: Path):
    files = {"a.png": RED, "a.txt": b"red"}
    add(tmp_path / "set", files)
    again = add(tmp_path / "set", files)
    assert (again.images, again.captions, again.same, again.skipped) == (0, 0, 2, [])
    assert contents(tmp_path / "set") == files


def test_a_different_image_of_the_same_name_gets_a_number_and_so_do_its_captions(tmp_path: Path):
    add(tmp_path / "set", {"a.png": RED, "a.txt": b"red"})
    added = add(tmp_path / "set", {"a.png": BLUE, "a.txt": b"blue", "a-masklabel.png": RED})
    found = contents(tmp_path / "set")
    assert found["a.png"] == RED and found["a.txt"] == b"red"
    assert found["a (2).png"] == BLUE and found["a (2).txt"] == b"blue" and found["a (2)-masklabel.png"] == RED
    assert (added.images, added.renamed) == (1, 1)
    assert add(tmp_path / "set", {"a.png": picture(77)}).renamed == 1
    assert "a (3).png" in contents(tmp_path / "set")


def test_names_in_another_case_or_unicode_form_are_kept_apart(tmp_path: Path):
    files = {"a.png": RED, "a.txt": b"red", "A.png": BLUE, "A.txt": b"blue"}
    add(tmp_path / "set", files)
    found = contents(tmp_path / "set")
    assert sorted(found.values()) == sorted(files.values())
    assert len({name.lower() for name in found}) == 4, "the folder can be copied to Windows"
    pairs = {found[name.replace(".png", ".txt")]: found[name] for name in found if name.endswith(".png")}
    assert pairs == {b"red": RED, b"blue": BLUE}
    add(tmp_path / "set", {"e\u0301.png": RED})
    assert add(tmp_path / "set", {"\u00e9.png": BLUE}).renamed == 1


def test_files_of_two_zips_do_not_mix(tmp_path: Path):
    """The second zip's image has no caption, the first one's has."""
    waiting = tmp_path / "waiting"
    waiting.mkdir()
    files = [(1, "a.png", RED), (2, "a.png", BLUE), (2, "a.txt", b"blue")]
    incoming = []
    for number, (origin, name, data) in enumerate(files):
        (waiting / f"{number}-{name}").write_bytes(data)
        incoming.append(Incoming(waiting / f"{number}-{name}", name, origin))
    add_files(incoming, tmp_path / "set", KEEP_BOTH, lambda count: None)
    assert contents(tmp_path / "set") == {"a (2).png": BLUE, "a (2).txt": b"blue", "a.png": RED}


def test_an_image_does_not_get_the_caption_of_another_with_the_same_stem(tmp_path: Path):
    add(tmp_path / "set", {"a.png": RED, "a.txt": b"red"})
    add(tmp_path / "set", {"a.jpg": picture(5, "JPEG")})
    assert sorted(contents(tmp_path / "set")) == ["a (2).jpg", "a.png", "a.txt"]


def test_captions_can_be_added_to_images_that_are_there(tmp_path: Path):
    add(tmp_path / "set", {"a.png": RED, "b.png": BLUE, "b.txt": b"blue"})
    added = add(tmp_path / "set", {"a.txt": b"red", "b.txt": b"other"})
    assert contents(tmp_path / "set")["a.txt"] == b"red" and contents(tmp_path / "set")["b.txt"] == b"blue"
    assert reasons(added) == {"b.txt": "a different file of this name exists; choose Replace to use this one"}
    assert add(tmp_path / "set", {"b.txt": b"other"}, REPLACE).replaced == 1
    assert contents(tmp_path / "set")["b.txt"] == b"other"


def test_existing_images_are_skipped_or_replaced_as_chosen(tmp_path: Path):
    add(tmp_path / "set", {"A.png": RED, "A.txt": b"red"})
    added = add(tmp_path / "set", {"a.png": BLUE, "a.txt": b"blue", "new.png": BLUE}, SKIP)
    assert set(reasons(added)) == {"a.png", "a.txt"}
    assert contents(tmp_path / "set") == {"A.png": RED, "A.txt": b"red", "new.png": BLUE}
    added = add(tmp_path / "set", {"a.png": BLUE, "a.txt": b"blue"}, REPLACE)
    assert added.replaced == 2
    assert contents(tmp_path / "set") == {"A.png": BLUE, "A.txt": b"blue", "new.png": BLUE}


def test_another_metadata_file_is_not_overwritten(tmp_path: Path):
    add(tmp_path / "set", {"a.png": RED, "metadata.jsonl": b"1"})
    assert "metadata.jsonl" in reasons(add(tmp_path / "set", {"metadata.jsonl": b"2"}))
    assert contents(tmp_path / "set")["metadata.jsonl"] == b"1"


def test_ten_thousand_files_are_added(tmp_path: Path):
    files = {f"{number:05}.{end}": data for number in range(5000) for end, data in (("png", RED), ("txt", b"x"))}
    added = add(tmp_path / "set", files)
    assert (added.images, added.captions, added.skipped) == (5000, 5000, [])
    assert len(os.listdir(tmp_path / "set")) == 10_000


def test_stopping_leaves_only_whole_files_with_their_captions(tmp_path: Path):
    waiting = tmp_path / "waiting"
    waiting.mkdir()
    files = []
    for number in range(20):
        for end, data in (("png", RED), ("txt", b"red")):
            (waiting / f"{number}.{end}").write_bytes(data)
            files.append(Incoming(waiting / f"{number}.{end}", f"{number}.{end}"))

    def stop(count: int) -> None:
        if len(os.listdir(tmp_path / "set")) >= 10 if (tmp_path / "set").exists() else False:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        add_files(files, tmp_path / "set", KEEP_BOTH, stop)
    found = contents(tmp_path / "set")
    assert len(found) == 10 and set(found.values()) == {RED, b"red"}
    assert all(name.replace(".png", ".txt") in found for name in found)


def test_a_folder_below_that_is_a_link_is_refused(tmp_path: Path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "sub").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CacheError, match="is a link"):
        add(tmp_path / "set", {"sub/a.png": RED})
    assert os.listdir(tmp_path / "elsewhere") == []


@pytest.mark.parametrize("broken", [errno.EXDEV, errno.EPERM])
def test_without_links_and_across_file_systems_files_still_arrive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: int
):
    real = os.link

    def link(source: Path, target: Path) -> None:
        if broken == errno.EPERM or Path(source).parent.name == "waiting":
            raise OSError(broken, os.strerror(broken))
        real(source, target)

    monkeypatch.setattr(adding.os, "link", link)
    assert add(tmp_path / "set", {"a.png": RED, "a.txt": b"red"}).images == 1
    assert contents(tmp_path / "set") == {"a.png": RED, "a.txt": b"red"}
    assert list((tmp_path / "waiting").iterdir()) == []


def test_a_full_or_read_only_disk_is_an_error_with_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def link(source: Path, target: Path) -> None:
        raise OSError(errno.EXDEV, "other device")

    def copy(source: Path, target: Path) -> None:
        Path(target).write_bytes(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(adding.os, "link", link)
    monkeypatch.setattr(adding.shutil, "copyfile", copy)
    with pytest.raises(CacheError, match="cannot be written: No space left"):
        add(tmp_path / "set", {"a.png": RED})
    assert not (tmp_path / "set").exists(), "no half file stays"
