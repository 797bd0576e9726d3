"""Small samples of odd sizes, and a comparison of their batches with what was stored."""

from pathlib import Path

import torch

from streamcache.dataset_cache import Cache, CacheWriter

from ...support.samples import same


def sample(i: int, width: int = 8, words: int = 3, mask: bool = True, extra: bool = False) -> dict:
    """A sample whose tensors have odd sizes, so that there is padding between them."""
    latent = {"samples": torch.full((1, 4, 8, width), float(i)), "scale": 0.5 + i}
    if extra:
        latent["noise_mask"] = torch.full((1, 5), float(-i), dtype=torch.bfloat16)
    text = torch.full((1, words, 5), 10.0 + i, dtype=torch.float16)
    fields = {"latent": latent, "conditioning": [[text, {"pooled_output": text[0, :1] + 1, "width": 64 + i}]]}
    return {**fields, "mask": torch.full((8, width), i % 2 == 0)} if mask else fields


def write(path: Path, samples: list[dict]) -> Path:
    with CacheWriter(path) as writer:
        for i, fields in enumerate(samples):
            writer.add(**fields, caption=f"caption {i}", source=f"{i}.png")
    return path


def check(cache: Cache, samples: list[dict], indices: list[int], **options: object) -> None:
    batch = cache.read_batch(indices, **options)
    assert same(batch.latents, torch.cat([samples[i]["latent"]["samples"] for i in indices]))
    for name in cache.fields:
        assert same(batch.fields[name], [samples[i].get(name) for i in indices]), name
    assert batch.captions == [f"caption {i}" for i in indices]
