"""One caption file: its text as people edit it, and its bytes in the encoding and with the line ends it has."""

from __future__ import annotations

import codecs
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from ...errors import CacheError, Unusable
from ..sources import content_hash, decode_text, read_bytes

_BYTE_ORDER_MARKS = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be", codecs.BOM_UTF8: "utf-8"}


@dataclass(frozen=True, slots=True)
class CaptionText:
    """The caption of an image: lines are variants. `stamp` is that of the file, "" if it does not exist yet."""

    file: str  # below the folder; an edit is written there
    text: str
    stamp: str = ""
    locked: str = ""  # why it cannot be edited
    problem: str = ""  # why its text is unknown; it can only be replaced as a whole


def stamp_of_bytes(data: bytes | None) -> str:
    """Changes with the content of a file; "" for a missing file."""
    return "" if data is None else content_hash(data).hex()


def read_file(path: Path) -> bytes | None:
    """The bytes of a file, None if it does not exist. Links, and what is not a file, are refused."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Unusable(f"{path.name} cannot be read: {error.strerror}") from error
    if stat.S_ISLNK(mode):
        raise Unusable(f"{path.name} is a link; edit the file that it leads to")
    if not stat.S_ISREG(mode):
        raise Unusable(f"{path.name} is not a file")
    return read_bytes(str(path))[1]


def plain_text(text: str) -> str:
    """A file's text as it is shown: lines end with \\n, the last one without."""
    return text.replace("\r\n", "\n").replace("\r", "\n").removesuffix("\n")


def text_of(name: str, data: bytes | None) -> str:
    """The text of a caption file, or a description of why there is none."""
    if data is None:
        return ""
    try:
        return plain_text(decode_text(name, data))
    except Unusable as error:
        return f"({error})"


def bytes_of(name: str, text: str, before: bytes | None) -> bytes:
    """A text as the bytes of a caption file that had the bytes `before`. Refused if it could not be read again."""
    text = plain_text(text)
    before = before or b""
    mark = next((mark for mark in _BYTE_ORDER_MARKS if before.startswith(mark)), b"")
    encoding = _BYTE_ORDER_MARKS.get(mark, "utf-8")
    former = before[len(mark) :].decode(encoding, "replace")
    if text and former.endswith(("\n", "\r")):
        text += "\n"
    try:
        data = mark + text.replace("\n", "\r\n" if "\r\n" in former else "\n").encode(encoding)
    except UnicodeEncodeError:
        raise CacheError("the text has half a surrogate pair, which is not valid Unicode") from None
    decode_text(name, data)  # zero bytes, too long
    return data
