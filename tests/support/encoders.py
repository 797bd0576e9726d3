"""Encoders for tests that count their calls: cheap, deterministic, and they report whether they are loaded."""

import contextlib
import hashlib
import threading
from collections.abc import Iterator

import torch

from streamcache.dataset_cache import Settings, Transform

SMALL = Settings(Transform((64,), step=8), batch_size=4, text_batch_size=8, thumbnail=0)


class Counting:
    """Counts loads, batches and items. Encoding without a lease is a fault of the caller."""

    def __init__(self, identity: str) -> None:
        self.identity = identity
        self.items: list = []
        self.batches: list[int] = []
        self.loads = 0
        self.leases = 0
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def lease(self) -> Iterator[None]:
        with self._lock:
            self.loads += not self.leases
            self.leases += 1
        try:
            yield
        finally:
            with self._lock:
                self.leases -= 1

    @property
    def count(self) -> int:
        return len(self.items)

    def encode(self, items: list) -> list:
        assert self.leases, "encode without a lease"
        with self._lock:
            self.batches.append(len(items))
        made = [self.make(item) for item in items]
        with self._lock:
            self.items += [self.remember(item) for item in items]
        return made

    def reset(self) -> None:
        self.items, self.batches, self.loads = [], [], 0


class CountingImages(Counting):
    """Averages 8×8 pixels into four channels."""

    downscale = 8

    def __init__(self, identity: str = "images") -> None:
        super().__init__(identity)

    def encode(self, items: list) -> list:
        assert len({item.shape for item in items}) == 1, "a batch of several sizes"
        return super().encode(items)

    def make(self, item: torch.Tensor) -> dict:
        assert item.dtype == torch.float32 and item.ndim == 3 and item.shape[2] == 3
        pooled = torch.nn.functional.avg_pool2d(item.permute(2, 0, 1)[None], self.downscale)
        return {"samples": torch.cat([pooled, pooled.mean(1, keepdim=True)], 1)}

    def remember(self, item: torch.Tensor) -> tuple:
        return tuple(item.shape)


class CountingTexts(Counting):
    """Draws an embedding from the caption's hash. A caption holding "poison" fails, alone or beside others."""

    def __init__(self, identity: str = "texts") -> None:
        super().__init__(identity)

    def make(self, item: str) -> list:
        if "poison" in item:
            raise RuntimeError("this caption cannot be tokenized")
        seed = int.from_bytes(hashlib.blake2b(item.encode(), digest_size=6).digest(), "big")
        generator = torch.Generator().manual_seed(seed)
        tokens = torch.randn(1, 7, 16, generator=generator)
        return [[tokens, {"pooled_output": tokens.mean(1)}]]

    def remember(self, item: str) -> str:
        return item
