"""Choices about single images: `streamcache.json` beside them says which are excluded, and how often others repeat."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ...errors import CacheError, Unusable
from .names import normal_form
from .source_files import Facts

CHOICES = "streamcache.json"
MOST_REPEATS = 100_000
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Choice:
    """What a user chose for one image. Repeats multiply those of its folder and its set."""

    excluded: bool = False
    repeats: int = 1


USED = Choice()


class Choices:
    """The choices of one folder, by names of images in any Unicode form."""

    def __init__(self, text: str | None = None) -> None:
        self._written = _read(text)
        self._choices = {normal_form(name): _choice(name, value) for name, value in self._written.items()}

    def __getitem__(self, name: str) -> Choice:
        return self._choices.get(normal_form(name), USED) if self._choices else USED

    def orphans(self, names: Iterable[str]) -> list[str]:
        """Names of images that are not there."""
        present = {normal_form(name) for name in names} if self._choices else set()
        return sorted(name for name in self._written if normal_form(name) not in present)


def read_choices(directory: str, facts: Facts | None) -> Choices:
    """The choices of a folder, given the facts of its streamcache.json.

    A damaged one is refused: images that a user excluded must not come back silently.
    """
    try:
        if facts is not None and facts.error:
            raise Unusable(facts.error)
        return Choices(facts.text if facts is not None else None)
    except Unusable as error:
        path = os.path.join(directory, CHOICES)
        raise CacheError(f"{path}: {error}. Correct the file, or remove it to use all images") from None


def changed_choices(
    text: str | None, names: Iterable[str], excluded: bool | None, repeats: int | None
) -> dict[str, Choice]:
    """The choices of these images that would differ from those in a streamcache.json. None: as it is."""
    choices = Choices(text)
    changes = {}
    for name in names:
        now = choices[name]
        wanted = Choice(now.excluded if excluded is None else excluded, now.repeats if repeats is None else repeats)
        if wanted != now:
            changes[name] = wanted
    return changes


def change_choices(text: str | None, changes: Mapping[str, Choice]) -> str:
    """The text of a streamcache.json with these choices changed, "" if nothing is left. Unknown keys are kept."""
    Choices(text)  # refuses a damaged one
    whole = json.loads(text) if text and text.strip() else {}
    images: dict[str, dict[str, Any]] = whole.pop("images", {})
    written = {normal_form(name): name for name in images}
    for name, choice in changes.items():
        key = written.get(normal_form(name), name)
        value = {k: v for k, v in images.pop(key, {}).items() if k not in ("excluded", "repeats")}
        value |= {"excluded": True} if choice.excluded else {}
        value |= {"repeats": choice.repeats} if choice.repeats != 1 else {}
        if value:
            images[key] = value
    whole.pop("version", None)
    if not images and not whole:
        return ""
    lines = [f"  {_dump(key)}: {_dump(value)}" for key, value in {"version": _VERSION, **whole}.items()]
    rows = ",\n".join(f"    {_dump(name)}: {_dump(images[name])}" for name in sorted(images))
    lines.append(f'  "images": {{\n{rows}\n  }}' if rows else '  "images": {}')
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _read(text: str | None) -> dict[str, Any]:
    if not text or not text.strip():
        return {}
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Unusable(f"invalid JSON: {error}") from None
    images = whole.get("images", {}) if isinstance(whole, dict) else None
    if not isinstance(images, dict):
        raise Unusable('expected {"version": 1, "images": {"name.png": {"excluded": true}}}')
    if whole.get("version", _VERSION) != _VERSION:
        raise Unusable(f"has version {whole['version']!r}, expected {_VERSION}; update StreamCache")
    return images


def _choice(name: str, value: object) -> Choice:
    if not isinstance(value, dict):
        raise Unusable(f'{name}: expected a table such as {{"excluded": true}}')
    excluded, repeats = value.get("excluded", False), value.get("repeats", 1)
    if not isinstance(excluded, bool):
        raise Unusable(f"{name}: excluded = {_dump(excluded)}, expected true or false")
    if isinstance(repeats, bool) or not isinstance(repeats, int) or not 1 <= repeats <= MOST_REPEATS:
        raise Unusable(f"{name}: repeats = {_dump(repeats)}, expected 1 to {MOST_REPEATS:,}")
    return Choice(excluded, repeats)


def _dump(value: object) -> str:
    """As people read it, unless that is not valid Unicode."""
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value)
    return text
