"""Encoders: the protocol that turns images and captions into entries, and one encoder at work (Phase).

A Phase loads its encoder at the first batch, halves the batch size when memory runs out, and retries the items of a
failed batch one by one, so that only the bad item fails.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch

from ...errors import CacheError
from ..format import iter_tensors
from .on_demand import return_memory

_HOPELESS = 8  # an encoder that fails on this many items without a single success is itself broken
_OUT_OF_MEMORY = (MemoryError, getattr(torch, "OutOfMemoryError", torch.cuda.OutOfMemoryError))
_OUT_OF_MEMORY_WORDS = ("can't allocate memory", "not enough memory", "out of memory", "status_alloc_failed")


@dataclass(frozen=True)
class Surroundings:
    """Files besides the weights that captions can refer to, such as embeddings.

    `stamp` changes when any of them may have changed. `of` is the content of those that a caption names, empty if none.
    """

    stamp: str = ""
    of: Callable[[str], str] = lambda caption: ""


@runtime_checkable
class Encoder(Protocol):
    """What a plan needs from an encoder.

    Images are float32 [H, W, 3] in 0…1, all of one size; they become latents {"samples": [1, C, (T,) h, w]}.
    Captions are str; they become conditionings [[tensor, {"pooled_output": tensor, …}]].
    Optional attributes: `name` for reports; `channels` and `dtype` (of latents) or `bytes_per_caption` to estimate the
    size of the cache; `surroundings` (of captions); `length(caption)`, by which captions are sorted into batches;
    `cuts(caption)`, whether the encoder ignores the end of a caption because it is too long.
    """

    @property
    def identity(self) -> str:
        """Hash of weights, settings, precision and code version. Reading it never loads the model."""
        ...

    def lease(self) -> AbstractContextManager[Any]:
        """Loads the model when the first lease begins, and frees it when the last one ends."""
        ...

    def encode(self, items: list[Any]) -> list[Any]:
        """One structure per item, in order. Other items of the call may change a result only within rounding."""
        ...


@runtime_checkable
class ImageEncoder(Encoder, Protocol):
    """An image encoder also has the downscale factor from pixels to latent pixels."""

    @property
    def downscale(self) -> int: ...


@dataclass(frozen=True)
class Failure:
    """An item that could not be encoded."""

    reason: str


class Phase:
    """One encoder at work. Use it in `with`: leaving it ends the encoder's lease."""

    def __init__(self, encoder: Encoder | None, batch_size: int) -> None:
        if batch_size < 1:
            raise CacheError(f"batch_size = {batch_size}: expected 1 or more")
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
        """Encode all items in batches. An item that failed gives a Failure."""
        if items:
            self._begin()
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

    def length(self, caption: str) -> Any:
        """What captions of one batch should have in common: numbers of tokens if the encoder counts them."""
        measure = getattr(self._encoder, "length", None)
        if measure is None or self.batch_size == 1:
            return [len(caption)]
        self._begin()
        try:
            return measure(caption)
        except Exception:
            return []  # encoding it will fail too, and be reported

    def cuts(self, caption: str) -> bool:
        """Whether the encoder ignores the end of this caption, which it has encoded."""
        return bool(getattr(self._encoder, "cuts", lambda text: False)(caption))

    def _begin(self) -> None:
        if not self._leased:
            assert self._encoder is not None, "items for an encoder that the plan does not have"
            self._lease.enter_context(self._encoder.lease())
            self._leased = True

    def _attempt(self, batch: list[Any]) -> list[Any] | None:
        """None if memory ran out and a smaller batch may fit."""
        assert self._encoder is not None
        try:
            return self._checked(self._encoder.encode(batch), len(batch))
        except CacheError:
            raise
        except Exception as error:  # encoders may raise anything; the report names the item
            if is_out_of_memory(error):
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
            value if _is_finite(value) else Failure("the encoder returned values that are not finite") for value in made
        ]
        self.encoded += sum(not isinstance(value, Failure) for value in checked)
        return checked


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out: some devices and the CPU report it as a plain RuntimeError."""
    if isinstance(error, _OUT_OF_MEMORY):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error).lower() for words in _OUT_OF_MEMORY_WORDS)


def _is_finite(structure: Any) -> bool:
    return all(
        not tensor.is_floating_point() or tensor.element_size() == 1 or bool(torch.isfinite(tensor).all())
        for tensor in iter_tensors(structure)
    )
