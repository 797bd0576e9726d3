"""Encoders: what turns pictures and captions into entries. They are met only through this protocol."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from .identity import digest_of
from .on_demand import OnDemand


@dataclass(frozen=True)
class Surroundings:
    """What captions may name beside the weights, such as files of embeddings. `stamp` differs when any of it may have
    changed; `of` is the content of what one caption names, and empty for a caption that names nothing."""

    stamp: str = ""
    of: Callable[[str], str] = lambda caption: ""


@runtime_checkable
class Encoder(Protocol):
    """What a plan needs of an encoder. One may also say how much it writes, for the bytes that a plan expects:
    `channels` and `dtype` of latents, `bytes_per_caption`. It may have a `name` that people know it by, and one of
    captions may have `surroundings`.

    Pictures are float32 [H, W, 3] in 0…1, all of one size; they become latents {"samples": [1, C, (T,) h, w]}.
    Captions are str; they become conditionings [[tensor, {"pooled_output": tensor, …}]].
    """

    @property
    def identity(self) -> str:
        """Content of the weights, settings, precision and code version. Asking never loads the model."""
        ...

    def lease(self) -> AbstractContextManager[Any]:
        """Loads on entering the first, frees when the last ends."""
        ...

    def encode(self, items: list[Any]) -> list[Any]:
        """One structure for each item, in order. What an item becomes does not depend on the items beside it."""
        ...


@runtime_checkable
class ImageEncoder(Encoder, Protocol):
    """An image encoder also says how many pixels a latent pixel covers on each side."""

    @property
    def downscale(self) -> int: ...


class OnDemandEncoder:
    """An encoder around a model on demand. `encode` gets the loaded model and the items."""

    def __init__(
        self,
        model: OnDemand,
        encode: Callable[[Any, list[Any]], list[Any]],
        settings: Mapping[str, Any],
        downscale: int = 1,
    ) -> None:
        self.model = model
        self.downscale = downscale
        self.settings = dict(settings)
        self._encode = encode

    @property
    def identity(self) -> str:
        return digest_of([self.model.identity, self.settings])

    @contextlib.contextmanager
    def lease(self) -> Iterator[None]:
        with self.model.lease():
            yield

    def encode(self, items: list[Any]) -> list[Any]:
        with self.model.lease() as model:
            return self._encode(model, items)
