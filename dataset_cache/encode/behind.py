"""Behind: entries are stored by a thread of their own, so that the encoder never waits for the disk."""

from __future__ import annotations

import queue
import threading
from typing import Any

import torch

from ..write import CacheWriter

Entry = tuple[bytes, Any, str]  # key, structure, field
_BATCHES = 8  # waiting at most


class WriteBehind:
    """Use it in `with`: leaving it waits until everything is stored, also after an error."""

    def __init__(self, writer: CacheWriter) -> None:
        self._writer = writer
        self.bytes = 0  # of all tensors so far, before equal ones are found
        self._queue: queue.Queue[list[Entry] | None] = queue.Queue(_BATCHES)
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="streamcache-write", daemon=True)

    def __enter__(self) -> WriteBehind:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        self._queue.put(None)
        self._thread.join()
        if kind is None and self._error is not None:
            raise self._error

    def put(self, entries: list[Entry]) -> None:
        if self._error is not None:
            raise self._error
        self._queue.put(entries)

    def _run(self) -> None:
        while (entries := self._queue.get()) is not None:
            if self._error is not None:
                continue  # keep taking, so that nobody waits for room in the queue
            try:
                for key, structure, field in entries:
                    self._writer.put(key, structure, field)
                    self.bytes += nbytes(structure)
            except BaseException as error:
                self._error = error


def nbytes(structure: Any) -> int:
    """The bytes of all tensors in a structure."""
    if isinstance(structure, torch.Tensor):
        return structure.numel() * structure.element_size()
    if isinstance(structure, dict):
        return sum(nbytes(value) for value in structure.values())
    return sum(nbytes(value) for value in structure) if isinstance(structure, (list, tuple)) else 0
