"""Records which files below a folder this process looks at: opening, listing, asking for size and date."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest import mock

_AUDITED = {"open", "os.listdir", "os.scandir"}
_recorders: list[Callable[[str, Any], None]] = []
_installed: list[Any] = []  # hooks cannot be removed


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if _recorders and event in _AUDITED:
        for record in tuple(_recorders):
            record(event, arguments[0])


@contextmanager
def file_calls(*folders: Path) -> Iterator[list[tuple[str, str]]]:
    """The calls in this block, each with its path. Leases are touched by the clock and do not count."""
    if _audit not in _installed:
        sys.addaudithook(_audit)
        _installed.append(_audit)
    found: list[tuple[str, str]] = []

    def record(call: str, place: Any) -> None:
        path = _path_of(place)
        if any(Path(path).is_relative_to(folder) for folder in folders) and ".leases" not in Path(path).parts:
            found.append((call, path))

    def recorded(name: str) -> Any:
        real = getattr(os, name)

        def call(place: Any, *more: Any, **named: Any) -> Any:
            record(name, place)
            return real(place, *more, **named)

        return mock.patch.object(os, name, call)

    _recorders.append(record)
    try:
        with recorded("stat"), recorded("lstat"), recorded("fstat"):
            yield found
    finally:
        _recorders.remove(record)


def _path_of(place: Any) -> str:
    if isinstance(place, int):
        with suppress(OSError):
            return os.readlink(f"/proc/self/fd/{place}")
        return ""
    return os.fsdecode(place) if isinstance(place, (str, bytes, os.PathLike)) else ""
