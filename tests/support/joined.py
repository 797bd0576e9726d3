"""Caches whose index is in several files, whose text is trimmed, or both, as small as they can be."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from streamcache.dataset_cache import CacheWriter, SampleFacts, open_cache, read_manifest
from streamcache.dataset_cache.write import checked, growth

from .padding import caption
from .samples import bits

COUNT = 8
REQUIRES = {"segments": ("segments",), "padding": ("padding",), "both": ("padding", "segments")}
KINDS = tuple(REQUIRES)


@contextmanager
def growing() -> Iterator[None]:
    """Every publication adds an index file, however small the cache is."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (checked, growth):
            patch.setattr(module, "SMALL_INDEX", 0)
        patch.setattr(growth, "_file_size", lambda arrays, fields: 0)
        yield


def put(writer: CacheWriter, i: int) -> None:
    """A latent of its own, two captions of which one is everybody's, a thumbnail."""
    captions = [f"caption {i}", "caption 99"]
    writer.put(f"latent {i}", {"samples": bits((1, 4, 8, 8 + 8 * (i % 2)), seed=i), "number": i}, "latent")
    writer.put(captions[0], caption(i), "conditioning")
    writer.put(captions[1], caption(99), "conditioning")
    writer.put(f"thumbnail {i}", torch.full((5, 5, 3), i, dtype=torch.uint8), "thumbnail")
    keys = {"latent": [f"latent {i}"], "conditioning": captions, "thumbnail": [f"thumbnail {i}"]}
    writer.sample(keys, SampleFacts(captions, f"{i}.png", original_size=(100 + i, 80), repeats=1 + i % 3))


def write(path: Path, numbers: range, **options: Any) -> Path:
    with CacheWriter(path, **options) as writer:
        for i in numbers:
            put(writer, i)
    return path


def write_joined(path: Path, kind: str) -> Path:
    """`segments`: an index in three files, text as it is. `padding`: trimmed text in one file. `both`: only what was
    appended is trimmed."""
    if kind == "padding":
        write(path, range(COUNT))
    else:
        write(path, range(COUNT - 3), trim=False)
        with growing():
            write(path, range(COUNT - 3, COUNT - 1), append=True, trim=kind == "both")
            write(path, range(COUNT - 1, COUNT), append=True, trim=kind == "both")
    manifest = read_manifest(path)
    assert manifest.requires == REQUIRES[kind] and len(manifest.index_files) == (1 if kind == "padding" else 3)
    return path


def append(path: Path, kind: str, numbers: range) -> Path:
    """More samples, in a new index file if the cache has several."""
    if kind == "padding":
        return write(path, numbers, append=True)
    with growing():
        return write(path, numbers, append=True, trim=kind == "both")


def plain_texts(path: Any) -> bool:
    """Whether every conditioning is bit for bit what was put in."""
    from .samples import same

    cache = open_cache(path)
    return all(
        same(cache.sample(i, {"conditioning": n}).realize().conditioning, caption(number))
        for i in range(len(cache))
        for n, number in enumerate((int(cache.source(i).removesuffix(".png")), 99))
    )
