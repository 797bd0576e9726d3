"""Locks: whether somebody holds one. Looking makes no file and changes none, whatever becomes of the folder."""

import os
from pathlib import Path

from filelock import FileLock, Timeout

from .storage import OWN_FILE

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None


def is_locked(path: Path) -> bool:
    """Whether a FileLock on this file is held. Raises OSError where that cannot be told."""
    if fcntl is None:
        return _is_locked_here(path)
    # A FileLock would make the file, and folders for it, if they went away a moment ago.
    fd = os.open(path, os.O_RDONLY | OWN_FILE)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(fd)


def _is_locked_here(path: Path) -> bool:
    path.lstat()  # raises if it is not there
    lock = FileLock(str(path), thread_local=False)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return True
    lock.release()
    return False
