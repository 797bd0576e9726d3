"""Inventory: the facts of every listed file, remembered where the file is unchanged, read where it is not."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from .captions import is_text
from .masks import is_mask
from .memory import Known, State
from .scan import UNSETTLED, Listing
from .source_files import Facts, read_facts

_COMMIT = 1024  # files between two commits: a kill while hashing loses no more than these


@dataclass
class Counts:
    """What was really done to source files."""

    listed: int = 0
    opened: int = 0  # while validating: each is read once
    hashed: int = 0
    decoded: int = 0


@dataclass
class Inventory:
    """Facts by folder and name. `settled` is False while some stamps must not be relied on next time."""

    folders: dict[str, dict[str, Facts]] = field(default_factory=dict)
    settled: bool = True
    trusted: int = 0  # files taken as remembered without looking


def take_inventory(
    listings: list[Listing],
    state: State,
    counts: Counts,
    *,
    hash_new: bool,
    trust: bool = False,
    threads: int = 4,
    check: Callable[[], None] = lambda: None,
) -> Inventory:
    """Facts of all files in the listings. `check` is called between reads and may raise to interrupt.

    With `hash_new` False, only the header of new files is read: whoever decodes them hashes them in passing.
    """
    found = Inventory()
    candidates: list[tuple[int, str, str, bool]] = []
    for listing in listings:
        known = state.files(listing.directory)
        facts, stale = _compare(listing, known, trust)
        state.forget_files(listing.directory, known.keys() - set(listing.names))
        found.folders[listing.directory] = facts
        found.trusted += len(facts) if trust else 0
        for name, size in stale:
            candidates.append((size, listing.directory, name, hash_new or name in known or is_mask(name)))
    counts.listed += sum(len(listing.names) for listing in listings)
    # Largest first, so that no thread is left alone with a big file at the end.
    candidates.sort(key=lambda c: (-c[0], c[1:]))
    for rows in _read_all(candidates, threads, counts, check):
        state.remember_files(rows)
        for directory, name, stamp, facts in rows:
            found.folders[directory][name] = facts
            found.settled &= stamp != UNSETTLED
    return found


def _compare(listing: Listing, known: dict[str, Known], trust: bool) -> tuple[dict[str, Facts], list[tuple[str, int]]]:
    facts: dict[str, Facts] = {}
    stale: list[tuple[str, int]] = []
    for name, stamp in listing.rows():
        before = known.get(name)
        if before is not None and (before[0] == stamp or (trust and not before[1].error)):
            facts[name] = before[1]
        else:
            stale.append((name, int.from_bytes(stamp[:8], "little")))
    return facts, stale


def _read_all(
    candidates: list[tuple[int, str, str, bool]], threads: int, counts: Counts, check: Callable[[], None]
) -> Iterable[list[tuple[str, str, bytes, Facts]]]:
    def read(candidate: tuple[int, str, str, bool]) -> tuple[str, str, bytes, Facts]:
        _, directory, name, whole = candidate
        return directory, name, *read_facts(os.path.join(directory, name), whole)

    with ThreadPoolExecutor(threads, "streamcache-hash") as pool:
        for start in range(0, len(candidates), _COMMIT):
            check()
            chunk = candidates[start : start + _COMMIT]
            counts.opened += len(chunk)
            counts.hashed += sum(whole or is_text(name) for _, _, name, whole in chunk)
            yield list(pool.map(read, chunk))
