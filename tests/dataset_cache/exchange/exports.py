"""Caches with everything that a cache can hold, and the comparison of two of them."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from streamcache.dataset_cache import Cache, CacheWriter, SampleFacts, open_cache, verify
from streamcache.dataset_cache.format import Split, untrim
from streamcache.dataset_cache.format.tensors import DTYPES

from ...support.samples import BUCKETS, bits, latent, same, sample


def write_rich_cache(path: Path, count: int = 6) -> Path:
    """Variants, sets, named entries, further fields, every type, odd texts and every kind of leaf."""
    with CacheWriter(path, provenance={"made by": "a test", "list": [1, None]}) as writer:
        writer.describe_set("prior", {"prior": True, "samples": 3})
        for i in range(count):
            odd: dict[str, Any] = {
                "int": i,
                "big": 1 << 100,
                "text": "caption \ud83d and ü",
                "bytes": b"\0\xff",
                "pair": (1, [2.5, None, True]),
                3: np.float32(0.1),
                "empty": torch.zeros(0, 3),
                "twice": (shared := bits((2, 3), seed=i)),
                "again": shared,
            }
            writer.put(
                f"latent {i}", {**latent(i), "types": {n: bits((4,), t, i) for n, t in DTYPES.items()}}, "latent"
            )
            writer.put(f"flip {i}", latent(100 + i, BUCKETS[i % 3]), "latent")
            writer.put(f"words {i}", [[bits((1, 5, 16), torch.bfloat16, i), odd]], "conditioning")
            writer.put("shared words", [[bits((1, 5, 16), torch.float8_e4m3fn, 99), {}]], "conditioning")
            writer.put(f"weights {i}", bits((1, 8, 8), torch.float16, i), "mask")
            writer.put(f"{i} is odd/name", torch.arange(i + 1), "source")
            fields = {
                "latent": [f"latent {i}", f"flip {i}"][: 1 + i % 2],
                "conditioning": [f"words {i}", "shared words"],
                "mask": [f"weights {i}"],
                "source": [f"{i} is odd/name"],
            }
            captions = (f"a caption \ud800 {i}", "b\nc")
            facts = SampleFacts(
                captions, f"folder/{i} ü.png", (640, 480 + i), (i, 0, 64, 64), i % 3, 0.3, ("", "prior")[i % 2]
            )
            writer.sample(fields, facts)
        writer.name("empty", "shared words")
    return path


def write_plain_cache(path: Path, count: int = 7) -> Path:
    with CacheWriter(path) as writer:
        for i in range(count):
            writer.add(**sample(i), mask=bits((1, 8, 8), seed=i))
    return path


def whole(cache: Cache, key: bytes) -> Split:
    """An entry without needing its codecs, however it is stored."""
    return untrim(cache.stored_entry(key)[1])


def assert_equal(one: Path, other: Path) -> None:
    """Two caches with the same samples, entries, keys, sets, names and provenance, both intact."""
    with open_cache(one, check=True) as a, open_cache(other, check=True) as b:
        assert (len(a), a.fields, a.provenance, a.named) == (len(b), b.fields, b.provenance, b.named)
        assert dict(a.sets) == dict(b.sets) and list(a.sets) == list(b.sets)
        for i in range(len(a)):
            assert (a.keys(i), a.captions(i)) == (b.keys(i), b.captions(i))
            first, second = a[i], b[i]
            for name in ("source", "original_size", "crop", "repeats", "weight", "set", "caption"):
                assert getattr(first, name) == getattr(second, name), name
            for field in a.fields:
                for variant in range(int(a.variants(field)[i])):
                    assert same(
                        a.sample(i, {field: variant}).realize().fields[field],
                        b.sample(i, {field: variant}).realize().fields[field],
                    ), f"{field} {variant} of sample {i}"
        assert all(same(whole(a, key).tensors, whole(b, key).tensors) for key in a.named.values())
        assert list(a.buckets()) == list(b.buckets())
    assert list(verify(other)) == []
