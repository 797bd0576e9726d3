"""Small caches for the tests of upkeep, and ways to damage them."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from streamcache.dataset_cache import Cache, CacheWriter, SampleFacts, open_cache
from streamcache.dataset_cache.format import LocalStorage, digest_key
from streamcache.dataset_cache.format.manifest import read_manifest, write_manifest
from streamcache.dataset_cache.index import IndexArrays, open_index, write_index

SHARED = "shared caption"


def latent(i: int) -> dict[str, Any]:
    draw = torch.Generator().manual_seed(i)
    return {"samples": torch.randn(1, 4, 8, 8 + 8 * (i % 2), generator=draw), "number": i, "note": "n" * (i % 5)}


def conditioning(text: str) -> list:
    draw = torch.Generator().manual_seed(sum(text.encode()))
    return [[torch.randn(1, 6, 16, generator=draw).half(), {"pooled_output": torch.randn(1, 8, generator=draw)}]]


def put_sample(writer: CacheWriter, i: int, group: str = "main", prefix: str = "") -> None:
    """Sample `i`: a latent of its own, two captions of which one is everybody's, a thumbnail."""
    keys = {"latent": [f"latent {i}"], "conditioning": [f"caption {i}", SHARED], "thumbnail": [f"thumbnail {i}"]}
    writer.put(keys["latent"][0], latent(i), "latent")
    for key in keys["conditioning"]:
        writer.put(key, conditioning(key), "conditioning")
    writer.put(keys["thumbnail"][0], torch.full((5, 5, 3), i, dtype=torch.uint8), "thumbnail")
    writer.sample(
        keys,
        SampleFacts(
            captions=[f"caption {i}", SHARED],
            source=f"{prefix}{i}.png",
            original_size=(100 + i, 80),
            crop=(i, 0, 64, 64),
            repeats=1 + i % 3,
            weight=0.5,
            set=group,
        ),
    )


def write_set(path: Path, samples: range | list[int], append: bool = False, **options: Any) -> Path:
    with CacheWriter(path, append=append, **options) as writer:
        writer.put("empty caption", conditioning(""), "conditioning")
        writer.name("empty caption", "empty caption")
        writer.describe_set("main", {"prior": False, "weight": 1.0})
        for i in samples:
            put_sample(writer, i)
    return path


def content(path: Path | Cache) -> list[dict[str, Any]]:
    """Everything that a reader can see of the samples, checked against the hashes."""
    cache = path if isinstance(path, Cache) else open_cache(path, check=True)
    counts = {field: cache.variants(field) for field in cache.fields}
    result = []
    for i in range(len(cache)):
        sample = cache[i].realize()
        facts = {name: getattr(sample, name) for name in ("captions", "source", "original_size", "crop", "repeats")}
        variants = {
            f"{field} {n}": plain(cache.sample(i, {field: n}).realize().fields[field])
            for field in cache.fields
            for n in range(int(counts[field][i]))
        }
        result.append({**facts, "weight": sample.weight, "set": sample.set, **variants})
    return result


def plain(value: Any) -> Any:
    """A structure whose tensors compare by value, type and shape."""
    if isinstance(value, torch.Tensor):
        return (str(value.dtype), tuple(value.shape), value.contiguous().reshape(-1).view(torch.uint8).tolist())
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(plain(item) for item in value)
    return value


def folder_bytes(path: Path) -> int:
    """The sizes of all files in the folder, as a listing shows them."""
    return sum(file.lstat().st_size for file in path.rglob("*") if not file.is_dir())


def listing(path: Path) -> dict[str, int]:
    """Every file with its size, but for leases and locks, which come and go with readers and writers."""
    files = {file.relative_to(path).as_posix(): file for file in path.rglob("*") if not file.is_dir()}
    return {name: file.stat().st_size for name, file in files.items() if not name.startswith((".leases", ".lock"))}


def flip(file: Path, at: int, bits: int = 1) -> None:
    with file.open("r+b") as stream:
        stream.seek(at)
        byte = stream.read(1)[0]
        stream.seek(at)
        stream.write(bytes([byte ^ bits]))


def blob_place(path: Path, key: str, tensor: int = 0) -> tuple[Path, int]:
    """The file and offset where a tensor of an entry starts."""
    manifest = read_manifest(path)
    arrays = open_index(path, manifest).arrays
    entry = next(n for n, k in enumerate(arrays.entries["key"]) if k.tobytes() == digest_key(key))
    location = int(arrays.refs["location"][int(arrays.entries["refs"][entry]) + tensor])
    return path / "shards" / manifest.shards[location >> 40].file, location & (1 << 40) - 1


def shard_files(path: Path, kind: str = "s") -> list[Path]:
    return [path / "shards" / s.file for s in read_manifest(path).shards if s.file.startswith(kind)]


def shard_holding(path: Path, key: str) -> Path:
    return blob_place(path, key)[0]


def copies(arrays: Any) -> dict[str, np.ndarray]:
    """The arrays of an index as private copies, to be tampered with."""
    return {name: getattr(arrays, name).copy() for name in arrays.__dataclass_fields__}


def forge(path: Path, change: Callable[[dict[str, np.ndarray]], None]) -> None:
    """Tamper with the arrays of the index and sign them as a writer would."""
    manifest = read_manifest(path)
    arrays = copies(open_index(path, manifest).arrays)
    change(arrays)
    size, digest = write_index(LocalStorage(path), "forged", IndexArrays(**arrays))
    forged = replace(manifest, index_bytes=size, index_hash=digest)
    (path / "forged").rename(path / forged.index_name)
    write_manifest(path, forged)


def core_dataset(folder: Path, count: int = 3, channels: int = 4, width: int = 8) -> Path:
    """A dataset as ComfyUI's Save Training Dataset writes it."""
    folder.mkdir(parents=True)
    latents = [{"samples": torch.full((1, channels, 2, 2), float(i))} for i in range(count)]
    pooled = torch.zeros(1, width)
    conditioning = [[[torch.full((1, 3, width), float(i)), {"pooled_output": pooled}]] for i in range(count)]
    torch.save({"latents": latents, "conditioning": conditioning}, folder / "shard_0000.pkl")
    return folder
