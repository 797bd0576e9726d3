"""Look-alikes in a folder: found by a job, and known as long as its image files stay the same."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable

from ...dataset_cache import curate
from .open_folders import FolderNow

MAX_GROUPS = 1000  # shown
_MAX_FOLDERS = 8
_Groups = list[list[str]]

_found: OrderedDict[str, tuple[str, _Groups]] = OrderedDict()  # folder → its pictures, and the groups in them
_lock = threading.Lock()


def find_alike(now: FolderNow, progress: Callable[[int, int], None]) -> _Groups:
    """Groups of images that look alike, the largest first. `progress` may raise to stop."""
    count = len(now.view.images)
    hashes = curate.folder_hashes(now.view, progress=progress)
    groups = curate.look_alikes(hashes, check=lambda: progress(count, count))
    with _lock:
        _found[_key(now)] = now.pictures, groups
        _found.move_to_end(_key(now))
        while len(_found) > _MAX_FOLDERS:
            _found.popitem(last=False)
    return groups


def groups_of(now: FolderNow) -> _Groups | None:
    """The groups that were found; None if no job looked for them, or images changed since."""
    with _lock:
        pictures, groups = _found.get(_key(now), ("", []))
    return groups if pictures == now.pictures else None


def _key(now: FolderNow) -> str:
    return os.path.realpath(now.root)
