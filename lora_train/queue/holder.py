"""Who holds a lock: a file next to it names the process, so that a second one can be told."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from ...dataset_cache import MarkerHeld, replace_file, take_lock

_NAMING_SECONDS = 0.3  # a process that has just taken the lock may not have named itself


class Held(Exception):
    """Another process holds the lock. The text says which one: "(my_lora, process 123, since …)"."""

    def __init__(self, holder: Holder | None, marker: str = "") -> None:
        who = f" ({holder})" if holder else ""
        super().__init__(f"{who}; if it has ended, remove {marker}" if marker else who)


@dataclass(frozen=True)
class Holder:
    """A process that holds a lock, and what for."""

    what: str
    pid: int
    since: float

    def __str__(self) -> str:
        return (
            f"{self.what}, process {self.pid}, since {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(self.since))}"
        )


@contextmanager
def hold(path: Path, what: str) -> Iterator[None]:
    """Inside the `with`, no other process holds this. Raises Held, which names the process that does."""
    lock_path = path.with_name(f"{path.name}.lock")
    try:
        lock = take_lock(lock_path, _NAMING_SECONDS)
    except MarkerHeld as error:  # this drive has no file locks
        raise Held(_read(path), str(error)) from None
    except TimeoutError:
        raise Held(_read(path)) from None
    try:
        replace_file(path, json.dumps(asdict(Holder(what, os.getpid(), time.time()))).encode())
        yield
    finally:
        with suppress(OSError):
            path.unlink()
        lock.release()


def _read(path: Path) -> Holder | None:
    try:
        found = json.loads(path.read_bytes())
        return Holder(str(found["what"]), int(found["pid"]), float(found["since"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
