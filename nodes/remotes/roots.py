"""Registered remote roots: the caches there. They are listed in threads, because a remote may be slow or not answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count, islice

from ...dataset_cache import (
    Address,
    CacheError,
    Manifest,
    is_published,
    manifest_stamp,
    name_problem,
    published_at,
    read_manifest,
    roots,
    storage_at,
)

READING, READY, UNREACHABLE = "reading", "ready", "unreachable"
FRESH_SECONDS = 30.0
MOST_SECONDS = 15.0  # then a root counts as unreachable
DEPTH, MOST = 3, 500
MOST_FOLDERS = 2000  # that are looked into below a root: a bucket may contain millions of other things


@dataclass(frozen=True)
class RemoteCache:
    """A cache at a registered root; `name` begins with the root's. `published` is in seconds since 1970."""

    name: str
    place: Address
    manifest: Manifest | None
    problem: str = ""  # why it cannot be read
    published: float = 0.0
    stamp: object = None  # of the manifest: while it is the same, the manifest is not read again


@dataclass(frozen=True)
class RemoteRoot:
    """A registered root as it was when it was last listed."""

    name: str
    address: str
    state: str
    problem: str = ""  # why it is unreachable
    again: bool = False  # it was unreachable, and is being listed again
    caches: tuple[RemoteCache, ...] = ()


class RemoteRoots:
    """The registered roots of this server. Asking for them never waits longer than `patience`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[tuple[str, str], tuple[RemoteRoot, float]] = {}  # with the time of the listing
        self._searches: dict[tuple[str, str], tuple[threading.Thread, float]] = {}

    def rows(self, patience: float, again: bool = False) -> list[RemoteRoot]:
        """All roots. One that was never listed, or too long ago, is listed while this waits."""
        known, end = sorted(roots().items()), time.monotonic() + patience
        for each in known:
            self._search(each, again)
        for each in known:
            search = self._searches.get(each)
            if search is not None:
                search[0].join(max(0.0, end - time.monotonic()))
        return [self._row(each) for each in known]

    def names(self) -> list[str]:
        """The names of caches that are known now; those of other roots appear in a later call.

        None if the list of roots cannot be read: the page says so, and local caches are listed without it.
        """
        try:
            return sorted(cache.name for root in self.rows(0.0) for cache in root.caches if not cache.problem)
        except CacheError:
            return []

    def forget(self) -> None:
        """Something was pushed: what was listed is out of date."""
        with self._lock:
            self._found = {key: (root, float("-inf")) for key, (root, _) in self._found.items()}

    def _row(self, key: tuple[str, str]) -> RemoteRoot:
        with self._lock:
            found, search = self._found.get(key), self._searches.get(key)
        known = RemoteRoot(*key, READING) if found is None else found[0]
        if search is None:
            return known
        if time.monotonic() - search[1] > MOST_SECONDS:
            problem = known.problem or f"no answer within {MOST_SECONDS:.0f} seconds"
            return replace(known, state=UNREACHABLE, problem=problem)
        if known.state == UNREACHABLE:
            return replace(known, again=True)
        return replace(known, state=READING)

    def _search(self, key: tuple[str, str], again: bool) -> None:
        with self._lock:
            found = self._found.get(key)
            is_fresh = found is not None and time.monotonic() - found[1] < FRESH_SECONDS
            if key in self._searches or (is_fresh and not again):
                return  # a search that hangs is not repeated
            thread = threading.Thread(target=self._run, args=(key,), name="streamcache remote", daemon=True)
            self._searches[key] = (thread, time.monotonic())
        thread.start()

    def _run(self, key: tuple[str, str]) -> None:
        root = RemoteRoot(*key, UNREACHABLE)
        try:
            root = RemoteRoot(*key, READY, caches=tuple(self._caches(*key)))
        except (CacheError, OSError) as error:
            root = RemoteRoot(*key, UNREACHABLE, str(error))
        finally:
            with self._lock:
                self._found[key] = (root, time.monotonic())
                self._searches.pop(key, None)

    def _caches(self, name: str, address: str) -> Iterator[RemoteCache]:
        with self._lock:
            last = self._found.get((name, address))
        known = {cache.place: cache for cache in last[0].caches} if last is not None else {}
        for path, found in islice(_walk(Address.parse(address), name, DEPTH, count()), MOST):
            yield _cache(path, found, known.get(found))


def _cache(name: str, place: Address, known: RemoteCache | None) -> RemoteCache:
    try:
        stamp = manifest_stamp(place)
        if known is not None and known.manifest is not None and known.stamp == stamp:
            return known
        manifest = read_manifest(place)
        if manifest is None:
            raise CacheError(f"{place}: has just been removed")
        return RemoteCache(name, place, manifest, published=published_at(place), stamp=stamp)
    except (CacheError, OSError) as error:
        return RemoteCache(name, place, None, str(error))


def _walk(place: Address, name: str, depth: int, looked: Iterator[int]) -> Iterator[tuple[str, Address]]:
    storage = storage_at(place)
    files = storage.sizes()
    for below in storage.list():
        if name_problem(below) or below in files:
            continue
        if next(looked) >= MOST_FOLDERS:
            return
        if is_published(place / below):
            yield f"{name}/{below}", place / below
        elif depth > 1:
            yield from _walk(place / below, f"{name}/{below}", depth - 1, looked)


REMOTE_ROOTS = RemoteRoots()
