"""Images that look alike: a perceptual hash per image, remembered, and groups of those with nearly the same hash.

The hash has 64 bits: whether each of 8×8 places of the small gray image is brighter than its right neighbor. It hardly
changes with size, compression and color.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations, pairwise
from pathlib import Path
from typing import TypeVar

import numpy as np
import xxhash
from PIL import Image

from ...errors import CacheError, Unusable
from ..format import realize
from ..local_folders import memory_folder
from ..read import Cache
from ..sources import THUMBNAIL, decode_small, decode_thumbnail, read_bytes
from .source_folder import FolderView

DISTANCE = 6  # bits of 64; images that differ in more look different
MOST_DISTANCE = 10
_SIDE = 8
_VERSION = b"1"  # raise it when the same image would get another hash
_MOST = 2_000_000  # hashes that are remembered; the oldest are forgotten
_CHUNK = 500
_AT_ONCE = 100  # images between two reports of progress
_TABLE = "CREATE TABLE IF NOT EXISTS hash (number INTEGER PRIMARY KEY, key BLOB UNIQUE NOT NULL, value BLOB NOT NULL)"
_ONES = np.array([bin(number).count("1") for number in range(1 << 16)], np.uint8)
_T = TypeVar("_T", int, str)


def hash_image(image: Image.Image) -> int:
    """The perceptual hash of an image."""
    small = image if image.size == (_SIDE + 1, _SIDE) else _small(image)
    pixels = np.asarray(small, np.int16)
    brighter = pixels[:, :-1] > pixels[:, 1:]
    # Rows are shifted and columns taken, so that 8 bits in turn come from all over the image: many images share a
    # plain border, and few bits of the whole.
    mixed = np.stack([np.roll(row, number) for number, row in enumerate(brighter)]).T
    return int.from_bytes(np.packbits(mixed).tobytes(), "big")


def folder_hashes(
    view: FolderView,
    check: Callable[[], None] = lambda: None,
    threads: int = 4,
    memory: Path | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, int]:
    """Name → hash of the images of a folder that can be decoded. Only images that are new or changed are read."""
    images = {image.name: view.root / image.name for image in view.images if image.width}
    stamps = {image.name: image.stamp for image in view.images}
    keys = {
        name: _key(os.path.realpath(path).encode("utf-8", "surrogatepass"), stamps[name])
        for name, path in images.items()
    }

    def read(name: str) -> int | None:
        with contextlib.suppress(Unusable):
            return hash_image(decode_small(read_bytes(str(images[name]))[1], (_SIDE + 1, _SIDE)))

    return _hashes(keys, read, check, threads, memory, progress)


def cache_hashes(cache: Cache, check: Callable[[], None] = lambda: None, memory: Path | None = None) -> dict[int, int]:
    """Sample → hash of the samples of a cache that have a thumbnail."""
    if THUMBNAIL not in cache.fields:
        return {}
    thumbnails = {i: cache.keys(i)[THUMBNAIL][0] for i in np.flatnonzero(cache.variants(THUMBNAIL)).tolist()}

    def read(sample: int) -> int | None:
        with contextlib.suppress(CacheError, OSError):  # damaged: verify finds it
            return hash_image(decode_thumbnail(realize(cache.entry(thumbnails[sample]))))

    return _hashes({i: _key(key) for i, key in thumbnails.items()}, read, check, 1, memory)


def look_alikes(
    hashes: Mapping[_T, int], distance: int = DISTANCE, check: Callable[[], None] = lambda: None
) -> list[list[_T]]:
    """Groups of names whose hashes differ in at most `distance` bits, directly or through others; the largest first."""
    if not 0 <= distance <= MOST_DISTANCE:
        raise CacheError(f"distance = {distance}: expected 0 to {MOST_DISTANCE}")
    names = list(hashes)
    values, place = np.unique(np.array([hashes[name] for name in names], np.uint64), return_inverse=True)
    label = np.arange(len(values))
    for left, right in _close_pairs(values, distance, check):
        apart = label[left] != label[right]
        if apart.any():
            label = _connected(label, left[apart], right[apart])
    label = label[place]
    order = np.argsort(label, kind="stable")
    edges = np.flatnonzero(np.diff(label[order])) + 1
    groups = [[names[at] for at in part.tolist()] for part in np.split(order, edges) if len(part) > 1]
    return sorted(groups, key=len, reverse=True)


def _close_pairs(
    values: np.ndarray, distance: int, check: Callable[[], None]
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Pairs of places whose values differ in few bits.

    Of `distance + 2` bands of bits, at least two are equal then: only values that agree in two bands are compared.
    """
    edges = [round(64 * number / (distance + 2)) for number in range(distance + 3)]
    bands = [values >> np.uint64(low) & np.uint64((1 << (high - low)) - 1) for low, high in pairwise(edges)]
    for one, other in combinations(bands, 2):
        key = one << np.uint64(32) | other
        order = np.argsort(key, kind="stable")
        key, step = key[order], 1
        at = np.arange(len(values) - 1)
        while True:
            check()
            at = at[at + step < len(values)]
            at = at[key[at] == key[at + step]]
            if not len(at):
                break
            left, right = order[at], order[at + step]
            close = _count_ones(values[left] ^ values[right]) <= distance
            yield left[close], right[close]
            step += 1


def _count_ones(values: np.ndarray) -> np.ndarray:
    return _ONES[values.view(np.uint16).reshape(-1, 4)].sum(axis=1)


def _connected(label: np.ndarray, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """The labels of places, the same for places that pairs connect, after some more pairs."""
    while True:
        least = np.minimum(label[left], label[right])
        after = label.copy()
        np.minimum.at(after, label[left], least)
        np.minimum.at(after, label[right], least)
        after = after[after]
        if (after == label).all():
            return label
        label = after


def _small(image: Image.Image) -> Image.Image:
    return image.convert("L").resize((_SIDE + 1, _SIDE), Image.Resampling.BOX)


def _key(*parts: bytes) -> bytes:
    return xxhash.xxh3_128_digest(b"\0".join((_VERSION, *parts)))


def _hashes(
    keys: Mapping[_T, bytes],
    read: Callable[[_T], int | None],
    check: Callable[[], None],
    threads: int,
    memory: Path | None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[_T, int]:
    with contextlib.closing(_open(memory or memory_folder() / "look_alikes.sqlite")) as database:
        known = _recall(database, list(keys.values()))
        missing = [name for name, key in keys.items() if key not in known]
        with ThreadPoolExecutor(threads, "streamcache-look") as pool:
            for start in range(0, len(missing), _AT_ONCE):
                check()
                progress(len(keys) - len(missing) + start, len(keys))
                some = missing[start : start + _AT_ONCE]
                found = {keys[n]: value for n, value in zip(some, pool.map(read, some)) if value is not None}
                _remember(database, found)
                known |= found
    return {name: known[key] for name, key in keys.items() if key in known}


def _open(path: Path) -> sqlite3.Connection:
    """The memory of hashes. Everything in it can be computed again: a damaged one is begun again."""
    for place in (path, path, None):
        database = None
        try:
            if place is not None:
                place.parent.mkdir(parents=True, exist_ok=True)
            database = sqlite3.connect(place or ":memory:", timeout=10)
            database.execute("PRAGMA synchronous = OFF")
            database.execute(_TABLE)
            return database
        except sqlite3.OperationalError:  # locked, read-only or full
            continue
        except (sqlite3.DatabaseError, OSError):
            if database is not None:
                database.close()  # Windows removes no open file
            with contextlib.suppress(OSError):
                path.unlink()
    raise AssertionError("a database in memory can always be opened")


def _recall(database: sqlite3.Connection, keys: Sequence[bytes]) -> dict[bytes, int]:
    known: dict[bytes, int] = {}
    with contextlib.suppress(sqlite3.Error):
        for start in range(0, len(keys), _CHUNK):
            some = keys[start : start + _CHUNK]
            marks = ",".join("?" * len(some))
            rows = database.execute(f"SELECT key, value FROM hash WHERE key IN ({marks})", some)
            known.update((key, int.from_bytes(value, "big")) for key, value in rows if len(value) == _SIDE)
    return known


def _remember(database: sqlite3.Connection, found: Mapping[bytes, int]) -> None:
    rows = [(key, value.to_bytes(_SIDE, "big")) for key, value in found.items()]
    with contextlib.suppress(sqlite3.Error), database:
        database.executemany("INSERT OR REPLACE INTO hash (key, value) VALUES (?, ?)", rows)
        database.execute(f"DELETE FROM hash WHERE number <= (SELECT max(number) FROM hash) - {_MOST}")
