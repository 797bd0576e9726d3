"""The texts of the pages: every one that is asked for is there, in both languages, with the same values in it."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import streamcache

ROOT = Path(streamcache.__file__).parent
FORMS = {"one", "other"}
# The beginnings of keys that are put together in the code.
MADE = (
    "actions",
    "caches.order_",
    "caches.tab_",
    "clean",
    "duplicate",
    "encoders",
    "export",
    "jobs",
    "parts",
    "sources",
    "training",
    "nodes",
)


def texts(language: str) -> dict[str, list[str]]:
    """Key → its forms."""
    found = json.loads((ROOT / "locales" / language / "main.json").read_text(encoding="utf-8"))["streamcache"]
    return dict(walk(found, ""))


def walk(part: dict, above: str) -> Iterator[tuple[str, list[str]]]:
    for name, value in part.items():
        if isinstance(value, str):
            yield above + name, [value]
        elif set(value) & FORMS:
            yield above + name, list(value.values())
        else:
            yield from walk(value, f"{above}{name}.")


def asked() -> set[str]:
    code = "\n".join(file.read_text(encoding="utf-8") for file in sorted((ROOT / "web").rglob("*.js")))
    return set(re.findall(r"[\"'`]((?:[a-z]+\.)+[a-z_]+)[\"'`]", code))


def values(forms: list[str]) -> set[str]:
    return {name for form in forms for name in re.findall(r"%(\w+)%", form)}


def test_both_languages_have_the_same_texts_with_the_same_values():
    english, chinese = texts("en"), texts("zh")
    assert sorted(english) == sorted(chinese)
    # A plural form may leave its number out: "Remove it for good?"
    different = [key for key in english if values(english[key]) ^ values(chinese[key]) > {"count"}]
    assert different == []


def test_every_text_that_the_code_asks_for_exists():
    english = texts("en")
    tops = {key.split(".")[0] for key in english}
    missing = [key for key in asked() if key.split(".")[0] in tops and key not in english]
    assert missing == []


def test_every_text_is_asked_for():
    named = asked()
    idle = [key for key in texts("en") if key not in named and not any(key.startswith(part) for part in MADE)]
    assert idle == []
