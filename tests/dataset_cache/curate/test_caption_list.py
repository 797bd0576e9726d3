"""Captions of many images in one file find their images."""

import pytest

from streamcache.dataset_cache.curate import match_names, read_caption_list
from streamcache.errors import CacheError


def test_json_lines_and_csv_files_are_read(tmp_path):
    (tmp_path / "a.jsonl").write_text(
        '{"file_name": "a.png", "text": "one\\ntwo"}\n\n{"file_name": "b.png", "tags": ["x", "y"]}'
    )
    assert read_caption_list(tmp_path / "a.jsonl") == {"a.png": "one\ntwo", "b.png": "x, y"}
    (tmp_path / "a.csv").write_bytes('\ufeffImage,Caption\r\na.png,"one, ""two"""\r\nb.png,\r\n'.encode())
    assert read_caption_list(tmp_path / "a.csv") == {"a.png": 'one, "two"', "b.png": ""}


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("a.txt", "", "expected a .jsonl or .csv file"),
        ("a.jsonl", "{", "line 1 is invalid JSON"),
        ("a.jsonl", '{"file_name": "a.png"}', "line 1 lacks"),
        ("a.csv", "one,two\n1,2", "found the columns one, two, expected"),
        ("a.csv", "", "expected a header"),
        ("a.csv", "file_name,text\na.png", "the row of a.png has no text"),
    ],
)
def test_damaged_lists_are_refused(tmp_path, name, text, reason):
    (tmp_path / name).write_text(text)
    with pytest.raises(CacheError, match=reason):
        read_caption_list(tmp_path / name)


def test_a_missing_list_is_refused(tmp_path):
    with pytest.raises(CacheError, match="cannot be read"):
        read_caption_list(tmp_path / "a.csv")


def test_names_fit_as_paths_or_as_the_file_name_of_one_image(view, picture):
    picture("cats/sub/a.png")
    found, unknown = match_names(
        view(), {"./a.png": "1", "sub\\a.png": "2", "c.png": "3", "x/b.png": "4", "d.png": "5"}
    )
    assert found == {"a.png": "1", "sub/a.png": "2", "sub/c.png": "3", "b.png": "4"} and unknown == ["d.png"]
    assert match_names(view(), {"other/a.png": "1"}) == ({}, ["other/a.png"])
    assert match_names(view(), {"gone/c.png": "another", "sub/c.png": "own"})[0] == {"sub/c.png": "own"}
