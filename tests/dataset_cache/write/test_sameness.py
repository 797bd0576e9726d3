"""The same samples published again are the same generation, however the index came about."""

from pathlib import Path
from typing import Any

import pytest

from streamcache.dataset_cache import CacheWriter, SampleFacts, open_cache, read_manifest
from streamcache.dataset_cache.upkeep import verify
from streamcache.dataset_cache.write import checked, growth

from ...support.datasets import SHARED, content, put_sample, write_set


@pytest.fixture(params=["in one file", "in several files"])
def grown(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Twelve samples, some of which were added later, with texts that earlier ones have too."""
    if request.param == "in several files":
        monkeypatch.setattr(checked, "SMALL_INDEX", 0)
        monkeypatch.setattr(growth, "SMALL_INDEX", 0)
        monkeypatch.setattr(growth, "_file_size", lambda arrays, fields: 0)  # nothing is taken in
    path = write_set(tmp_path / "set", range(8))
    for i in range(8, 12):
        write_set(path, [i], append=True)
    assert bool(read_manifest(path).segments) == (request.param == "in several files")
    return path


def test_the_same_samples_in_a_new_list_are_the_same_generation(grown):
    before, files = read_manifest(grown), sorted(grown.iterdir())
    write_set(grown, range(12))
    assert read_manifest(grown) == before and sorted(grown.iterdir()) == files and list(verify(grown)) == []


def test_samples_that_took_the_place_of_others_and_came_again_are_the_same_generation(grown):
    with CacheWriter(grown) as w:
        assert w.adopt_sets()
        w.keep(0, 3)
        put_sample(w, 20)
        w.keep(4, 8)
        w.name("empty caption", "empty caption")
    before = read_manifest(grown)
    write_set(grown, [0, 1, 2, 20, *range(4, 12)])
    assert read_manifest(grown) == before


@pytest.mark.parametrize(
    "change",
    [
        {"captions": ["caption 10", SHARED]},
        {"source": "other.png"},
        {"crop": (0, 0, 64, 64)},
        {"weight": 0.25},
        {"set": "second"},
    ],
)
def test_a_sample_that_differs_in_anything_makes_another_generation(grown, change):
    def again(change: dict[str, Any]) -> str:
        with CacheWriter(grown) as w:
            for name in ("main", "second"):
                w.describe_set(name, {})
            for i in range(12):
                facts = facts_of(i) | (change if i == 11 else {})
                keys = {"latent": [f"latent {i}"], "conditioning": [f"caption {i}", SHARED]}
                w.sample(keys, SampleFacts(**facts))
        return read_manifest(grown).generation

    before = again({})
    assert again({}) == before != again(change)
    expected = change.get("captions", facts_of(11)["captions"])
    assert open_cache(grown).sample(11).captions == tuple(expected) and list(verify(grown)) == []


def facts_of(i: int) -> dict[str, Any]:
    return {"captions": [f"caption {i}", SHARED], "source": f"{i}.png", "crop": (i, 0, 64, 64), "set": "main"}


def test_another_order_or_entry_makes_another_generation(grown):
    before = read_manifest(grown).generation
    found = {before}
    for order in ([*range(10), 11, 10], [*range(11), 10], range(11)):
        write_set(grown, list(order))
        found.add(read_manifest(grown).generation)
        assert [each["source"] for each in content(grown)] == [f"{i}.png" for i in order]
    assert len(found) == 4
