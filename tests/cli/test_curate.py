"""`streamcache caption` and `streamcache curate`: captions and choices of a folder, with a preview and undo."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ..support.commands import run, run_json
from ..support.fixtures import settle


@pytest.fixture
def cats(tmp_path: Path, picture) -> Path:
    picture("my cats/a.png", seed=1, caption="a cat, sitting")
    picture("my cats/b.png", seed=2, caption="a cat\nthe cat, asleep")
    picture("my cats/sub/c.png", seed=3)
    settle()
    return tmp_path / "my cats"


def texts(folder: Path) -> dict[str, str]:
    return {path.relative_to(folder).as_posix(): path.read_text() for path in sorted(folder.rglob("*.txt"))}


def test_find_and_replace_shows_what_it_changed_and_is_undone(cats, capsys):
    before = texts(cats)
    assert run("caption", cats, "--find", "cat", "--replace", "dog") == 0
    out = capsys.readouterr().out
    assert "a.png: 'a cat, sitting' → 'a dog, sitting'" in out and "b.png: 'a cat | the cat, asleep' →" in out
    assert f'Changed 2 captions\nTo take it back: streamcache caption "{cats}" --undo' in out
    assert texts(cats) == {"a.txt": "a dog, sitting", "b.txt": "a dog\nthe dog, asleep"}
    assert run("caption", cats, "--undo") == 0
    assert "Undone: Replace 'cat' by 'dog' (2 images)" in capsys.readouterr().out and texts(cats) == before
    assert run("caption", cats, "--undo") == 0 and "nothing to undo" in capsys.readouterr().out


def test_a_dry_run_writes_nothing(cats, capsys):
    before = texts(cats)
    code, facts = run_json(capsys, "caption", cats, "--append-tag", "pet", "--dry-run")
    assert code == 0 and texts(cats) == before
    assert [change["after"] for change in facts["changed"]] == [
        "a cat, sitting, pet",
        "a cat, pet\nthe cat, asleep, pet",
        "pet",
    ]


def test_edits_are_combined_and_limited_to_some_images(cats):
    command = [
        "caption",
        cats,
        "--remove-tag",
        "sitting",
        "--append-tag",
        "pet",
        "--prefix",
        "photo, ",
        "--suffix",
        "!",
    ]
    assert run(*command, "--only", "a.*", "c.png") == 0
    assert texts(cats) == {"a.txt": "photo, a cat, pet!", "b.txt": "a cat\nthe cat, asleep", "sub/c.txt": "photo, pet!"}


def test_a_regular_expression_changes_captions(cats):
    assert run("caption", cats, "--find", r"(\w+) cat", "--replace", r"\1 big cat", "--regex") == 0
    assert texts(cats)["b.txt"] == "a big cat\nthe big cat, asleep"


def test_an_invalid_expression_changes_nothing(cats, capsys):
    assert run("caption", cats, "--find", "(", "--replace", "", "--regex") == 1
    assert "is invalid" in capsys.readouterr().err


def test_captions_come_from_a_file_and_existing_ones_are_kept(cats, tmp_path, capsys):
    rows = [{"file_name": name, "text": f"new {name}"} for name in ("a.png", "c.png", "gone.png")]
    (tmp_path / "list.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert run("caption", cats, "--from", tmp_path / "list.jsonl") == 0
    out = capsys.readouterr().out
    assert "Kept: 1 existing caption (--overwrite replaces them)" in out and "fit no image, or several: gone.png" in out
    assert texts(cats)["sub/c.txt"] == "new c.png" and texts(cats)["a.txt"] == "a cat, sitting"
    assert run("caption", cats, "--from", tmp_path / "list.jsonl", "--overwrite") == 0
    assert texts(cats)["a.txt"] == "new a.png"


def test_captions_that_cannot_be_changed_are_named(cats, capsys):
    (cats / "sub" / "c.json").write_text('{"caption": "json"}')
    code, facts = run_json(capsys, "caption", cats, "--append-tag", "x")
    assert code == 3 and list(facts["refused"]) == ["sub/c.png"] and len(facts["changed"]) == 2
    assert run("caption", cats, "--append-tag", "y") == 3
    assert "Not changed: sub/c.png: its caption is in c.json" in capsys.readouterr().out


def test_undo_goes_with_no_other_edit_and_can_be_tried(cats, capsys):
    run("caption", cats, "--suffix", "!")
    edited = (cats / "a.txt").read_text()
    assert (
        run("caption", cats, "--undo", "--dry-run") == 0
        and "Would be undone: Add the suffix" in capsys.readouterr().out
    )
    for flags in (["caption", cats, "--undo", "--prefix", "x"], ["curate", cats, "--undo", "--exclude", "*"]):
        assert run(*flags) == 2 and "no other edit" in capsys.readouterr().err
    assert (cats / "a.txt").read_text() == edited


def test_an_undo_names_what_changed_meanwhile(cats, capsys):
    run("caption", cats, "--append-tag", "x", "--only", "a.png", "b.png")
    (cats / "a.txt").write_text("mine")
    assert run("caption", cats, "--undo") == 3
    assert "Not changed: a.png: it changed meanwhile, and is now 'mine'" in capsys.readouterr().out


@pytest.mark.parametrize(
    "flags",
    [
        [],
        ["--find", "x"],
        ["--replace", "x"],
        ["--regex", "--prefix", "x"],
        ["--overwrite", "--prefix", "x"],
        ["--from", "x.csv", "--prefix", "y"],
    ],
)
def test_flags_that_do_not_belong_together_are_wrong_usage(cats, flags):
    assert run("caption", cats, *flags) == 2


def test_a_missing_folder_and_names_that_fit_no_image_are_refused(cats, tmp_path, capsys):
    assert run("caption", tmp_path / "nowhere", "--prefix", "x") == 1
    assert "the source folder is missing" in capsys.readouterr().err
    assert run("curate", cats, "--exclude", "z*") == 1
    assert "z*: no image in" in capsys.readouterr().err


def test_images_are_excluded_repeated_listed_and_undone(cats, capsys):
    assert run("curate", cats, "--exclude", "a.png", "--repeats", 3, "--only", "sub/*") == 0
    out = capsys.readouterr().out
    assert "Exclude: 1 image (1 changed)" in out and "3× repeat: 1 image (1 changed)" in out
    code, facts = run_json(capsys, "curate", cats, "--list")
    assert code == 0
    assert [(i["name"], i["excluded"], i["repeats"]) for i in facts["images"]] == [
        ("a.png", True, 1),
        ("b.png", False, 1),
        ("sub/c.png", False, 3),
    ]
    assert run("curate", cats) == 0
    assert "3 images, 1 excluded, 0 that cannot be used" in capsys.readouterr().out
    assert run("curate", cats, "--include", "*") == 0
    run("curate", cats, "--undo")
    assert run_json(capsys, "curate", cats)[1]["images"][0]["excluded"]


def test_images_that_look_alike_are_listed(tmp_path, capsys):
    (tmp_path / "set").mkdir()
    for number in range(3):
        pixels = np.random.default_rng(number).integers(0, 255, (6, 8, 3), dtype=np.uint8)
        image = Image.fromarray(pixels).resize((128, 96), Image.Resampling.BICUBIC)
        image.save(tmp_path / "set" / f"{number}.png")
        if number == 1:
            image.resize((64, 48)).save(tmp_path / "set" / "copy.jpg")
    assert run_json(capsys, "curate", tmp_path / "set", "--duplicates")[1]["duplicates"] == [["1.png", "copy.jpg"]]
    assert run("curate", tmp_path / "set", "--duplicates") == 0
    assert "1 group of images that look alike\n  1.png, copy.jpg" in capsys.readouterr().out


def test_damaged_choices_are_named_and_not_changed(cats, capsys):
    (cats / "streamcache.json").write_text("{")
    assert run("curate", cats, "--exclude", "a.png") == 3
    assert "invalid JSON" in capsys.readouterr().out and (cats / "streamcache.json").read_text() == "{"


def test_only_without_an_action_is_wrong_usage(cats):
    assert run("curate", cats, "--only", "a.png") == 2
