"""Text files become caption variants."""

import pytest

from streamcache.dataset_cache.sources.captions import (
    Captions,
    TriggerCount,
    caption_variants,
    decode_text,
    folder_repeats,
    folder_words,
    read_lines,
    read_metadata,
)
from streamcache.errors import CacheError, Unusable


def test_byte_order_marks_are_not_part_of_a_caption():
    assert decode_text("a.txt", b"\xef\xbb\xbfein K\xc3\xa4tzchen") == "ein Kätzchen"
    assert decode_text("a.txt", "猫".encode("utf-16")) == "猫"


def test_broken_utf8_is_refused_with_its_place():
    with pytest.raises(Unusable, match="not UTF-8 at byte 3; save it as UTF-8"):
        decode_text("a.txt", b"abc\xff")
    with pytest.raises(Unusable, match="zero byte"):
        decode_text("a.txt", b"a\0b")


def test_a_caption_of_100_000_characters_is_kept():
    assert len(read_lines("a.txt", decode_text("a.txt", b"x" * 100_000))[0]) == 100_000


def test_a_file_that_is_far_too_big_is_not_a_caption():
    with pytest.raises(Unusable, match="too many for a caption"):
        decode_text("a.txt", b"x" * (17 << 20))


def test_lines_are_trimmed_and_blank_ones_skipped():
    assert read_lines("a.txt", " one \r\n\n two\rthree\u2028still three\n") == ["one", "two", "three\u2028still three"]
    assert read_lines("a.txt", "\n") == [""]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ('{"caption": "a cat"}', ["a cat"]),
        ('{"captions": ["a cat", "one cat"]}', ["a cat", "one cat"]),
        ('{"tags": ["cat", "cute"]}', ["cat, cute"]),
        ('["a", "b"]', ["a", "b"]),
        ('"just text"', ["just text"]),
        ('{"text": ""}', [""]),
    ],
)
def test_json_sidecars(text, lines):
    assert read_lines("a.json", text) == lines


@pytest.mark.parametrize("text", ["{", '{"width": 3}', "3", '{"caption": 4}', '{"caption": "\\ud800"}', "[" * 100_000])
def test_json_without_a_caption_is_refused(text):
    with pytest.raises(Unusable):
        read_lines("a.json", text)


def test_metadata_gives_captions_by_file_name_and_names_bad_lines():
    rows = ['{"file_name": "a.png", "text": "one"}', "", "nonsense", '{"text": "lost"}']
    captions, problems, damaged = read_metadata("\n".join([*rows, '{"file_name": "sub\\\\b.png", "caption": "two"}']))
    assert captions == {"a.png": ["one"], "sub/b.png": ["two"]}
    assert [problem.split(" is")[0].split(" lacks")[0] for problem in problems] == ["line 3", "line 4"]
    assert damaged == problems[0]
    assert not read_metadata('{"file_name": "a.png", "label": 3}')[2], "a line without a caption is not damage"


def test_kohya_folders():
    assert (folder_repeats("10_black_cat"), folder_words("10_black_cat")) == (10, "black cat")
    assert (folder_repeats("cats"), folder_words("cats")) == (1, "cats")
    assert folder_repeats("0_off") == 1


def test_lines_are_variants_or_one_caption():
    lines = ["one", "two", "one"]
    assert caption_variants(lines, Captions()) == ("one", "two")
    assert caption_variants(lines, Captions(lines="join")) == ("one two one",)
    assert caption_variants(lines, Captions(lines="first")) == ("one",)


def test_a_trigger_inside_another_word_does_not_count():
    assert caption_variants(["a catalog"], Captions(trigger="cat")) == ("cat, a catalog",)


def test_the_trigger_word_appears_once():
    settings = Captions(trigger="sks")
    assert caption_variants(["a cat", "a [trigger] cat", "sks cat", ""], settings) == (
        "sks, a cat",
        "a sks cat",
        "sks cat",
        "sks",
    )
    assert caption_variants(["a"], Captions(prefix="photo of ", suffix=", 4k")) == ("photo of a, 4k",)


def test_tag_shuffles_keep_the_first_tags_and_are_the_same_each_time():
    settings = Captions(shuffles=4, keep_tags=2)
    line = "girl, solo, red, green, blue, black, white"
    made = caption_variants([line], settings)
    assert made == caption_variants([line], settings) and len(made) > 1
    for caption in made:
        assert caption.startswith("girl, solo, ")
        assert sorted(caption.split(", ")) == sorted(line.split(", "))
    assert made != caption_variants([line], Captions(shuffles=4, keep_tags=2, seed=1))


def test_editing_one_line_does_not_change_the_shuffles_of_the_others():
    settings = Captions(shuffles=2)
    before = caption_variants(["a, b, c, d", "e, f, g, h"], settings)
    after = caption_variants(["a, b, c, d", "e, f, g, i"], settings)
    assert before[:2] == after[:2] and before != after


@pytest.mark.parametrize("wrong", [{"lines": "all"}, {"fallback": "name"}, {"shuffles": -1}])
def test_invalid_settings_are_named(wrong):
    with pytest.raises(CacheError, match="expected"):
        Captions(**wrong)


def trigger_notes(trigger: str, *captions: str) -> list[str]:
    settings, count = Captions(trigger=trigger), TriggerCount()
    for caption in captions:
        count.add(caption.split("|"), settings)
    return list(count.notes(settings))


def test_a_placeholder_without_a_trigger_word_is_counted():
    (note,) = trigger_notes("", "a [trigger]", "one|two [trigger]", "a cat")
    assert note.startswith("[trigger] is in 2 of 3 captions, but no trigger word is set")
    assert trigger_notes("", "a cat") == trigger_notes("sks", "a [trigger]", "a cat") == []


def test_a_trigger_word_that_occurs_in_no_caption_is_named():
    (note,) = trigger_notes("sks", "a cat", "a SKS dog", "sksy")
    assert note.startswith("the trigger word sks is in none of 3 captions")
    assert trigger_notes("sks", "a cat", "a sks dog") == trigger_notes("sks") == []
