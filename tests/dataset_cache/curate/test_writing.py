"""Captions and choices are written atomically, only over what was shown, and a batch is undone as a whole."""

import errno
import json
import shutil
import stat
import sys
import tempfile
import unicodedata
from pathlib import Path

import pytest

from streamcache.dataset_cache.curate import (
    CaptionChange,
    CaptionEdit,
    EditConflict,
    EditResult,
    append_tag,
    apply_changes,
    choose_images,
    last_edit,
    preview_edit,
    replace_text,
    set_text,
    undo_edit,
    writing,
)
from streamcache.errors import CacheError

from ...support.processes import edit_as_another_user, edit_captions, needs_fork, undo_edits


def edit(view, names, change: CaptionEdit) -> EditResult:
    now = view()
    return apply_changes(now, preview_edit(now, names, change).changes, change.title)


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".png")
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def test_a_batch_is_written_and_undone(cats, view):
    before = contents(cats)
    done = edit(view, ["a.png", "b.png", "sub/c.png"], append_tag("pet"))
    assert done.changed == ["a.png", "b.png", "sub/c.png"] and not done.conflicts and not done.refused
    assert (cats / "b.txt").read_text() == "a cat, pet\nthe cat, asleep, pet"
    assert (cats / "sub" / "c.txt").read_text() == "pet"
    assert last_edit(cats) == "Append the tag 'pet'"
    assert undo_edit(cats).changed == ["a.png", "b.png", "sub/c.png"]
    assert contents(cats) == before
    assert undo_edit(cats) is None and last_edit(cats) == ""


def test_an_undo_that_could_not_write_keeps_the_former_texts(cats, view, monkeypatch):
    before = contents(cats)
    edit(view, ["a.png", "b.png"], set_text("new"))
    with monkeypatch.context() as full:
        full.setattr(writing, "replace_file", raise_full)
        assert set(undo_edit(cats).refused) == {"a.png", "b.png"}
    assert undo_edit(cats).changed == ["a.png", "b.png"] and contents(cats) == before


def raise_full(path: Path, data: bytes) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_an_image_that_is_gone_is_refused_and_others_are_chosen(cats, view):
    done = choose_images(view(), ["gone.png", "a.png"], excluded=True)
    assert done.changed == ["a.png"] and list(done.refused) == ["gone.png"]


def test_batches_are_undone_one_by_one(cats, view):
    edit(view, ["a.png"], set_text("one"))
    edit(view, ["a.png"], set_text("two"))
    undo_edit(cats)
    assert (cats / "a.txt").read_text() == "one"
    undo_edit(cats)
    assert (cats / "a.txt").read_text() == "a cat, sitting"


def test_a_caption_that_changed_on_disk_is_a_conflict_and_stays(cats, view):
    shown = view()
    changes = preview_edit(shown, ["a.png", "b.png"], replace_text("cat", "dog")).changes
    (cats / "a.txt").write_text("by another program")
    done = apply_changes(shown, changes)
    assert done.changed == ["b.png"]
    stamp = view().find("a.png").caption.stamp
    assert done.conflicts == [EditConflict("a.png", "a cat, sitting", "by another program", "a dog, sitting", stamp)]
    assert (cats / "a.txt").read_text() == "by another program"


@pytest.mark.parametrize("name", ["c.txt", "c.caption", "c.json"])
def test_a_caption_file_that_appeared_is_a_conflict(cats, view, name):
    shown = view()
    (cats / "sub" / name).write_text("{}")
    done = apply_changes(shown, [CaptionChange("sub/c.png", "", "mine", "")])
    assert [conflict.name for conflict in done.conflicts] == ["sub/c.png"]
    assert contents(cats / "sub") == {name: b"{}"}


def test_a_caption_that_was_removed_is_a_conflict(cats, view):
    shown = view()
    changes = preview_edit(shown, ["a.png"], set_text("new")).changes
    (cats / "a.txt").unlink()
    assert apply_changes(shown, changes).conflicts[0].found == "" and not (cats / "a.txt").exists()


def test_undo_leaves_what_changed_since(cats, view):
    edit(view, ["a.png", "b.png"], replace_text("cat", "dog"))
    (cats / "a.txt").write_text("later")
    done = undo_edit(cats)
    assert done.changed == ["b.png"] and [conflict.name for conflict in done.conflicts] == ["a.png"]
    assert (cats / "a.txt").read_text() == "later" and (cats / "b.txt").read_text() == "a cat\nthe cat, asleep"


def test_a_metadata_file_is_never_touched(cats, view):
    listed = json.dumps({"file_name": "sub/c.png", "text": "listed"}).encode()
    (cats / "metadata.jsonl").write_bytes(listed)
    edit(view, ["sub/c.png"], append_tag("x"))
    assert (cats / "metadata.jsonl").read_bytes() == listed
    assert view().find("sub/c.png").lines == ("listed, x",)


def test_images_that_share_a_caption_file_are_edited_once(cats, view, picture):
    picture("cats/a.jpg")
    done = edit(view, ["a.png", "a.jpg"], append_tag("x"))
    assert done.changed == ["a.jpg", "a.png"] or done.changed == ["a.png", "a.jpg"]
    assert (cats / "a.txt").read_text() == "a cat, sitting, x"
    now = view()
    stamp = now.find("a.png").caption.stamp
    done = apply_changes(now, [CaptionChange("a.png", "", "one", stamp), CaptionChange("a.jpg", "", "two", stamp)])
    assert done.changed == ["a.png"] and [conflict.name for conflict in done.conflicts] == ["a.jpg"]


def test_one_bad_file_does_not_stop_a_batch(cats, view, make_pipe):
    (cats / "real.txt").write_text("elsewhere")
    (cats / "b.txt").unlink()
    (cats / "b.txt").symlink_to("real.txt")
    make_pipe(cats / "sub" / "c.txt")
    now = view()
    stamps = {image.name: image.caption.stamp for image in now.images}
    done = apply_changes(now, [CaptionChange(name, "", "new", stamp) for name, stamp in stamps.items()])
    assert done.changed == ["a.png"]
    assert "is a link" in done.refused["b.png"] and "not a file" in done.refused["sub/c.png"]
    assert (cats / "real.txt").read_text() == "elsewhere" and (cats / "b.txt").is_symlink()


@pytest.mark.parametrize("text", ["a\ud800b", "a\0b", "x" * (17 << 20)])
def test_text_that_could_not_be_read_again_is_refused(cats, view, text):
    now = view()
    done = apply_changes(now, [CaptionChange("a.png", "", text, now.find("a.png").caption.stamp)])
    assert list(done.refused) == ["a.png"] and (cats / "a.txt").read_text() == "a cat, sitting"


def test_long_and_right_to_left_captions_come_back_as_written(cats, view):
    text = "חתול \u202e" + "word " * 20_000
    edit(view, ["a.png"], set_text(text))
    assert view().find("a.png").caption.text == text


def test_names_in_another_unicode_form_keep_their_files(cats, view, picture):
    name = unicodedata.normalize("NFD", "café")
    picture(f"cats/{name}.png", caption="coffee")
    assert edit(view, [unicodedata.normalize("NFC", "café.png")], append_tag("x")).changed == [f"{name}.png"]
    assert (cats / f"{name}.txt").read_text() == "coffee, x"


@pytest.mark.skipif(sys.platform == "win32", reason="other modes")
def test_a_file_keeps_its_mode_and_a_read_only_one_is_refused(cats, view):
    (cats / "a.txt").chmod(0o664)
    (cats / "b.txt").chmod(0o444)
    done = edit(view, ["a.png", "b.png"], append_tag("x"))
    assert done.changed == ["a.png"] and "read-only" in done.refused["b.png"]
    assert stat.S_IMODE((cats / "a.txt").stat().st_mode) == 0o664
    assert undo_edit(cats).changed == ["a.png"]


@needs_fork
def test_a_read_only_folder_is_said_before_and_refused(cats, nursery):
    with tempfile.TemporaryDirectory() as place:  # not below pytest's folder, which other users may not enter
        Path(place).chmod(0o755)
        (state := Path(place, "state")).mkdir()
        state.chmod(0o777)
        shutil.move(cats, place)
        folder = Path(place, cats.name)
        before = contents(folder)
        for path in (folder / "sub", folder):
            path.chmod(0o555)
        notes = {note[0]: note[1:] for note in nursery.start(edit_as_another_user, folder, state).wait()}
        for path in (folder, folder / "sub"):
            path.chmod(0o755)
        assert contents(folder) == before
    assert all("is read-only" in reason for reason in notes["locked"][0].values())
    assert notes["captions"][0] == [] and len(notes["captions"][1]) == 3
    assert notes["choices"][0] == [] and len(notes["choices"][1]) == 3


def test_an_edit_that_could_not_be_undone_is_refused(cats, view, state_dir):
    (state_dir / "edits").write_text("a file in the way")
    with pytest.raises(CacheError, match="could not be undone. Nothing was changed"):
        edit(view, ["a.png"], set_text("new"))
    assert (cats / "a.txt").read_text() == "a cat, sitting"


def test_choices_are_written_beside_the_images_and_undone(cats, view):
    done = choose_images(view(), ["a.png", "sub/c.png"], excluded=True)
    assert done.changed == ["a.png", "sub/c.png"]
    assert json.loads((cats / "sub" / "streamcache.json").read_text()) == {
        "version": 1,
        "images": {"c.png": {"excluded": True}},
    }
    choose_images(view(), ["a.png", "b.png"], repeats=3)
    images = {image.name: (image.excluded, image.repeats) for image in view().images}
    assert images == {"a.png": (True, 3), "b.png": (False, 3), "sub/c.png": (True, 1)}
    assert last_edit(cats) == "3× repeat: 2 images"
    undo_edit(cats)
    undo_edit(cats)
    assert not list(cats.rglob("streamcache.json"))


def test_choices_start_from_what_is_on_disk_now(cats, view):
    shown = view()
    choose_images(view(), ["a.png"], excluded=True)
    choose_images(shown, ["b.png"], excluded=True)
    assert choose_images(shown, ["a.png"], excluded=False).changed == ["a.png"]
    assert [image.name for image in view().images if image.excluded] == ["b.png"]


def test_the_last_choice_taken_back_removes_the_file(cats, view):
    choose_images(view(), ["a.png"], excluded=True)
    choose_images(view(), ["a.png"], excluded=False)
    assert not (cats / "streamcache.json").exists()
    assert choose_images(view(), ["a.png"], excluded=False).changed == []


def test_damaged_choices_are_not_replaced(cats, view):
    (cats / "streamcache.json").write_text("{")
    done = choose_images(view(), ["a.png", "sub/c.png"], excluded=True)
    assert done.changed == ["sub/c.png"] and "invalid JSON" in done.refused["a.png"]
    assert (cats / "streamcache.json").read_text() == "{"


def test_repeats_out_of_range_are_refused(view):
    with pytest.raises(CacheError, match="expected 1 to 100,000"):
        choose_images(view(), ["a.png"], repeats=0)


@needs_fork
def test_a_kill_at_any_step_leaves_whole_files_that_undo_restores(tmp_path, picture, nursery, state_dir):
    folder = tmp_path / "many"
    for number in range(6):
        picture(f"many/{number}.png", size=(8, 8), caption=f"cat {number}")
    before = contents(folder)
    for last in range(1, 200):
        notes = nursery.start(edit_captions, folder, state_dir, "cat", "dog", last).wait()
        for name, data in contents(folder).items():
            if name[0] != ".":  # an unfinished temporary file
                assert data in (before[name], before[name].replace(b"cat", b"dog"))
        undo_edit(folder)
        left = {name: data for name, data in contents(folder).items() if name[0] != "."}
        assert left == before, f"killed at step {last}"
        if notes[-1][0] == "done":
            break
    assert last > 10


@needs_fork
def test_an_undo_that_is_killed_is_finished_by_the_next(tmp_path, picture, nursery, state_dir, view):
    folder = tmp_path / "many"
    for number in range(3):
        picture(f"many/{number}.png", size=(8, 8), caption=f"cat {number}")
    before = contents(folder)
    for last in range(1, 100):
        nursery.start(edit_captions, folder, state_dir, "cat", "dog").wait()
        notes = nursery.start(undo_edits, folder, state_dir, last).wait()
        undo_edit(folder)
        assert {name: data for name, data in contents(folder).items() if name[0] != "."} == before
        if notes and notes[-1][0] == "done":
            break
    assert last > 5


@needs_fork
def test_two_processes_that_edit_the_same_captions_never_mix(tmp_path, picture, nursery, state_dir):
    folder = tmp_path / "many"
    for number in range(30):
        picture(f"many/{number:02d}.png", size=(8, 8), caption="cat")
    children = [nursery.start(edit_captions, folder, state_dir, "cat", by) for by in ("dog", "cow")]
    notes = [child.wait()[-1] for child in children]
    for name in sorted(path.stem for path in folder.glob("*.txt")):
        text, image = (folder / f"{name}.txt").read_text(), f"{name}.png"
        owner = {"dog": 0, "cow": 1}[text]
        assert image in notes[owner][1]
        assert image not in notes[1 - owner][1]
    while undo_edit(folder) is not None:
        pass
    assert set(contents(folder).values()) == {b"cat"}
