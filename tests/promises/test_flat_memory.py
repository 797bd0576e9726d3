"""Memory does not grow with a cache: what looks at all of it does so in pieces."""

import gc
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from streamcache.dataset_cache import CacheWriter, overview, preview_clean, usage, verify
from streamcache.dataset_cache.format import LocalStorage, read_manifest
from streamcache.dataset_cache.index import derive, joined, open_index, passes, write_index
from streamcache.dataset_cache.write import consistency, repack

FEW, MANY = 3_000, 18_000  # samples; a shard has room for about 1,000 blobs of their size


@pytest.fixture(scope="module")
def caches(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Caches of so many samples, of which the last was added later: the index is in two files."""
    folder = tmp_path_factory.mktemp("caches")
    patch = pytest.MonkeyPatch()
    patch.setattr(repack, "SMALL_SHARDS", 1 << 30)  # shards of the same size in both, which are not merged
    for size in (FEW, MANY):
        for first, end in ((0, size - 1), (size - 1, size)):
            with CacheWriter(folder / str(size), append=True) as writer:
                for number in range(first, end):
                    latent = {"samples": torch.full((1, 2, 2, 2), float(number))}
                    writer.add(latent=latent, caption=f"a photo of thing {number}", source=f"{number:07}.png")
    patch.undo()
    return {size: folder / str(size) for size in (FEW, MANY)}


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in ((passes, "CHUNK"), (consistency, "CHUNK"), (joined, "_CHUNK")):
        monkeypatch.setattr(module, name, 1 << 9)
    for name in ("_MOST_REFS", "_MOST_KEYS"):
        monkeypatch.setattr(passes, name, 1 << 11)


def peak(job: Callable[[], object]) -> int:
    """The most memory that Python and numpy had allocated at once during a job; mapped files are not in it."""
    gc.collect()
    tracemalloc.start()
    try:
        job()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def write_again(path: Path) -> None:
    """The first file of the index, with all that is derived; it must come out as it is."""
    manifest = read_manifest(path)
    arrays, first = open_index(path, manifest).files[0], manifest.index_files[0]
    written = write_index(LocalStorage(path), "again", arrays, derived=derive(arrays, len(manifest.fields)))
    assert written == (first.bytes, first.hash)


@pytest.mark.parametrize(
    "job",
    [usage, preview_clean, lambda path: list(verify(path)), write_again],
    ids=["usage", "clean", "verify", "writing an index"],
)
def test_f3_looking_after_a_cache_takes_the_same_memory_whatever_its_size(caches, job):
    job(caches[FEW])  # what is loaded on first use does not count
    few, many = peak(lambda: job(caches[FEW])), peak(lambda: job(caches[MANY]))
    assert many < 2 * few, f"{few:,} bytes for {FEW:,} samples, {many:,} for {MANY:,}"


def test_f3_an_overview_takes_a_few_bytes_per_sample(caches):
    overview(caches[FEW])
    few, many = peak(lambda: overview(caches[FEW])), peak(lambda: overview(caches[MANY]))
    assert many - few < 24 * (MANY - FEW), f"{few:,} bytes for {FEW:,} samples, {many:,} for {MANY:,}"
