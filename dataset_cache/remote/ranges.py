"""Reading many ranges of remote files: which are joined in one request, and several requests at once."""

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, Protocol

GAP_BYTES = 128 << 10  # two ranges less far apart are cheaper in one request
REQUEST_BYTES = 8 << 20  # a request is not larger, so that a slow line finishes it in time
IN_FLIGHT = 16


class RangeReader(Protocol):
    """Reads parts of the files of one remote dataset, from any number of threads.

    Raises a CacheError with the place and a remedy. Faults that pass are retried within limits: no call takes more than
    60 seconds without progress.
    """

    def read_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """The bytes of each (offset, size), in the order of the ranges."""
        ...


@dataclass(frozen=True)
class Request:
    """One range to ask for, and the pieces in it: (number of the wanted range, start in that, start in this, size)."""

    offset: int
    size: int
    pieces: tuple[tuple[int, int, int, int], ...]


def plan_requests(ranges: Sequence[tuple[int, int]]) -> list[Request]:
    """The requests for these (offset, size): near ranges are joined, large ones are split."""
    pieces = sorted(
        (offset + start, min(size - start, REQUEST_BYTES), number, start)
        for number, (offset, size) in enumerate(ranges)
        for start in range(0, size, REQUEST_BYTES)
    )
    groups: list[list[tuple[int, int, int, int]]] = []
    begin = end = -1
    for piece in pieces:
        offset, size, _, _ = piece
        if groups and offset <= end + GAP_BYTES and max(end, offset + size) - begin <= REQUEST_BYTES:
            groups[-1].append(piece)
            end = max(end, offset + size)
        else:
            groups.append([piece])
            begin, end = offset, offset + size
    return [_request(group) for group in groups]


def _request(group: list[tuple[int, int, int, int]]) -> Request:
    begin, end = group[0][0], max(offset + size for offset, size, _, _ in group)
    return Request(begin, end - begin, tuple((n, start, offset - begin, size) for offset, size, n, start in group))


_pools: dict[int, ThreadPoolExecutor] = {}  # by process: the threads of a parent do not run in a forked child


def at_once(calls: Iterable[Callable[[], Any]]) -> None:
    """Run these calls, several at once. The first error is raised at once; calls that have not begun are dropped."""
    todo = list(calls)
    if len(todo) < 2:
        return todo[0]() if todo else None
    pool = _pools.get(os.getpid())
    if pool is None:
        pool = _pools.setdefault(os.getpid(), ThreadPoolExecutor(IN_FLIGHT, "streamcache ranges"))
    futures: list[Future[Any]] = [pool.submit(call) for call in todo[1:]]
    try:
        todo[0]()
        # What no thread has begun is done here: a call may make such calls itself, and find all threads waiting for it.
        for call, future in zip(reversed(todo), reversed(futures)):
            if future.cancel():
                call()
        done, _ = wait([future for future in futures if not future.cancelled()], return_when=FIRST_EXCEPTION)
        for future in done:
            future.result()
    finally:
        for future in futures:
            future.cancel()
