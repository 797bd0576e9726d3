"""The limit of local copies: how much space the pieces of all remote datasets may take."""

import os
import re
import shutil
from pathlib import Path

from ...errors import SettingError
from ..local_folders import copies_folder

CACHE_LIMIT = "STREAMCACHE_CACHE_LIMIT"
BLOCKS = "blocks"
MOST_BYTES = 50 * 10**9  # by default, or half of what is free if that is less
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?)i?b?", re.IGNORECASE)
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_chosen: int | None = None


def use_cache_limit(limit: int | str | None) -> None:
    """Keep at most so many bytes of local copies from now on, whatever STREAMCACHE_CACHE_LIMIT says; 0 for none.

    A text is a size such as 20GB.
    """
    global _chosen
    _chosen = parse_size(limit, "the limit of local copies") if isinstance(limit, str) else limit


def cache_limit(used: int = 0) -> int:
    """The most bytes of local copies: what the program chose, else STREAMCACHE_CACHE_LIMIT, else a share of the disk.

    `used` are the bytes of the copies that are there already.
    """
    if _chosen is not None:
        return _chosen
    if text := os.environ.get(CACHE_LIMIT):
        return parse_size(text, CACHE_LIMIT)
    folder = blocks_folder()
    while not folder.is_dir() and folder != folder.parent:
        folder = folder.parent
    return min(MOST_BYTES, (shutil.disk_usage(folder).free + used) // 2)


def parse_size(text: str, place: str) -> int:
    """A number of bytes, such as 800MB or 20 GB."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise SettingError(f"{place}: found {text!r}; expected a size such as 20GB, or 0 for no local copies")
    return int(float(match[1]) * _UNITS[match[2].lower()])


def blocks_folder() -> Path:
    """Where the pieces are."""
    return copies_folder() / BLOCKS
