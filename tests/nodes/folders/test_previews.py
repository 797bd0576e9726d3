"""Previews: what was shown is what is written, once; they are few, and are forgotten."""

from pathlib import Path
from typing import Any

import pytest

from streamcache.nodes.folders import previews
from streamcache.nodes.folders.open_folders import FolderNow, look_at
from streamcache.nodes.folders.previews import Previews, make_edit
from streamcache.nodes.outside.untrusted import Refused

from .pictures import write_folder


@pytest.fixture
def now(tmp_path: Path) -> FolderNow:
    return look_at(write_folder(tmp_path / "cats", {f"{n:03}.png": f"cat {n}" for n in range(3)}))


def names(now: FolderNow) -> list[str]:
    return [image.name for image in now.view.images]


def make(kept: Previews, now: FolderNow, **edit: Any) -> dict[str, Any]:
    return kept.make(now, names(now), make_edit([edit or {"kind": "prefix", "text": "a "}]))


def test_what_was_shown_is_taken_once(now: FolderNow):
    kept = Previews()
    shown = make(kept, now)
    assert shown["total"] == 3 and shown["refused_count"] == 0
    changes, title = kept.take(now.root, shown["token"])
    assert [change.after for change in changes] == ["a cat 0", "a cat 1", "a cat 2"] and "prefix" in title
    with pytest.raises(Refused, match="preview again"):
        kept.take(now.root, shown["token"])


@pytest.mark.parametrize(
    ("edit", "after"),
    [
        ({"kind": "replace", "find": "cat", "by": "dog", "regex": False}, "dog 0"),
        ({"kind": "replace", "find": r"(\w+) (\d)", "by": r"\2 \1", "regex": True}, "0 cat"),
        ({"kind": "suffix", "text": "!"}, "cat 0!"),
        ({"kind": "append_tag", "text": "new"}, "cat 0, new"),
    ],
)
def test_every_kind_of_edit(now: FolderNow, edit: dict[str, Any], after: str):
    assert make(Previews(), now, **edit)["changes"][0]["after"] == after


def test_a_preview_belongs_to_its_folder(now: FolderNow, tmp_path: Path):
    kept = Previews()
    token = make(kept, now)["token"]
    with pytest.raises(Refused):
        kept.take(tmp_path / "dogs", token)
    assert kept.take(now.root, token)


def test_few_previews_are_kept(now: FolderNow):
    kept = Previews()
    tokens = [make(kept, now)["token"] for _ in range(previews.MAX_PREVIEWS + 1)]
    with pytest.raises(Refused):
        kept.take(now.root, tokens[0])
    assert kept.take(now.root, tokens[1]) and kept.take(now.root, tokens[-1])


def test_long_previews_push_out_others_but_not_themselves(now: FolderNow, monkeypatch):
    monkeypatch.setattr(previews, "MAX_CHARACTERS", 10)
    kept = Previews()
    first, second = (make(kept, now)["token"] for _ in range(2))
    with pytest.raises(Refused):
        kept.take(now.root, first)
    assert kept.take(now.root, second)


def test_old_previews_are_forgotten(now: FolderNow, monkeypatch):
    kept = Previews()
    token = make(kept, now)["token"]
    monkeypatch.setattr(previews, "SECONDS", -1.0)
    with pytest.raises(Refused):
        kept.take(now.root, token)


def test_a_long_preview_is_cut_where_it_is_shown(tmp_path: Path):
    texts = {f"{n:03}.png": f"{n} " + "x" * 30_000 for n in range(100)}
    now = look_at(write_folder(tmp_path / "long", texts))
    kept = Previews()
    shown = make(kept, now)
    assert shown["total"] == 100 and 0 < len(shown["changes"]) < 100
    assert max(len(change["after"]) for change in shown["changes"]) == 20_000
    changes, _ = kept.take(now.root, shown["token"])
    assert len(changes) == 100 and changes[0].after == "a " + texts["000.png"]
