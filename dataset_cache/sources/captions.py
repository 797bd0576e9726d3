"""Captions: the text files of images, and how their lines become the caption variants of a sample."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from ...errors import Unusable
from ...quantity import plural
from ...setting import check_settings, declare

SIDECARS = (".txt", ".caption", ".json")  # the first that exists wins
METADATA = "metadata.jsonl"
CAPTION_LINES = ("variants", "join", "first")
CAPTION_FALLBACKS = ("empty", "folder")
LONG = 10_000  # characters; a longer text is used, but is probably not a caption
_BYTES = {True: 1 << 30, False: 16 << 20}  # of a metadata.jsonl, of a sidecar
_TEXT_KEYS = ("text", "caption", "captions", "prompt", "tags")
_TRIGGER = "[trigger]"
_KOHYA = re.compile(r"(\d+)_(.+)")


@dataclass(frozen=True)
class Captions:
    """How the captions of one set are made from its text files."""

    lines: str = declare(
        "variants",
        "Treat several lines in a caption file as variants to choose from each epoch, join them into one caption, "
        "or use only the first",
        "captions",
        name="caption_lines",
        old_names=("lines",),
        choices=CAPTION_LINES,
    )
    fallback: str = declare(
        "empty",
        "Caption of images without a caption file: none, or the folder's name",
        "captions",
        name="caption_fallback",
        old_names=("fallback",),
        choices=CAPTION_FALLBACKS,
    )
    trigger: str = declare(
        "", "Trigger word. It replaces [trigger] in captions, or is put in front of them", "captions"
    )
    prefix: str = declare(
        "", "Text to put before every caption", "captions", name="caption_prefix", old_names=("prefix",)
    )
    suffix: str = declare(
        "", "Text to put after every caption", "captions", name="caption_suffix", old_names=("suffix",)
    )
    shuffles: int = declare(
        0,
        "Number of shuffled tag orders to encode per caption, as variants (0 = keep the order)",
        "captions",
        name="tag_shuffles",
        old_names=("shuffles",),
        low=0,
        high=1000,
        shown=(0, 64),
    )
    keep_tags: int = declare(0, "Keep the first N tags in place when shuffling", "captions", low=0, shown=(0, 100))
    seed: int = declare(0, "Seed of the tag shuffles", "captions", name="caption_seed", shown=(0, 2**31 - 1))

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass
class TriggerCount:
    """How many captions of a source have [trigger] or the trigger word, before they are changed."""

    captions: int = 0
    placeholders: int = 0
    words: int = 0

    def add(self, lines: list[str], settings: Captions) -> None:
        self.captions += 1
        self.placeholders += any(_TRIGGER in line for line in lines)
        self.words += any(_has_trigger(line, settings) for line in lines)

    def notes(self, settings: Captions) -> Iterator[str]:
        """What is probably a mistake."""
        if self.placeholders and not settings.trigger:
            yield (
                f"[trigger] is in {self.placeholders:,} of {plural(self.captions, 'caption')}, but no trigger word is "
                "set, so it is encoded as it is written; set trigger (on Image Folder Dataset; --trigger)"
            )
        elif self.captions and settings.trigger and not self.placeholders and not self.words:
            yield (
                f"the trigger word {settings.trigger} is in none of {plural(self.captions, 'caption')}, and neither is "
                "[trigger]; it is put in front of each"
            )


def is_text(name: str) -> bool:
    return name.lower().endswith(SIDECARS) or name == METADATA


def decode_text(name: str, data: bytes) -> str:
    """The text of a file: UTF-8 with or without a byte order mark, or UTF-16 with one."""
    if len(data) > _BYTES[name == METADATA]:
        raise Unusable(f"{len(data):,} bytes are too many for a caption")
    encoding = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        name = encoding.removesuffix("-sig").upper()
        raise Unusable(f"not {name} at byte {error.start}; save it as UTF-8") from None
    if "\0" in text:
        raise Unusable("contains a zero byte; save it as UTF-8 text")
    return text


def read_lines(name: str, text: str) -> list[str]:
    """The caption lines of a sidecar file. An empty file is a deliberately empty caption."""
    if name.lower().endswith(".json"):
        try:
            found = _texts(json.loads(text))
        except (ValueError, RecursionError) as error:
            raise Unusable(f"invalid JSON: {error}") from None
        if found is None:
            raise Unusable(f"contains none of {', '.join(_TEXT_KEYS)}")
        return found or [""]
    return _split(text) or [""]


def read_metadata(text: str) -> tuple[dict[str, list[str]], list[str], str]:
    """File name → caption lines of a metadata.jsonl, the problems of its other lines, and the first that is damaged.

    The caption of any image may have been in a damaged line.
    """
    captions: dict[str, list[str]] = {}
    problems, damaged = [], ""
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            found = _texts(row) if isinstance(row, dict) else None
        except (ValueError, RecursionError) as error:
            problems.append(f"line {number} is invalid JSON: {error}")
            damaged = damaged or problems[-1]
            continue
        if found is None or not isinstance(row.get("file_name"), str):
            problems.append(f"line {number} lacks file_name or one of {', '.join(_TEXT_KEYS)}")
            continue
        captions[row["file_name"].replace("\\", "/")] = found or [""]
    return captions, problems, damaged


def folder_words(folder: str) -> str:
    """A folder's name as a caption: "subject" for `10_subject`."""
    match = _KOHYA.fullmatch(folder)
    return (match[2] if match else folder).replace("_", " ").strip()


def folder_repeats(folder: str) -> int:
    """The repeats in a folder's name: 10 for `10_subject`, 1 by default."""
    match = _KOHYA.fullmatch(folder)
    return max(1, int(match[1][:6])) if match else 1


def caption_variants(lines: list[str], settings: Captions) -> tuple[str, ...]:
    """The final captions of a sample, in order, without duplicates."""
    if settings.lines == "join":
        lines = [" ".join(filter(None, lines))]
    elif settings.lines == "first":
        lines = lines[:1]
    orders = [order for line in lines for order in _orders(line, settings)]
    return tuple(dict.fromkeys(_decorate(order, settings) for order in orders))


def _split(text: str) -> list[str]:
    # Not splitlines: it also splits at characters that may occur inside a caption, such as U+2028.
    rows = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    lines = [row.strip() for row in rows if row.strip()]
    for line in lines:
        if not line.isascii() and any("\ud800" <= character <= "\udfff" for character in line):
            raise ValueError("half a surrogate pair, which text encoders cannot read")
    return lines


def _texts(value: Any) -> list[str] | None:
    if isinstance(value, str):
        return _split(value)
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return [line for item in value for line in _split(item)]
    if isinstance(value, Mapping):
        for key in _TEXT_KEYS:
            if key in value:
                tags = key == "tags" and isinstance(value[key], list)
                return _texts(", ".join(map(str, value[key])) if tags else value[key])
    return None


def _orders(line: str, settings: Captions) -> list[str]:
    if not settings.shuffles:
        return [line]
    tags = [tag.strip() for tag in line.split(",") if tag.strip()]
    kept, loose = tags[: settings.keep_tags], tags[settings.keep_tags :]
    orders = []
    for number in range(settings.shuffles):
        # Seeded by the line itself: editing one caption does not change the shuffles of the others.
        seed = blake2b(line.encode(), key=f"{settings.seed}/{number}".encode(), digest_size=16).digest()
        shuffled = list(loose)
        random.Random(seed).shuffle(shuffled)
        orders.append(", ".join(kept + shuffled))
    return orders


def _decorate(line: str, settings: Captions) -> str:
    if settings.trigger and _TRIGGER in line:
        line = line.replace(_TRIGGER, settings.trigger)
    elif settings.trigger and not _has_trigger(line, settings):
        line = f"{settings.trigger}, {line}" if line else settings.trigger
    return f"{settings.prefix}{line}{settings.suffix}"


def _has_trigger(line: str, settings: Captions) -> bool:
    return bool(settings.trigger) and bool(re.search(rf"(?<!\w){re.escape(settings.trigger)}(?!\w)", line))
