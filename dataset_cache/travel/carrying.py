"""Carrying files from one storage to another: several at once, each in parts, checked as they arrive."""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import TypeVar

from ...errors import CacheError, CacheUnreadable
from ..format import Storage, StoredFile
from .cargo import Cargo
from .landing import Landing

FILES_AT_ONCE = 4
PARTS_AT_ONCE = 3  # of one file
PART_BYTES = 4 << 20
_REMEDY = 'it is damaged where it comes from, and nothing was published; run "streamcache verify" there'
_SECONDS_BETWEEN = 0.1  # between two reports

T = TypeVar("T")
Progress = Callable[[int, int], None]  # called with (bytes done, total bytes)


class Stopped(Exception):
    """The command was interrupted, or another file failed."""


@dataclass
class Meter:
    """Counts bytes from all threads, and tells them to stop."""

    total: int
    done: int = 0
    carried: int = 0  # without what an earlier run had left
    stop: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, nbytes: int, carried: bool = True) -> None:
        if self.stop.is_set():
            raise Stopped
        with self._lock:
            self.done += nbytes
            self.carried += nbytes if carried else 0


def carry(source: Storage, landing: Landing, cargoes: Sequence[Cargo], progress: Progress | None) -> Meter:
    """Bring these files to where they land. Whatever ends this, what has arrived is kept for another run."""
    # The largest first: the last one decides when all are done.
    ordered, meter = sorted(cargoes, key=lambda each: -each.bytes), _meter(cargoes)
    _each(ordered, lambda cargo, parts: _carry_one(source, landing, cargo, parts, meter), meter, progress)
    return meter


def find_damaged(storage: Storage, cargoes: Sequence[Cargo], progress: Progress | None) -> list[Cargo]:
    """The files of these whose bytes are not what they should be; each is read whole."""
    meter = _meter(cargoes)
    problems = _each(cargoes, lambda cargo, parts: _problem_of(storage, cargo, parts, meter), meter, progress)
    return [cargo for cargo, problem in zip(cargoes, problems, strict=True) if problem is not None]


def _meter(cargoes: Sequence[Cargo]) -> Meter:
    return Meter(sum(each.bytes for each in cargoes))


def _each(
    cargoes: Sequence[Cargo], work: Callable[[Cargo, ThreadPoolExecutor], T], meter: Meter, progress: Progress | None
) -> list[T]:
    """The result of `work` for each file, several at once. All end with the first one that fails."""
    with (
        ThreadPoolExecutor(FILES_AT_ONCE * PARTS_AT_ONCE, "streamcache travel part") as parts,
        ThreadPoolExecutor(FILES_AT_ONCE, "streamcache travel") as files,
    ):
        futures = [files.submit(work, each, parts) for each in cargoes]
        try:
            _watch(futures, meter, progress)
        except BaseException:
            meter.stop.set()
            for each in futures:
                each.cancel()
            raise
    return [each.result() for each in futures]


def _watch(work: Sequence[Future], meter: Meter, progress: Progress | None) -> None:
    pending = set(work)
    while pending:
        finished, pending = wait(pending, _SECONDS_BETWEEN, FIRST_EXCEPTION)
        for each in finished:
            each.result()
        if progress is not None:
            progress(meter.done, meter.total)


def _carry_one(source: Storage, landing: Landing, cargo: Cargo, parts: ThreadPoolExecutor, meter: Meter) -> None:
    file, kept = _open(source, cargo), landing.arrived(cargo)
    if not kept:
        return _attempt(file, landing, cargo, parts, meter, fresh=False)
    try:
        _attempt(file, landing, cargo, parts, meter, fresh=False)
    except _Damaged:  # what the earlier run left is not to be trusted: its machine may have lost power
        meter.add(-kept, carried=False)
        meter.add(kept - cargo.bytes)
        _attempt(file, landing, cargo, parts, meter, fresh=True)


class _Damaged(CacheError):
    """A file arrived with other bytes than it should have."""


def _attempt(
    file: StoredFile, landing: Landing, cargo: Cargo, parts: ThreadPoolExecutor, meter: Meter, fresh: bool
) -> None:
    check = cargo.check()
    with landing.receive(cargo, fresh) as arriving:
        for data in arriving.kept():
            check.feed(data)
            meter.add(len(data), carried=False)
        for data in _parts(file, arriving.size, cargo.bytes, parts):
            check.feed(memoryview(data))
            arriving.write(data)
            meter.add(len(data))
        problem = check.problem()
        if problem is not None:
            raise _Damaged(f"{cargo.name}: {problem}; {_REMEDY}")


def _problem_of(storage: Storage, cargo: Cargo, parts: ThreadPoolExecutor, meter: Meter) -> str | None:
    try:
        check, file = cargo.check(), _open(storage, cargo)
        for data in _parts(file, 0, cargo.bytes, parts):
            check.feed(memoryview(data))
            meter.add(len(data))
        return check.problem()
    except CacheUnreadable:
        raise
    except CacheError as error:
        return str(error)


def _open(source: Storage, cargo: Cargo) -> StoredFile:
    file = source.open(cargo.name)
    if file.size != cargo.bytes:
        raise CacheError(f"{cargo.name}: has {file.size:,} bytes, {cargo.bytes:,} expected; {_REMEDY}")
    return file


def _parts(file: StoredFile, start: int, end: int, pool: ThreadPoolExecutor) -> Iterator[bytearray]:
    """The bytes of a file in order, with the next parts on their way."""
    coming: deque[Future[bytearray]] = deque()
    offsets = iter(range(start, end, PART_BYTES))
    try:
        while True:
            for at in offsets:
                coming.append(pool.submit(file.read, at, min(PART_BYTES, end - at)))
                if len(coming) == PARTS_AT_ONCE:
                    break
            if not coming:
                return
            yield coming.popleft().result()
    finally:
        for each in coming:
            each.cancel()
