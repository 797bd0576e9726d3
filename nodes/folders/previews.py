"""Previews of edits: a page shows what an edit would change, and then exactly that is written, or nothing."""

from __future__ import annotations

import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...dataset_cache import CacheBusy, curate
from ..outside import Refused
from .open_folders import FolderNow

MAX_EDITS = 20  # in one request
MAX_SHOWN = 200  # changes and refusals in a response
MAX_PREVIEWS = 8
MAX_CHARACTERS = 64 << 20  # of all previews; the last one is always kept
SECONDS = 3600.0  # until a preview is forgotten
_MAX_SHOWN_TEXT, _MAX_SHOWN_TEXTS = 20_000, 2_000_000  # characters: of one caption, of all
_AT_ONCE = 2
_PATIENCE_SECONDS = 15.0
_EDITS: Mapping[str, Callable[[str], curate.CaptionEdit]] = {
    "prefix": curate.add_prefix,
    "suffix": curate.add_suffix,
    "append_tag": curate.append_tag,
    "remove_tag": curate.remove_tag,
}
KINDS = ("replace", *_EDITS)


@dataclass(frozen=True)
class _Kept:
    root: Path
    title: str
    changes: Sequence[curate.CaptionChange]
    made: float = field(default_factory=time.monotonic)

    @property
    def characters(self) -> int:
        return sum(len(change.before) + len(change.after) for change in self.changes)


class Previews:
    """Previews by token. They are in memory: after a restart of the server a page previews again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._slots = threading.Semaphore(_AT_ONCE)

    def make(self, now: FolderNow, names: Sequence[str], edit: curate.CaptionEdit) -> dict[str, Any]:
        """What an edit would change, with a token for `take`."""
        linked = now.linked(names)
        if not self._slots.acquire(timeout=_PATIENCE_SECONDS):  # a regular expression may take long
            raise CacheBusy("other previews are being made; try again")
        try:
            found = curate.preview_edit(now.view, (name for name in names if name not in linked), edit)
        finally:
            self._slots.release()
        found.refused.update(linked)
        token = secrets.token_hex(8)
        with self._lock:
            self._kept[token] = _Kept(now.root, edit.title, found.changes)
            self._drop_oldest()
        return {"token": token, **_shown(found)}

    def take(self, root: Path, token: str) -> tuple[list[curate.CaptionChange], str]:
        """The changes of a preview and their title. Each preview can be taken once."""
        with self._lock:
            self._drop_oldest()
            kept = self._kept.get(token)
            if kept is None or kept.root != root:
                raise Refused("this preview is gone, or was applied already; preview again", 409)
            del self._kept[token]
        return list(kept.changes), kept.title

    def _drop_oldest(self) -> None:
        for token, kept in list(self._kept.items()):
            late = time.monotonic() - kept.made > SECONDS
            crowded = len(self._kept) > MAX_PREVIEWS or sum(k.characters for k in self._kept.values()) > MAX_CHARACTERS
            if late or (crowded and token != next(reversed(self._kept))):
                del self._kept[token]


PREVIEWS = Previews()


def make_edit(edits: Sequence[Mapping[str, Any]]) -> curate.CaptionEdit:
    """The edits of a request, in turn, as one."""
    return curate.in_turn([_edit(each) for each in edits])


def _edit(values: Mapping[str, Any]) -> curate.CaptionEdit:
    if values["kind"] == "replace":
        return curate.replace_text(values["find"], values["by"], values["regex"])
    return _EDITS[values["kind"]](values["text"])


def _shown(found: curate.EditPreview) -> dict[str, Any]:
    changes, left = [], _MAX_SHOWN_TEXTS
    for change in found.changes[:MAX_SHOWN]:
        before, after = change.before[:_MAX_SHOWN_TEXT], change.after[:_MAX_SHOWN_TEXT]
        left -= len(before) + len(after)
        if left < 0:
            break
        changes.append({"name": change.name, "before": before, "after": after})
    refused = dict(list(found.refused.items())[:MAX_SHOWN])
    return {
        "total": len(found.changes),
        "changes": changes,
        "refused": refused,
        "refused_count": len(found.refused),
    }
