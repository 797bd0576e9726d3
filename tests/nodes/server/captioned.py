"""Caches with captions, and what a folder looks like, for the tests of pages."""

import io
from pathlib import Path

import torch
from PIL import Image

from streamcache.dataset_cache import CacheWriter, SampleFacts


def snapshot(folder: Path) -> dict[str, tuple]:
    found = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        found[path.relative_to(folder).as_posix()] = (status.st_size, status.st_mtime_ns)
    return found


def jpeg(color: tuple[int, int, int]) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (8, 8), color).save(file, "JPEG")
    return file.getvalue()


def write_captions(path: Path, captions: list[list[str]], thumbnail: bytes = b"") -> Path:
    """One sample per list of captions; latents are 8×8 or 8×16, from images of eight times that size."""
    with CacheWriter(path) as writer:
        writer.put("text", [[torch.zeros(1, 2, 4), {}]], "conditioning")
        for n, texts in enumerate(captions):
            width = 8 + 8 * (n % 2)
            keys = {"latent": [f"latent {n}"], "conditioning": ["text"] * len(texts)}
            writer.put(f"latent {n}", {"samples": torch.randn(1, 4, 8, width)}, "latent")
            if thumbnail:
                writer.put(f"thumbnail {n}", torch.frombuffer(bytearray(thumbnail), dtype=torch.uint8), "thumbnail")
                keys["thumbnail"] = [f"thumbnail {n}"]
            writer.sample(keys, SampleFacts(texts, f"Folder/IMG_{n}.png", (1000, 500), (0, 0, width * 8, 64)))
    return path
