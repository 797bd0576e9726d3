"""Writing a cache, against `save_file` and against a plain sequential write of the same bytes, all with fsync."""

import os
import shutil
from pathlib import Path

from safetensors.torch import save_file

from ..dataset_cache import CacheWriter
from .examples import CONDITIONING_BYTES, EXAMPLE_BYTES, LATENT_BYTES, Example, make_examples
from .memory import measure_in_child
from .reading import add_example, write_cache
from .rounds import Settings, take_turns
from .table import Figure

CACHE, SAVE_FILE, PLAIN = "a cache, published", "safetensors.save_file + fsync", "plain sequential write + fsync"


def measure_writing(folder: Path, settings: Settings) -> list[Figure]:
    examples = list(make_examples(settings.written))
    target = folder / "target"

    def clear() -> None:
        shutil.rmtree(target)
        target.mkdir()
        os.sync()

    target.mkdir()
    contestants = {
        CACHE: lambda _: _write_cache(target / "cache", examples),
        SAVE_FILE: lambda _: _save_file(target / "all.safetensors", examples),
        PLAIN: lambda _: _write_plain(target / "all.bin", examples),
    }
    times = take_turns(contestants, [[0]] * (settings.write_rounds + 1), between=clear)
    megabytes = settings.written * EXAMPLE_BYTES / 1e6
    group = f"Writing {settings.written} samples ({megabytes:,.0f} MB)"
    fewer = settings.written // 4
    peak, peak_of_fewer = (measure_in_child("write", count)["peak"] for count in (settings.written, fewer))
    growth = (peak - peak_of_fewer) / (settings.written - fewer)
    return [
        *(Figure(group, name, megabytes / times.median(name), "MB/s") for name in contestants),
        Figure(group, f"{CACHE}, against save_file", times.ratio(CACHE, SAVE_FILE), "×", 1.2),
        Figure(group, f"{CACHE}, against a plain write", times.ratio(CACHE, PLAIN), "×"),
        Figure(group, f"peak memory above the start, {fewer} samples", peak_of_fewer / 1e6, "MB", 5.0),
        Figure(group, "peak memory per additional sample", growth / 1e3, "KB", note="its rows in the index"),
    ]


def measure_sharing(folder: Path, settings: Settings) -> list[Figure]:
    """Bytes on disk if captions repeat."""
    samples, captions = settings.shared_samples, settings.shared_captions
    write_cache(folder / "cache", samples, captions)
    used = sum(path.stat().st_size for path in (folder / "cache").rglob("*") if path.is_file())
    needed = samples * LATENT_BYTES + captions * CONDITIONING_BYTES
    group = f"Bytes on disk ({samples:,} samples, {captions} captions)"
    return [
        Figure(group, "the cache", used / 1e6, "MB", note=f"{samples * EXAMPLE_BYTES / 1e6:,.0f} MB without sharing"),
        Figure(group, "against latents + distinct conditionings", used / needed, "×", 1.03),
    ]


def _write_cache(path: Path, examples: list[Example]) -> None:
    with CacheWriter(path) as writer:
        for example in examples:
            add_example(writer, example)


def _save_file(path: Path, examples: list[Example]) -> None:
    tensors = {}
    for e in examples:
        tensors |= {f"{e.number}.latent": e.latent, f"{e.number}.text": e.text, f"{e.number}.pooled": e.pooled}
    save_file(tensors, path)
    with open(path, "rb+") as file:
        os.fsync(file.fileno())


def _write_plain(path: Path, examples: list[Example]) -> None:
    with open(path, "wb", buffering=0) as file:
        for e in examples:
            for tensor in (e.latent, e.text, e.pooled):
                file.write(memoryview(tensor.numpy()).cast("B"))
        os.fsync(file.fileno())
