"""Caption files keep their encoding and line ends, and what could not be read again is refused."""

import codecs

import pytest

from streamcache.dataset_cache.curate.caption_file import bytes_of, read_file, text_of
from streamcache.errors import CacheError, Unusable


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, "ä\nb".encode()),
        (b"x", "ä\nb".encode()),
        (b"x\n", "ä\nb\n".encode()),
        (b"x\r\ny\r\n", "ä\r\nb\r\n".encode()),
        (b"x\ry", "ä\nb".encode()),
        (codecs.BOM_UTF8 + b"x", codecs.BOM_UTF8 + "ä\nb".encode()),
        ("x\r\n".encode("utf-16"), "ä\r\nb\r\n".encode("utf-16")),
        (codecs.BOM_UTF16_BE + "x".encode("utf-16-be"), codecs.BOM_UTF16_BE + "ä\nb".encode("utf-16-be")),
        (b"caf\xe9", "ä\nb".encode()),
    ],
    ids=["new", "plain", "newline", "crlf", "cr", "utf-8 bom", "utf-16", "utf-16 be", "damaged"],
)
def test_a_file_keeps_its_encoding_and_line_ends(before, after):
    assert bytes_of("a.txt", "ä\r\nb\n", before) == after
    assert text_of("a.txt", after) == "ä\nb"


def test_right_to_left_text_and_long_captions_are_written_as_they_are():
    text = "שלום \u202eabc\u202c " + "x" * 100_000
    assert bytes_of("a.txt", text, None).decode() == text


@pytest.mark.parametrize(
    ("text", "reason"), [("a\ud800", "surrogate"), ("a\0b", "zero byte"), ("x" * (16 << 20) + "x", "too many")]
)
def test_text_that_could_not_be_read_again_is_refused(text, reason):
    with pytest.raises(CacheError, match=reason):
        bytes_of("a.txt", text, None)


def test_links_and_pipes_are_not_caption_files(tmp_path, make_pipe):
    (tmp_path / "a.txt").write_text("a")
    assert read_file(tmp_path / "a.txt") == b"a" and read_file(tmp_path / "b.txt") is None
    (tmp_path / "b.txt").symlink_to("a.txt")
    with pytest.raises(Unusable, match=r"b\.txt is a link; edit the file that it leads to"):
        read_file(tmp_path / "b.txt")
    with pytest.raises(Unusable, match="is not a file"):
        read_file(make_pipe(tmp_path / "c.txt"))
