"""gather: samples of several open datasets, all or some, are written to one cache unchanged, without encoding."""

from pathlib import Path

import pytest
import torch

from streamcache.dataset_cache import CacheError, CacheWriter, SampleFacts, open_cache
from streamcache.dataset_cache.read.subset import Subset
from streamcache.dataset_cache.upkeep.merge import Part, gather

from ...support.samples import assert_holds, conditioning, latent, write_cache


def test_samples_of_two_datasets_are_written_in_order(tmp_path: Path):
    first, second = (open_cache(write_cache(tmp_path / n, c, f)) for n, c, f in (("a", 4, 0), ("b", 3, 10)))
    seen = []
    generation = gather([Part(first), Part(second)], tmp_path / "both", lambda done, total: seen.append((done, total)))
    both = open_cache(tmp_path / "both", check=True)
    assert both.generation == generation
    assert_holds(both, [0, 1, 2, 3, 10, 11, 12])
    assert both.keys(5) == second.keys(1)
    assert seen == [(n, 7) for n in range(7)]


def test_a_subset_contributes_only_its_samples(tmp_path: Path):
    whole = open_cache(write_cache(tmp_path / "a", 6))
    gather([Part(Subset(whole, [5, 2]))], tmp_path / "some")
    assert_holds(open_cache(tmp_path / "some"), [5, 2])


def test_a_cache_can_be_replaced_by_a_subset_of_itself(tmp_path: Path):
    path = write_cache(tmp_path / "a", 6)
    gather([Part(Subset(open_cache(path), [1, 3]))], path)
    assert_holds(open_cache(path), [1, 3])


def test_variants_names_and_sets_are_copied(tmp_path: Path):
    with CacheWriter(tmp_path / "a") as writer:
        writer.put("l", latent(0), "latent")
        for number in range(3):
            writer.put(f"c{number}", conditioning(number), "conditioning")
        writer.put("e", conditioning(9), "conditioning")
        writer.sample(
            {"latent": ["l"], "conditioning": ["c0", "c1", "c2"]},
            SampleFacts(["x", "y", "z"], "s.png", repeats=3, set="main"),
        )
        writer.describe_set("main", {"prior": False})
        writer.name("empty caption", "e")
    gather([Part(open_cache(tmp_path / "a"))], tmp_path / "b")
    copy = open_cache(tmp_path / "b")
    assert copy.variants("conditioning").tolist() == [3]
    assert copy.captions(0) == ["x", "y", "z"]
    assert copy.sample(0, {"conditioning": 2}).conditioning[0][1]["prompt"] == "caption 2"
    assert copy.column("repeats").tolist() == [3]
    assert copy.sets == {"main": {"prior": False}}
    assert torch.equal(
        copy.entry(copy.named["empty caption"])[0][0].view(torch.uint8), conditioning(9)[0][0].view(torch.uint8)
    )


def test_weights_become_the_share_of_a_set_drawn_per_epoch(tmp_path: Path):
    parts = []
    for name, facts in (("a", {"prior": False}), ("b", {"prior": False}), ("c", {"prior": False, "samples": 10})):
        with CacheWriter(tmp_path / name) as writer:
            writer.add(latent=latent(0), conditioning=conditioning(0), source=name, set="main")
            writer.describe_set("main", facts)
        parts.append(Part(open_cache(tmp_path / name), 0.5 if name != "a" else 1.0))
    gather(parts, tmp_path / "all")
    cache = open_cache(tmp_path / "all")
    assert cache.sets == {
        "main": {"prior": False},
        "main (b)": {"prior": False, "weight": 0.5},
        "main (c)": {"prior": False, "samples": 5},
    }
    assert [sample.set for sample in cache] == ["main", "main (b)", "main (c)"]


def test_gathering_no_samples_is_refused(tmp_path: Path):
    whole = open_cache(write_cache(tmp_path / "a", 2))
    with pytest.raises(CacheError, match="no samples to save"):
        gather([Part(Subset(whole, []))], tmp_path / "b")
    assert not (tmp_path / "b").exists()
