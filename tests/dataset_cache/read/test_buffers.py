"""Memory for batches: whatever the rows look like, a batch holds what its samples hold."""

from pathlib import Path

import torch

from streamcache.dataset_cache import open_cache

from ...support.samples import same
from .small_batches import check, sample, write


def test_fresh_batches_do_not_share_memory(tmp_path: Path):
    samples = [sample(i) for i in range(4)]
    cache = open_cache(write(tmp_path / "set", samples))
    first, second = cache.read_batch([0, 1]), cache.read_batch([2, 3])
    first.latents.zero_()
    assert same(second.latents, torch.cat([s["latent"]["samples"] for s in samples[2:]]))
    assert same(second.conditionings, [s["conditioning"] for s in samples[2:]])


def test_a_larger_batch_than_the_slot_was_made_for_is_read(tmp_path: Path):
    samples = [sample(i) for i in range(6)]
    cache = open_cache(write(tmp_path / "set", samples))
    slot = cache.buffers(2)
    check(cache, samples, [0, 1, 2, 3, 4, 5], buffers=slot)
    check(cache, samples, [4, 1], buffers=slot)
