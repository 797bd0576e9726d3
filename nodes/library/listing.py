"""Listing: the choices of a widget that come from folders. They are looked up aside, so that the host never waits for
a slow disk: it asks for a node's definition at every prompt."""

import threading
import time
from collections.abc import Callable

FRESH_SECONDS = 1.0
PATIENCE_SECONDS = 0.2


class Listing:
    """Names that `find` returns, as of a moment ago."""

    def __init__(self, find: Callable[[], list[str]]) -> None:
        self._find = find
        self._names: list[str] = []
        self._found_at = float("-inf")
        self._search: threading.Thread | None = None
        self._lock = threading.Lock()

    def names(self) -> list[str]:
        """What was found last; a search that takes long comes in at the next call."""
        with self._lock:
            if self._search is None and time.monotonic() - self._found_at > FRESH_SECONDS:
                self._search = threading.Thread(target=self._run, name="streamcache listing", daemon=True)
                self._search.start()
            search = self._search
        if search is not None:
            search.join(PATIENCE_SECONDS)
        return list(self._names)

    def _run(self) -> None:
        try:
            self._names = self._find()
        finally:
            with self._lock:
                self._found_at, self._search = time.monotonic(), None
