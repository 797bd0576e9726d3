"""Simulates other platforms: no `preadv`, no links, and open files that cannot be replaced or removed."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from streamcache.dataset_cache.format import files

HERE, WINDOWS = "as here", "as on Windows"


def play(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the rest of a test with what this system has, or with what Windows has."""
    if name == WINDOWS and os.name != "nt":
        play_windows(monkeypatch)


def play_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "HAS_PREADV", False)
    monkeypatch.setattr(files, "HAS_LINKS", False)
    monkeypatch.setattr(files, "LOCKS_OPEN_FILES", True)
    monkeypatch.setattr(files, "_PAUSE_SECONDS", 0.001)
    for name in ("unlink", "remove", "replace", "rename"):
        monkeypatch.setattr(os, name, _locking(getattr(os, name)))


def _locking(call: Callable[..., Any]) -> Callable[..., Any]:
    """The same call, refused as Windows refuses it if one of its files is open in this process."""

    def locked(*paths: Any, **options: Any) -> Any:
        folder = options.get("dir_fd")
        for path in paths:
            place = Path(os.readlink(f"/proc/self/fd/{folder}"), path) if folder is not None else Path(path)
            if _is_open(place):
                raise PermissionError(13, "The process cannot access the file because it is being used", str(place))
        return call(*paths, **options)

    return locked


def _is_open(path: Path) -> bool:
    name = os.path.realpath(path.parent) + os.sep + path.name
    if any(file.path == name for file in psutil.Process().open_files()):
        return True
    maps = Path("/proc/self/maps")
    return maps.exists() and any(line.endswith(name) for line in maps.read_text().splitlines())
