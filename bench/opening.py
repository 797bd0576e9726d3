"""Opening a cache of a million samples, whose index repeats that of a small real one."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from ..dataset_cache import open_cache
from ..dataset_cache.format import read_manifest
from ..dataset_cache.index import IndexArrays, open_index
from ..dataset_cache.write import publish
from .examples import EXAMPLE_BYTES
from .memory import measure_in_child
from .reading import BATCH, write_cache
from .rounds import Settings, take_turns
from .table import Figure

SMALL = 50


def measure_opening(folder: Path, settings: Settings) -> list[Figure]:
    small, large = folder / "small", folder / "large"
    write_cache(small, SMALL)
    write_cache(large, SMALL)
    enlarge(large, settings.indexed // SMALL)
    contestants = {"small": lambda _: len(open_cache(small)), "large": lambda _: len(open_cache(large))}
    times = take_turns(contestants, [[0]] * (settings.opens + 1))
    memory = measure_in_child("read", small, large, settings.visited)
    without_buffers = memory["opened"] - BATCH * EXAMPLE_BYTES
    group = f"Opening {len(open_cache(large)):,} samples (index of {index_bytes(large) / 1e6:,.0f} MB)"
    return [
        Figure(group, "opening, warm", times.median("large") * 1e3, "ms", 20.0),
        Figure(group, f"opening {SMALL} samples, warm", times.median("small") * 1e3, "ms"),
        Figure(group, "anonymous memory without the buffers", without_buffers / 1e6, "MB", 5.0),
        Figure(group, f"left by reading {settings.visited:,} samples", memory["lasting"] / 1e6, "MB", 1.0),
    ]


def enlarge(path: Path, times: int) -> None:
    """Publish a generation with each sample `times` times, as separate samples that share tensors."""
    manifest = read_manifest(path)
    larger = _repeat(open_index(path, manifest).arrays, len(manifest.fields), times)
    counts = {**manifest.counts, "samples": len(larger.samples), "entries": len(larger.entries)}
    publish(path, larger, replace(manifest, counts=counts))


def index_bytes(path: Path) -> int:
    return read_manifest(path).index_bytes


def _repeat(arrays: IndexArrays, fields: int, times: int) -> IndexArrays:
    copies = np.arange(times, dtype="<u8")
    samples = np.tile(arrays.samples, times)
    entries, refs = np.tile(arrays.entries, times), np.tile(arrays.refs, times)
    per_sample = len(arrays.samples)
    samples["variants"] += np.repeat(copies * len(arrays.variants), per_sample)
    entries["refs"] += np.repeat(copies * len(arrays.refs), len(arrays.entries))
    entries["leaves"] += np.repeat(copies * len(arrays.leaves), len(arrays.entries))
    entries["key"] = _distinct(len(entries))
    refs["hash"] = _distinct(len(refs))
    # Every sample has one variant of each field: `fields` ones, then `fields` entries.
    variants = np.tile(arrays.variants, times).reshape(-1, 2 * fields)
    variants[:, fields:] += np.repeat(copies * len(arrays.entries), per_sample)[:, None].astype("<u4")
    return replace(
        arrays,
        samples=samples,
        variants=variants.reshape(-1),
        entries=entries,
        refs=refs,
        leaves=np.tile(arrays.leaves, times),
    )


def _distinct(count: int) -> np.ndarray:
    """`count` random 16-byte values."""
    return np.frombuffer(np.random.default_rng(0).bytes(16 * count), "V16")
