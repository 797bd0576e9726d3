"""Choices about single images: excluded images leave the dataset without a loss, and come back without encoding."""

import json
import os
import unicodedata

import pytest

from streamcache.dataset_cache import CacheError, open_cache
from streamcache.dataset_cache.sources.choices import Choice, Choices, change_choices
from streamcache.errors import Unusable

from ...support.encoders import SMALL
from ...support.fixtures import settle


@pytest.fixture
def chosen(tmp_path, three):
    """Writes the choices of the folder: chosen({"0.png": {"excluded": True}})."""

    def write(images: object, below: str = "") -> None:
        path = tmp_path / "set" / below / "streamcache.json"
        path.write_text(images if isinstance(images, str) else json.dumps({"version": 1, "images": images}))
        settle()

    return write


def names(tmp_path) -> list[str]:
    cache = open_cache(tmp_path / "cache")
    return [cache.source(i) for i in range(len(cache))]


def test_an_excluded_image_leaves_the_dataset_and_comes_back_without_encoding(tmp_path, run, chosen, images, texts):
    run()
    chosen({"1.png": {"excluded": True}})
    report = run()
    assert (images.count, texts.count) == (0, 0)
    assert names(tmp_path) == ["set/0.png", "set/2.png"]
    assert report.removed == [] and report.missing == {} and report.skipped == []
    assert [e.source for e in report.chosen] == ["set/1.png"]
    assert "Excluded by choice: 1" in list(report.lines()) and not any("Skipped" in line for line in report.lines())
    assert run().unchanged and "Excluded by choice: 1" in list(run().lines())
    chosen({})
    run()
    assert (images.count, texts.count) == (0, 0) and len(names(tmp_path)) == 3


def test_the_manifest_tells_choices_from_skipped_files(tmp_path, run, chosen):
    (tmp_path / "set" / "2.png").write_bytes(b"no image")
    chosen({"1.png": {"excluded": True}})
    run()
    made = open_cache(tmp_path / "cache").manifest.provenance["encode"]
    assert made["chosen"] == {"count": 1, "files": ["set/1.png"]}
    assert made["excluded"]["count"] == 1 and made["excluded"]["files"][0]["source"] == "set/2.png"


def test_a_folder_whose_images_are_all_excluded_is_not_missing(tmp_path, run, chosen, picture):
    picture("set/sub/9.png", caption="nine")
    settle()
    run()
    chosen({"9.png": {"excluded": True}}, "sub")
    report = run()
    assert report.missing == {} and report.removed == [] and len(names(tmp_path)) == 3


def test_if_all_images_are_excluded_the_reason_is_said(run, chosen):
    chosen({f"{n}.png": {"excluded": True} for n in range(3)})
    with pytest.raises(CacheError, match="no samples to encode: 0 files skipped, 3 images excluded by choice"):
        run()


def test_repeats_multiply(tmp_path, run, chosen):
    chosen({"1.png": {"repeats": 3}})
    report = run(repeats=2)
    assert report.epoch == 2 + 6 + 2


def test_names_match_in_any_unicode_form_and_orphans_are_noted(tmp_path, run, chosen, picture):
    picture(f"set/{unicodedata.normalize('NFD', 'é')}.png", caption="e")
    chosen({unicodedata.normalize("NFC", "é.png"): {"excluded": True}, "gone.png": {"excluded": True}})
    report = run()
    assert len(names(tmp_path)) == 3
    assert [note.text for note in report.notes] == ["has images that are not here: gone.png"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "invalid JSON"),
        ("[]", "expected {"),
        ('{"images": []}', "expected {"),
        ('{"version": 2}', "has version 2, expected 1; update"),
        ('{"images": {"0.png": true}}', "0.png: expected a table"),
        ('{"images": {"0.png": {"excluded": 1}}}', "excluded = 1, expected true or false"),
        ('{"images": {"0.png": {"repeats": 0}}}', "repeats = 0, expected 1 to 100,000"),
        ('{"images": {"0.png": {"repeats": true}}}', "repeats = true"),
        ("[" * 100_000, "invalid JSON"),
        ("\0", "zero byte"),
    ],
)
def test_damaged_choices_refuse_the_run(tmp_path, run, chosen, text, reason):
    run()
    chosen(text)
    with pytest.raises(CacheError, match=rf"set.streamcache\.json: .*{reason}.*Correct the file, or remove it"):
        run()
    assert len(names(tmp_path)) == 3


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names here")
def test_choices_that_cannot_be_read_refuse_the_run(tmp_path, run, three):
    os.mkfifo(tmp_path / "set" / "streamcache.json")
    with pytest.raises(CacheError, match="not a regular file"):
        run()


def test_choices_are_read_also_if_files_are_trusted(tmp_path, run, chosen):
    import dataclasses

    chosen({"1.png": {"excluded": True}})
    run()
    chosen({"1.png": {"excluded": True}, "2.png": {"excluded": True}})
    run(settings=dataclasses.replace(SMALL, trust=True))
    assert names(tmp_path) == ["set/0.png"]


def test_choices_are_no_caption_file(tmp_path, run, chosen, picture):
    picture("set/streamcache.png", caption=None)
    chosen({})
    run()
    cache = open_cache(tmp_path / "cache")
    assert [cache.captions(i) for i in range(len(cache)) if cache.source(i) == "set/streamcache.png"] == [[""]]


def test_changes_keep_what_they_do_not_know():
    text = (
        '{"version": 1, "note": "mine", "images": {"a.png": {"rating": 5, "excluded": true}, "b.png": {"repeats": 2}}}'
    )
    changed = json.loads(change_choices(text, {"a.png": Choice(), "b.png": Choice(), "ü.png": Choice(True, 4)}))
    assert changed == {
        "version": 1,
        "note": "mine",
        "images": {"a.png": {"rating": 5}, "ü.png": {"excluded": True, "repeats": 4}},
    }


def test_a_file_without_choices_is_not_needed():
    assert change_choices('{"version": 1, "images": {"a.png": {"excluded": true}}}', {"a.png": Choice()}) == ""


def test_written_choices_are_one_line_per_image_and_read_again():
    text = change_choices(None, {"b.png": Choice(True), "a \ud800.png": Choice(False, 2)})
    assert text.count("\n") == 7 and text.encode()
    assert Choices(text)["b.png"] == Choice(True) and Choices(text)["c.png"] == Choice()


def test_damaged_choices_are_not_changed():
    with pytest.raises(Unusable):
        change_choices("{", {"a.png": Choice(True)})
