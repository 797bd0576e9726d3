"""Edits of captions are functions of text, line by line, and a preview writes nothing."""

import pytest

from streamcache.dataset_cache.curate import (
    CaptionChange,
    EditPreview,
    add_prefix,
    add_suffix,
    append_tag,
    in_turn,
    preview_captions,
    preview_edit,
    remove_tag,
    replace_text,
    set_text,
)
from streamcache.errors import CacheError


@pytest.mark.parametrize(
    ("edit", "before", "after"),
    [
        (replace_text("cat", "dog"), "a cat\n\nthe cat", "a dog\n\nthe dog"),
        (replace_text("cat", ""), "cat\ndog", "dog"),
        (replace_text("cat", ""), "cat", ""),
        (replace_text(".", "!"), "a.b", "a!b"),
        (replace_text("^a", "b", regex=True), "a a\na", "b a\nb"),
        (add_prefix("photo of "), "a\nb", "photo of a\nphoto of b"),
        (add_prefix("photo"), "", "photo"),
        (add_suffix(", 4k"), "a\n\nb", "a, 4k\n\nb, 4k"),
        (append_tag(" Smile "), "a, b,\nsmile, c", "a, b, Smile\nsmile, c"),
        (append_tag("smile"), "", "smile"),
        (remove_tag("solo"), "1girl,  Solo, red  hair", "1girl, red  hair"),
        (remove_tag("solo"), "solo, a", "a"),
        (remove_tag("solo"), "solo standing, a", "solo standing, a"),
        (remove_tag("solo"), "solo", ""),
        (set_text("x\r\ny\n"), "anything", "x\ny"),
        (in_turn([replace_text("a", "b"), append_tag("c")]), "a", "b, c"),
    ],
)
def test_an_edit_changes_each_line(edit, before, after):
    assert edit.change([before]) == [after]


def test_tags_are_the_same_in_any_unicode_form():
    assert remove_tag("caf\u00e9").change(["cafe\u0301, a"]) == ["a"]


@pytest.mark.parametrize(
    "make",
    [lambda: replace_text("", "x"), lambda: add_prefix(""), lambda: append_tag(" "), lambda: remove_tag("")],
)
def test_empty_edits_are_refused(make):
    with pytest.raises(CacheError, match="is empty"):
        make()


def test_new_lines_would_make_variants_and_are_refused():
    with pytest.raises(CacheError, match="several lines"):
        add_prefix("a\nb")


def test_a_replacement_without_measure_is_refused():
    with pytest.raises(CacheError, match="more than"):
        replace_text("a", "b" * 1000).change(["a" * 100_000])


def test_a_preview_lists_what_changes_and_what_cannot(cats, view):
    (cats / "sub" / "c.json").write_text('{"caption": "cat"}')
    found = preview_edit(
        view(), ["a.png", "b.png", "sub/c.png", "gone.png", "a.png"], replace_text("sitting", "standing")
    )
    stamp = view().find("a.png").caption.stamp
    changes = [CaptionChange("a.png", "a cat, sitting", "a cat, standing", stamp)]
    assert found == EditPreview(changes, found.refused) and set(found.refused) == {"sub/c.png", "gone.png"}
    assert (cats / "a.txt").read_text() == "a cat, sitting"


def test_an_unreadable_caption_is_replaced_as_a_whole_or_not_at_all(cats, view):
    (cats / "a.txt").write_bytes(b"caf\xe9")
    assert "not UTF-8" in preview_edit(view(), ["a.png"], append_tag("x")).refused["a.png"]
    assert [change.after for change in preview_edit(view(), ["a.png"], set_text("")).changes] == [""]


def test_captions_are_set_by_name_and_existing_ones_kept(cats, view):
    (cats / "b.txt").write_text("")
    texts = {"a.png": "new", "b.png": "new", "sub/c.png": "new", "gone.png": "new"}
    found = preview_captions(view(), texts)
    assert [change.name for change in found.changes] == ["sub/c.png"]
    assert found.kept == ["a.png", "b.png"] and list(found.refused) == ["gone.png"]
    found = preview_captions(view(), texts, overwrite=True)
    assert [change.name for change in found.changes] == ["a.png", "b.png", "sub/c.png"]
