"""Files in the folder of a run, which may come from elsewhere: a pipe or device is never opened, and a file that cannot
be read now does not count as missing."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from ...dataset_cache import CacheError, CacheUnreadable, StoredFile, storage_at
from ...errors import TrainError


def open_run_file(path: Path) -> StoredFile | None:
    """Open a file for reading. None if it is missing or not a file. Raises TrainError if it cannot be read now."""
    real = Path(os.path.realpath(path))
    try:
        return storage_at(real.parent).open(real.name)
    except CacheUnreadable as error:
        raise TrainError(f"{error}; try again") from None
    except CacheError:
        return None


def read_run_file(path: Path) -> bytes | None:
    """The content of a file. None if it is missing or not a file. Raises TrainError if it cannot be read now."""
    file = open_run_file(path)
    return None if file is None else read_from(file)


def read_from(file: StoredFile, start: int = 0, size: int | None = None) -> bytes:
    """The content of an open file from `start` on, at most `size` bytes. Raises TrainError if it cannot be read now."""
    rest = max(file.size - start, 0)
    try:
        return bytes(file.read(start, rest if size is None else min(size, rest)))
    except CacheError as error:  # also if the file was cut short meanwhile
        raise TrainError(f"{error}; try again") from None


def list_names(folder: Path) -> list[str]:
    """The sorted names in a folder, none if it is missing. Raises TrainError if they cannot be listed."""
    try:
        return storage_at(folder).list()
    except CacheError as error:
        raise TrainError(str(error)) from None


def may_be_file(path: Path) -> bool:
    """False for what is surely not a file: it is missing, a folder or a pipe."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except FileNotFoundError:
        return False
    except OSError:  # it is there, and cannot be examined now
        return True
