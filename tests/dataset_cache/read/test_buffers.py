"""Memory for batches: whatever the rows look like, a batch holds what its samples hold."""

from pathlib import Path

import pytest
import torch

from streamcache.dataset_cache import Cache, CacheError, CacheWriter, open_cache


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


def same(found: object, expected: object) -> bool:
    """Equal in structure, type and bits."""
    if isinstance(expected, torch.Tensor):
        return isinstance(found, torch.Tensor) and found.dtype == expected.dtype and torch.equal(found, expected)
    if isinstance(expected, dict):
        return list(found) == list(expected) and all(same(found[key], expected[key]) for key in expected)
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(same, found, expected))
    return type(found) is type(expected) and found == expected


def check(cache: Cache, samples: list[dict], indices: list[int], **options: object) -> None:
    batch = cache.read_batch(indices, **options)
    assert same(batch.latents, torch.cat([samples[i]["latent"]["samples"] for i in indices]))
    for name in cache.fields:
        assert same(batch.fields[name], [samples[i].get(name) for i in indices]), name
    assert batch.captions == [f"caption {i}" for i in indices]


@pytest.mark.parametrize("checked", [False, True])
@pytest.mark.parametrize(
    "samples",
    [
        [sample(i) for i in range(6)],
        [sample(i, words=2 + i % 3) for i in range(6)],
        [sample(i, mask=i % 2 == 0) for i in range(6)],
        [sample(i, extra=i % 3 == 0) for i in range(6)],
        [{**sample(i), "conditioning": sample(0)["conditioning"]} for i in range(6)],
    ],
    ids=["alike", "texts differ in length", "some lack a field", "latents differ in layout", "captions repeat"],
)
def test_a_batch_contains_the_data_of_its_samples(samples: list[dict], checked: bool, tmp_path: Path):
    cache = open_cache(write(tmp_path / "set", samples), check=checked)
    slot = cache.buffers(4)
    for indices in ([0, 1, 2, 3], [5, 0, 4], [2], [3, 3, 1, 0]):
        check(cache, samples, indices)
        check(cache, samples, indices, buffers=slot)


def test_fresh_batches_do_not_share_memory(tmp_path: Path):
    samples = [sample(i) for i in range(4)]
    cache = open_cache(write(tmp_path / "set", samples))
    first, second = cache.read_batch([0, 1]), cache.read_batch([2, 3])
    first.latents.zero_()
    assert same(second.latents, torch.cat([s["latent"]["samples"] for s in samples[2:]]))
    assert same(second.conditionings, [s["conditioning"] for s in samples[2:]])


def test_the_latents_of_a_batch_and_of_its_fields_are_the_same_memory(tmp_path: Path):
    cache = open_cache(write(tmp_path / "set", [sample(i) for i in range(2)]))
    batch = cache.read_batch([0, 1])
    batch.latents[1] = 7
    assert (batch.fields["latent"][1]["samples"] == 7).all()


def test_a_larger_batch_than_the_slot_was_made_for_is_read(tmp_path: Path):
    samples = [sample(i) for i in range(6)]
    cache = open_cache(write(tmp_path / "set", samples))
    slot = cache.buffers(2)
    check(cache, samples, [0, 1, 2, 3, 4, 5], buffers=slot)
    check(cache, samples, [4, 1], buffers=slot)


def test_fields_are_built_when_they_are_looked_at(tmp_path: Path):
    cache = open_cache(write(tmp_path / "set", [sample(0)]))
    batch = cache.read_batch([0], fields=["latent", "mask"])
    assert list(batch.fields) == ["latent", "mask"]
    assert "conditioning" not in batch.fields
    assert batch.conditionings == []
    assert batch.fields["mask"] is batch.fields["mask"]


def test_samples_of_different_buckets_are_refused(tmp_path: Path):
    cache = open_cache(write(tmp_path / "set", [sample(0), sample(1, width=16)]))
    with pytest.raises(CacheError, match="2 different buckets"):
        cache.read_batch([0, 1])
