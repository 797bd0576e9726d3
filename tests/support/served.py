"""A cache behind a web server, as a storage: metadata is read whole, shards in ranges."""

import http.client
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

import torch

from streamcache.dataset_cache import Cache, CacheWriter, LocalStorage, open_cache
from streamcache.dataset_cache.ahead.read_ahead import GRAIN, ReadAhead
from streamcache.errors import CacheError


class HttpRanges:
    """A `RangeReader` with a connection per thread, and no retries."""

    def __init__(self, address: str) -> None:
        self._host = urlsplit(address).netloc
        self._local = threading.local()

    def read_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return [self._read(name, offset, size) for offset, size in ranges]

    def _read(self, name: str, offset: int, size: int) -> bytes:
        connection = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = http.client.HTTPConnection(self._host, timeout=30)
        try:
            connection.request("GET", f"/{name}", headers={"Range": f"bytes={offset}-{offset + size - 1}"})
            answer = connection.getresponse()
            data = answer.read()
        except (OSError, http.client.HTTPException) as error:
            self._local.connection = None
            raise CacheError(f"{name}: cannot be read over the network: {error!r}") from error
        if answer.status != 206:
            raise CacheError(f"{name}: the server answered {answer.status}")
        return data


class ServedStorage(LocalStorage):
    """A dataset whose metadata is in a folder and whose shards are behind a server. Shards cannot be opened locally."""

    is_remote = True

    def __init__(self, path: Path, address: str) -> None:
        super().__init__(path)
        object.__setattr__(self, "read_ranges", HttpRanges(address).read_ranges)

    def open(self, name: str):
        assert not name.startswith("shards/"), f"{name} was opened, not read in ranges"
        return super().open(name)


def open_served(path: Path, address: str) -> Cache:
    return open_cache(ServedStorage(path, address))


def write_even(path: Path, count: int) -> Path:
    """A cache whose samples are one piece each, of `GRAIN` bytes."""
    with CacheWriter(path) as writer:
        for i in range(count):
            draw = torch.Generator().manual_seed(i)
            writer.add(latent={"samples": torch.randn(1, 4, 64, GRAIN // 1024, generator=draw)}, source=f"{i}.png")
    return path


def settle(ahead: ReadAhead, seconds: float = 60) -> None:
    """Wait until everything that can be fetched ahead is here."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with ahead._changed:
            coming, fetcher = ahead._coming, ahead._fetcher
            seen = coming is None or (
                coming.reached == ahead._window.end > 0 and not coming.is_short(ahead._window, ahead._planned)
            )
            if seen and not fetcher._queued and not fetcher._flying:
                return
        time.sleep(0.001)
    raise AssertionError("reading ahead hangs")
