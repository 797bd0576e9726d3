"""Phase: one encoder at work. It is loaded at the first real encode, halves its batches when memory runs out, and
tries the items of a failed batch one by one, so that a bad one fails alone."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..errors import CacheError
from .encoders import Encoder
from .on_demand import return_memory

# An encoder that fails on so many items and never once succeeded is broken itself.
_HOPELESS = 8
_OUT_OF_MEMORY = (MemoryError, getattr(torch, "OutOfMemoryError", torch.cuda.OutOfMemoryError))
_OUT_OF_MEMORY_WORDS = ("can't allocate memory", "not enough memory", "out of memory")


@dataclass(frozen=True)
class Failure:
    """An item that could not be encoded."""

    reason: str


class Phase:
    """Use it in `with`: leaving it ends the lease, if there was one."""

    def __init__(self, encoder: Encoder, batch_size: int) -> None:
        if batch_size < 1:
            raise CacheError(f"batch size: found {batch_size}, expected 1 or more")
        self.batch_size = batch_size  # as large as memory allowed so far
        self.encoded = 0
        self._encoder = encoder
        self._lease = contextlib.ExitStack()
        self._leased = False
        self._failed = 0

    def __enter__(self) -> Phase:
        return self

    def __exit__(self, *exc: object) -> None:
        self._lease.close()

    def encode(self, items: Sequence[Any]) -> Iterator[list[Any]]:
        """Encode all items, a batch at a time. Where an item failed, a Failure stands in its place."""
        if items and not self._leased:
            self._lease.enter_context(self._encoder.lease())
            self._leased = True
        start = 0
        while start < len(items):
            batch = list(items[start : start + self.batch_size])
            made = self._attempt(batch)
            if made is None:  # out of memory
                self.batch_size = max(1, len(batch) // 2)
                return_memory()
                continue
            start += len(batch)
            yield made

    def _attempt(self, batch: list[Any]) -> list[Any] | None:
        """None where memory ran out and a smaller batch may fit."""
        try:
            return self._checked(self._encoder.encode(batch), len(batch))
        except CacheError:
            raise
        except Exception as error:  # an encoder may raise anything; the item is named in the report
            if _is_out_of_memory(error):
                if len(batch) == 1:
                    raise
                return None
            if len(batch) == 1:
                return [self._failure(error)]
        return [made for item in batch for made in self._attempt([item]) or ()]

    def _failure(self, error: Exception) -> Failure:
        self._failed += 1
        if self._failed >= _HOPELESS and not self.encoded:
            raise CacheError(f"the encoder failed on each of the first {self._failed} items: {error}") from error
        return Failure(f"the encoder failed: {error}")

    def _checked(self, made: list[Any], count: int) -> list[Any]:
        if len(made) != count:
            raise CacheError(f"the encoder returned {len(made)} results for {count} items")
        checked = [
            value if _is_finite(value) else Failure("the encoder gave values that are not finite") for value in made
        ]
        self.encoded += sum(not isinstance(value, Failure) for value in checked)
        return checked


def _is_out_of_memory(error: Exception) -> bool:
    if isinstance(error, _OUT_OF_MEMORY):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error).lower() for words in _OUT_OF_MEMORY_WORDS)


def _is_finite(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return not value.is_floating_point() or value.element_size() == 1 or bool(torch.isfinite(value).all())
    if isinstance(value, dict):
        return all(_is_finite(inner) for inner in value.values())
    return all(_is_finite(inner) for inner in value) if isinstance(value, (list, tuple)) else True
