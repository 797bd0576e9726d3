"""Counts of what samples refer to, in an index of one file and of several."""

from collections import Counter
from itertools import count
from pathlib import Path

import pytest
import torch

from streamcache.dataset_cache import CacheWriter, SampleFacts, open_cache, overview
from streamcache.dataset_cache.index import open_index, passes
from streamcache.dataset_cache.write import checked, growth

CAPTIONS = ["", "a dog", "a cat", "a cat", "", "a cat", "a bird", "a bear"]


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three runs, of which the last leaves out samples in the middle; each writes texts that are stored already."""
    for module in (checked, growth):
        monkeypatch.setattr(module, "SMALL_INDEX", 0)
    monkeypatch.setattr(passes, "CHUNK", 7)
    numbers = count()
    for samples in (40, 3):
        with CacheWriter(tmp_path / "set", append=True) as writer:
            for number in (next(numbers) for _ in range(samples)):
                add(writer, number)
    with CacheWriter(tmp_path / "set") as writer:
        assert writer.adopt_sets()
        writer.keep(0, 20)
        add(writer, next(numbers))
        writer.keep(22, 21)
    return tmp_path / "set"


def add(writer: CacheWriter, number: int) -> None:
    keys = [f"latent {number}", f"latent {number // 3}"][: 1 + number % 2]
    for key in keys:
        writer.put(key, {"samples": torch.full((1, 2, 2, 2), float(number))}, "latent")
    captions = tuple(CAPTIONS[number % 8 :][: number % 4])
    facts = SampleFacts(captions, f"{number % 5}.png", repeats=1 + number % 3, set=f"set {number % 2}")
    writer.sample({"latent": keys}, facts)


def test_every_sample_is_counted_once_whatever_file_its_row_is_in(path):
    found = overview(path)
    with open_cache(path) as cache:
        assert cache.manifest.segments and cache.manifest.runs, "this cache should have several files, with gaps"
        index = open_index(path, cache.manifest)
        facts = [SampleFacts(**index.sample_facts(i, list(cache.sets))) for i in range(len(cache))]
    captions = Counter(caption for each in facts for caption in each.captions)
    assert found.captions == captions.total() and found.captions_empty == captions[""] > 0
    assert dict(found.captions_common) == dict(captions) and found.captions_common == captions.most_common()
    assert found.set_samples == Counter(each.set for each in facts)
    assert found.epoch == sum(each.repeats for each in facts) and found.samples == len(facts)
    (latents,) = found.fields
    assert found.bytes_unshared == latents.bytes == 32 * latents.variants
    assert found.bytes_shared <= 32 * latents.entries <= found.bytes_unshared
