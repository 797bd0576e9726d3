"""Captions of many images in one file, as captioning tools write them: JSON lines, or CSV with a header."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path

from ...errors import CacheError, Unusable
from ..sources import METADATA, decode_text, few_names, normal_form, read_bytes, read_metadata
from .source_folder import FolderView

_NAMES = ("file_name", "file", "image", "name", "path")
_TEXTS = ("text", "caption", "prompt", "tags")


def read_caption_list(path: str | Path) -> dict[str, str]:
    """File name → caption of a .jsonl file (as metadata.jsonl) or a .csv file with the columns file_name and text."""
    path = Path(path)
    if path.suffix.lower() not in (".jsonl", ".csv"):
        raise CacheError(f"{path}: expected a .jsonl or .csv file")
    try:
        text = decode_text(METADATA, read_bytes(str(path))[1])
    except Unusable as error:
        raise CacheError(f"{path}: {error}") from None
    if path.suffix.lower() == ".csv":
        return _read_csv(path, text)
    captions, problems, _ = read_metadata(text)
    if problems:
        raise CacheError(f"{path}: {problems[0]}; nothing was changed")
    return {name: "\n".join(lines) for name, lines in captions.items()}


def match_names(view: FolderView, captions: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Captions by the names of images in the folder, and the names that fit no image, or several.

    A name fits as a path below the folder, or as the file name of one image alone.
    """
    whole = {normal_form(image.name): image.name for image in view.images}
    last: dict[str, list[str]] = {}
    for image in view.images:
        last.setdefault(normal_form(image.name.rpartition("/")[2]), []).append(image.name)
    found, unknown = {}, []
    rows = [(given, normal_form(given.replace("\\", "/").removeprefix("./")), text) for given, text in captions.items()]
    for given, name, text in sorted(rows, key=lambda row: row[1] not in whole):  # a path beats a file name
        fitting = [whole[name]] if name in whole else last.get(name.rpartition("/")[2], [])
        if len(fitting) == 1 and fitting[0] not in found:
            found[fitting[0]] = text
        else:
            unknown.append(given)
    return found, unknown


def _read_csv(path: Path, text: str) -> dict[str, str]:
    try:
        rows = list(csv.DictReader(io.StringIO(text, newline="")))
    except csv.Error as error:
        raise CacheError(f"{path}: invalid CSV: {error}; nothing was changed") from None
    header = {str(column).strip().lower(): column for column in (rows[0] if rows else {})}
    name, caption = (next((header[n] for n in names if n in header), None) for names in (_NAMES, _TEXTS))
    if name is None or caption is None:
        found = few_names(list(header)) or "nothing"
        raise CacheError(f"{path}: found the columns {found}, expected a header with file_name and text")
    for row in rows:
        if row[name] and row[caption] is None:
            raise CacheError(f"{path}: the row of {row[name]} has no {caption}; nothing was changed")
    return {row[name]: row[caption] for row in rows if row[name]}
