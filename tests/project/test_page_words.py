"""The texts of the pages: each text that the code uses exists, in both languages, with the same placeholders."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import streamcache

ROOT = Path(streamcache.__file__).parent
FORMS = {"one", "other"}
# Prefixes of keys that the code builds: the rest is a word in the code or in responses of the server.
BUILT = (
    "actions.",
    "caches.order_",
    "caches.tab_",
    "clean.",
    "curate.",
    "curate.chart_",
    "curate.edit_",
    "curate.order_",
    "curate.show_",
    "duplicate.",
    "encoders.",
    "export.",
    "groups.",
    "folders.",
    "folders.count_",
    "folders.reason_",
    "jobs.",
    "parts.",
    "remotes.",
    "remotes.keep_",
    "remotes.local_",
    "remotes.relation_",
    "sources.",
    "training.",
    "training.status.",
)
TABS = {"caches.label", "training.label"}  # web/lib/tab.js adds the ending
ENDINGS = re.compile(r"_(running|done)$")  # of the texts of jobs


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


def code(folder: str, ending: str) -> str:
    return "\n".join(file.read_text(encoding="utf-8") for file in sorted((ROOT / folder).rglob(f"*.{ending}")))


def used() -> set[str]:
    return TABS | set(re.findall(r"[\"'`]((?:[a-z]+\.)+[a-z_]+)[\"'`]", code("web", "js")))


def known_words() -> set[str]:
    """Words that a key may end with: strings and names in the pages' code, strings in the server's."""
    pages, server = code("web", "js"), code("nodes", "py") + code("dataset_cache", "py")
    found = re.findall(r"[\"'`]([a-z_]+)[\"'`]|\b([a-z_]+):", pages) + re.findall(r"\"([a-z_]+)(\")", server)
    return {first or second for first, second in found}


def is_built(key: str, words: set[str]) -> bool:
    rests = [ENDINGS.sub("", key.removeprefix(part)) for part in BUILT if key.startswith(part)]
    return any(rest in words for rest in rests)


def values(forms: list[str]) -> set[str]:
    return {name for form in forms for name in re.findall(r"%(\w+)%", form)}


def test_both_languages_have_the_same_texts_with_the_same_values():
    english, chinese = texts("en"), texts("zh")
    assert sorted(english) == sorted(chinese)
    # A plural form may omit its number: "Delete it permanently?"
    different = [key for key in english if (values(english[key]) ^ values(chinese[key])) - {"count"}]
    assert different == []


def test_every_text_that_the_code_uses_exists():
    english = texts("en")
    tops = {key.split(".")[0] for key in english}
    missing = [key for key in used() if key.split(".")[0] in tops and key not in english]
    assert missing == []


def test_every_text_is_used():
    named, words = used(), known_words()
    assert [key for key in texts("en") if key not in named and not is_built(key, words)] == []


def test_an_unused_text_would_be_found():
    words = known_words()
    assert is_built("training.status.done", words) and is_built("jobs.verify_running", words)
    for unused in ("training.status.asleep_now", "training.never_used", "jobs.paint_done", "about.done"):
        assert not is_built(unused, words)
