"""Things in a folder that are no regular files, files that cannot be read now, and calls that must not hang."""

import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

KINDS = ("pipe", "socket", "device", "folder")
PATIENCE = 60.0


def put_odd(kind: str, path: Path) -> None:
    """Something of this kind, instead of the file that has the name."""
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "folder":
        (path / "inside").mkdir(parents=True)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        here, sock = os.getcwd(), socket.socket(socket.AF_UNIX)
        try:
            os.chdir(path.parent)  # addresses of sockets are short
            sock.bind(path.name)
        finally:
            os.chdir(here)
            sock.close()


def returns(call: Callable[[], Any]) -> Any:
    """What a call returns or raises, which must not wait for ever."""
    result: list[Any] = []

    def run() -> None:
        try:
            result.append((call(), None))
        except BaseException as error:
            result.append((None, error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert result, "the call hangs"
    value, error = result[0]
    if error is not None:
        raise error
    return value


def make_unreadable(monkeypatch: pytest.MonkeyPatch, path: Path, number: int) -> None:
    """Opening or listing this file or folder, or what is in it, fails with this error number."""

    def failing(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(place: Any = ".", *more: Any, **named: Any) -> Any:
            if isinstance(place, (str, os.PathLike)) and Path(place).is_relative_to(path):
                raise OSError(number, os.strerror(number), str(place))
            return real(place, *more, **named)

        return call

    for name in ("open", "listdir", "scandir"):
        monkeypatch.setattr(os, name, failing(getattr(os, name)))
    monkeypatch.setattr("io.open", failing(open))
    monkeypatch.setattr("builtins.open", failing(open))
