"""Tiny samples and caches for the tests of the cache, and ways to compare, damage and measure them."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from streamcache.dataset_cache import CacheWriter, LazyTensor, SampleFacts
from streamcache.dataset_cache.format import files
from streamcache.dataset_cache.format.skeleton import Layout, Split
from streamcache.dataset_cache.format.tensors import NAMES

EVERY_DTYPE = list(NAMES)
BUCKETS = [(1, 4, 8, 8), (1, 4, 8, 16), (1, 4, 3, 8, 8)]  # two of images, one of videos


def bits(shape: tuple[int, ...], dtype: torch.dtype = torch.float16, seed: int = 0) -> torch.Tensor:
    """A tensor of any type with random bits, so nan and every other odd value are among them."""
    tensor = torch.empty(shape, dtype=dtype)
    if tensor.numel():
        count = tensor.numel() * dtype.itemsize
        drawn = np.random.default_rng(seed).integers(0, 2 if dtype == torch.bool else 256, count, dtype=np.uint8)
        tensor.reshape(-1).view(torch.uint8).copy_(torch.from_numpy(drawn))
    return tensor


def latent(i: int, shape: tuple[int, ...] | None = None) -> dict[str, torch.Tensor]:
    return {"samples": bits(shape or BUCKETS[i % len(BUCKETS)], seed=i)}


def conditioning(i: int, tokens: int = 5) -> list:
    facts = {"pooled_output": bits((1, 12), torch.bfloat16, seed=1000 + i), "width": 512 + i, "prompt": f"caption {i}"}
    return [[bits((1, tokens, 16), torch.float32, seed=2000 + i), facts]]


def sample(i: int) -> dict[str, Any]:
    """What `CacheWriter.add` takes for sample `i`."""
    return {
        "latent": latent(i),
        "conditioning": conditioning(i),
        "caption": f"caption {i}",
        "source": f"{i:05d}.png",
        "original_size": (640 + i, 480),
        "crop": (i, 0, 512, 480),
    }


def write_cache(path: Path, count: int, first: int = 0, **options: Any) -> Path:
    with CacheWriter(path, **options) as w:
        for i in range(first, first + count):
            w.add(**sample(i))
    return path


def assert_holds(cache: Any, numbers: Any) -> None:
    """Every sample of `cache` is what `sample(i)` made, for the `i` in `numbers`, in this order."""
    numbers = list(numbers)
    assert len(cache) == len(numbers)
    for i, found in zip(numbers, cache):
        given = sample(i)
        assert same(found.realize().latent, given["latent"]), f"latent of sample {i}"
        assert same(found.realize().conditioning, given["conditioning"]), f"conditioning of sample {i}"
        facts = (found.caption, found.source, found.original_size, found.crop)
        assert facts == tuple(given[name] for name in ("caption", "source", "original_size", "crop"))


def raw(tensor: torch.Tensor) -> bytes:
    tensor = tensor.realize() if isinstance(tensor, LazyTensor) else tensor
    tensor = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def same(a: Any, b: Any) -> bool:
    """Equal in type, order and every bit, tensors included; a lazy tensor is as good as a real one."""
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a.shape == b.shape and a.dtype == b.dtype and raw(a) == raw(b)
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        keys_agree = [(type(k), k) for k in a] == [(type(k), k) for k in b]
        return keys_agree and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float | np.generic):
        return np.asarray(a).tobytes() == np.asarray(b).tobytes()
    return a == b


def rejoin(parts: Split) -> Any:
    """The structure that was split, by way of the text and bytes that are stored."""
    return Layout(parts.layout).read(tuple(parts.tensors), memoryview(parts.leaves), 0)


def shard_files(path: Path) -> list[Path]:
    return sorted((path / "shards").glob("*.safetensors"))


def anonymous_bytes() -> int:
    """Memory of this process that no file backs. Linux only."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Anonymous:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no Anonymous line in smaps_rollup")


@contextmanager
def counted_reads() -> Iterator[list[int]]:
    """Collects the size of every read from a shard, whichever way it goes."""
    sizes: list[int] = []
    names = ("preadv", "read", "readinto")
    kept = {name: getattr(os, name) for name in names if hasattr(os, name)}
    readinto = files._readinto

    def counting(call: Callable[..., Any]) -> Callable[..., Any]:
        def count(*args: Any) -> Any:
            result = call(*args)
            sizes.append(result if isinstance(result, int) else len(result))
            return result

        return count

    for name, call in kept.items():
        setattr(os, name, counting(call))
    if "readinto" not in kept:
        files._readinto = counting(readinto)
    try:
        yield sizes
    finally:
        files._readinto = readinto
        for name, call in kept.items():
            setattr(os, name, call)


def put_sample(writer: CacheWriter, i: int) -> None:
    """The same sample as `sample(i)`, entry by entry under keys, as an encoder stores it."""
    given = sample(i)
    keys = {"latent": f"latent {i}", "conditioning": f"text {i}"}
    for field, key in keys.items():
        writer.once(key, lambda field=field: given[field], field)
    facts = {name: value for name, value in given.items() if name not in (*keys, "caption")}
    writer.sample({field: [key] for field, key in keys.items()}, SampleFacts(given["caption"], **facts))
