"""merge and gather: caches, or samples of open datasets, become one cache, unchanged and without encoding."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from streamcache.dataset_cache import CacheError, CacheWriter, Codec, SampleFacts, open_cache, register_codec
from streamcache.dataset_cache.format import tensors
from streamcache.dataset_cache.read.subset import Subset
from streamcache.dataset_cache.upkeep import merge, verify
from streamcache.dataset_cache.upkeep.gather import Part, gather

from ...support import samples
from ...support.datasets import (
    blob_place,
    conditioning,
    content,
    flip,
    latent,
    plain,
    put_sample,
    shard_files,
    write_set,
)

pytestmark = pytest.mark.usefixtures("platform")


@pytest.fixture
def sources(tmp_path: Path) -> list[Path]:
    return [
        write_set(tmp_path / "one ünï", range(4), provenance={"vae": "A", "clip": "B"}),
        write_set(tmp_path / "two", range(4, 7), provenance={"vae": "A", "clip": "C"}),
    ]


def stored_names(path: Path) -> list[str]:
    """The hashes of everything that is stored, each as often as it is."""
    names = [name for file in shard_files(path) for name in load_file(file)]
    return sorted(name for name in names if not name.startswith("~pad"))


def test_merged_samples_are_unchanged(sources: list[Path], tmp_path: Path):
    steps: list[tuple[int, int]] = []
    report = merge(sources, tmp_path / "all", lambda *step: steps.append(step))
    assert (report.samples, report.repeated, report.renamed) == (7, 0, ())
    assert content(tmp_path / "all") == content(sources[0]) + content(sources[1])
    assert list(verify(tmp_path / "all")) == [] and steps[-1] == (7, 7)


def test_entries_shared_by_several_caches_are_stored_once(sources: list[Path], tmp_path: Path):
    merge(sources, tmp_path / "all")
    together = write_set(tmp_path / "together", range(7))
    assert stored_names(tmp_path / "all") == stored_names(together)


def test_f3_shards_that_are_needed_as_a_whole_are_not_packed_again(tmp_path: Path):
    one, two = write_set(tmp_path / "one", range(4)), tmp_path / "two"
    with CacheWriter(two) as writer:
        writer.add(latent=latent(9), source="9.png")
    merge([one, two], tmp_path / "all")
    files = {file.name for path in (one, two) for kind in "st" for file in shard_files(path, kind)}
    assert {file.name for kind in "st" for file in shard_files(tmp_path / "all", kind)} == files


def test_duplicate_samples_are_skipped(tmp_path: Path):
    one, two = write_set(tmp_path / "one", range(4)), write_set(tmp_path / "two", range(2, 6))
    report = merge([one, two], tmp_path / "all")
    assert (report.samples, report.repeated) == (6, 2)
    assert content(tmp_path / "all") == content(write_set(tmp_path / "both", range(6)))


def test_a_sample_listed_twice_in_one_cache_is_kept_twice(tmp_path: Path):
    source = write_set(tmp_path / "one", [1, 1, 2])
    assert merge([source], tmp_path / "all").samples == 3


def test_entries_are_found_by_key_afterwards(sources: list[Path], tmp_path: Path):
    merge(sources, tmp_path / "all")
    cache = open_cache(tmp_path / "all")
    assert all(cache.has(f"latent {i}") for i in range(7))
    assert plain(cache.entry("latent 5")) == plain(latent(5))


def test_a21_provenance_has_what_all_agree_on_and_each_source(sources: list[Path], tmp_path: Path):
    merge(sources, tmp_path / "all")
    provenance = open_cache(tmp_path / "all").provenance
    assert provenance["vae"] == "A" and "clip" not in provenance
    assert [said["provenance"]["clip"] for said in provenance["merged"]] == ["B", "C"]
    assert [said["id"] for said in provenance["merged"]] == [open_cache(source).id for source in sources]


def test_conflicting_names_are_renamed(sources: list[Path], tmp_path: Path):
    for number in range(2):
        with CacheWriter(tmp_path / f"other{number}" / "two") as writer:
            writer.put(f"nothing {number}", conditioning(f"nothing {number}"), "conditioning")
            writer.name("empty caption", f"nothing {number}")
            writer.describe_set("main", {"prior": True})
            put_sample(writer, 8 + number)
            put_sample(writer, 18 + number, group="extra")
    report = merge([*sources, *(tmp_path / f"other{n}" / "two" for n in range(2))], tmp_path / "all")
    cache = open_cache(tmp_path / "all")
    assert set(cache.named) == {"empty caption", "empty caption (two)", "empty caption (two 2)"}
    assert plain(cache.entry(cache.named["empty caption"])) == plain(conditioning(""))
    assert plain(cache.entry(cache.named["empty caption (two)"])) == plain(conditioning("nothing 0"))
    assert list(cache.sets) == ["main", "main (two)", "extra", "main (two 2)"] and cache.sets["main"]["prior"] is False
    assert [cache[i].set for i in range(7, 11)] == ["main (two)", "extra", "main (two 2)", "extra"]
    assert set(report.renamed) == {*list(cache.sets)[1::2], *list(cache.named)[1:]}


def test_unused_entries_are_left_behind(sources: list[Path], tmp_path: Path):
    write_set(sources[0], range(2))
    merge(sources, tmp_path / "all")
    assert not open_cache(tmp_path / "all").has("latent 3")


def test_types_without_a_codec_are_copied(tmp_path: Path):
    class Nested:
        def __init__(self, parts: list) -> None:
            self.parts = parts

    codec = Codec("a host's own", Nested, lambda value: value.parts, Nested)
    register_codec(codec)
    with CacheWriter(tmp_path / "one") as writer:
        writer.add(latent=latent(0), special=Nested([torch.arange(3), "x"]))
    del tensors._by_name[codec.name], tensors._by_type[codec.type]
    merge([tmp_path / "one"], tmp_path / "all")
    with pytest.raises(CacheError, match="a host's own"):
        open_cache(tmp_path / "all")[0].fields["special"]
    register_codec(codec)
    try:
        assert open_cache(tmp_path / "all")[0].realize().fields["special"].parts[0].tolist() == [0, 1, 2]
    finally:
        del tensors._by_name[codec.name], tensors._by_type[codec.type]


def test_different_shapes_and_fields_are_merged(sources: list[Path], tmp_path: Path):
    with CacheWriter(tmp_path / "video") as writer:
        writer.add(latent={"samples": torch.ones(1, 4, 4, 4).bfloat16()}, mask=torch.zeros(4, 4), source="v")
    merge([*sources, tmp_path / "video"], tmp_path / "all")
    cache = open_cache(tmp_path / "all")
    assert len(cache.buckets()) == 3 and cache.variants("mask").tolist() == [0] * 7 + [1]
    assert content(tmp_path / "all")[:4] == content(sources[0])


def test_damage_is_not_copied(sources: list[Path], tmp_path: Path):
    flip(*blob_place(sources[1], "latent 5"))
    with pytest.raises(CacheError, match="is damaged at .* verify --repair"):
        merge(sources, tmp_path / "all")
    with pytest.raises(CacheError, match="was never finished"):
        open_cache(tmp_path / "all")
    flip(*blob_place(sources[1], "latent 5"))
    assert merge(sources, tmp_path / "all").samples == 7
    assert list(verify(tmp_path / "all")) == []


def test_an_existing_cache_as_destination_is_refused(sources: list[Path], tmp_path: Path):
    with pytest.raises(CacheError, match="already contains a cache"):
        merge(sources, write_set(tmp_path / "there", range(1)))
    with pytest.raises(CacheError, match="at least one"):
        merge([], tmp_path / "all")
    with pytest.raises(CacheError, match="no such cache"):
        merge([tmp_path / "nowhere"], tmp_path / "all")


@pytest.mark.parametrize("if_exists", ["refuse", "update"])
def test_a_cache_is_not_merged_into_itself(sources: list[Path], tmp_path: Path, if_exists: str):
    target = merge(sources, tmp_path / "all").destination
    before = content(target)
    for again in (target, tmp_path / "." / "one ünï" / ".." / "all"):
        with pytest.raises(CacheError, match="all: the samples come from this cache"):
            merge([*sources, target], again, if_exists=if_exists)
    assert content(target) == before


def test_a_merge_is_repeated_only_if_that_is_asked_for(sources: list[Path], tmp_path: Path):
    merge(sources[:1], tmp_path / "all")
    with pytest.raises(CacheError, match="already contains a cache"):
        merge(sources, tmp_path / "all")
    assert merge(sources, tmp_path / "all", if_exists="update").samples == 7
    assert content(tmp_path / "all") == content(sources[0]) + content(sources[1])
    with pytest.raises(CacheError, match="expected one of update, refuse"):
        merge(sources, tmp_path / "all", if_exists="overwrite")


def test_a_cache_that_was_not_made_by_merging_is_never_replaced(sources: list[Path], tmp_path: Path):
    other = write_set(tmp_path / "other", range(2))
    before = content(other)
    with pytest.raises(CacheError, match="is not a merge"):
        merge(sources, other, if_exists="update")
    assert content(other) == before


def test_a_saved_selection_is_never_replaced_by_a_merge(sources: list[Path], tmp_path: Path):
    merge(sources, tmp_path / "all")
    for name in ("all", "two"):
        gather([Part(Subset(open_cache(tmp_path / name), [0, 1]))], tmp_path / "best")
        before = content(tmp_path / "best")
        with pytest.raises(CacheError, match="is not a merge"):
            merge(sources, tmp_path / "best", if_exists="update")
        assert content(tmp_path / "best") == before


def test_a_merge_of_open_datasets_can_be_repeated(sources: list[Path], tmp_path: Path):
    gather([Part(open_cache(sources[0]))], tmp_path / "copy")
    gather([Part(open_cache(tmp_path / "copy"))], tmp_path / "one", merged=True)
    gather([Part(open_cache(path)) for path in sources], tmp_path / "as before")  # how older versions recorded it
    for name in ("one", "as before"):
        assert merge(sources, tmp_path / name, if_exists="update").samples == 7


# gather


def test_samples_of_two_datasets_are_written_in_order(tmp_path: Path):
    first, second = (open_cache(samples.write_cache(tmp_path / n, c, f)) for n, c, f in (("a", 4, 0), ("b", 3, 10)))
    seen = []
    generation = gather([Part(first), Part(second)], tmp_path / "both", lambda done, total: seen.append((done, total)))
    both = open_cache(tmp_path / "both", check=True)
    assert both.generation == generation
    samples.assert_holds(both, [0, 1, 2, 3, 10, 11, 12])
    assert both.keys(5) == second.keys(1)
    assert seen == [(n, 7) for n in range(7)]


def test_a_subset_contributes_only_its_samples(tmp_path: Path):
    whole = open_cache(samples.write_cache(tmp_path / "a", 6))
    gather([Part(Subset(whole, [5, 2]))], tmp_path / "some")
    samples.assert_holds(open_cache(tmp_path / "some"), [5, 2])


def test_a_selection_never_replaces_the_cache_that_it_was_chosen_from(tmp_path: Path):
    encoded = samples.write_cache(tmp_path / "a", 6)
    gather([Part(open_cache(encoded))], tmp_path / "copy")
    link = tmp_path / "link"
    link.symlink_to(encoded, target_is_directory=True)
    for path, target in ((encoded, encoded), (encoded, link), (tmp_path / "copy", tmp_path / "copy")):
        with pytest.raises(CacheError, match=f"{target.name}: the samples come from this cache; choose another name"):
            gather([Part(Subset(open_cache(path), [1, 3]))], target)
        samples.assert_holds(open_cache(path), range(6))
    with pytest.raises(CacheError, match="a: the samples come from this cache"):
        gather([Part(open_cache(encoded)), Part(open_cache(tmp_path / "copy"))], encoded, merged=True)


def test_a_copy_replaces_only_a_copy(sources: list[Path], tmp_path: Path):
    whole = open_cache(sources[0])
    merge(sources, tmp_path / "merged")
    for other in (sources[1], tmp_path / "merged"):
        before = content(other)
        with pytest.raises(CacheError, match=f"{other.name}: exists and is not a copy"):
            gather([Part(Subset(whole, [1]))], other)
        assert content(other) == before


def test_a_selection_can_be_saved_again(sources: list[Path], tmp_path: Path):
    whole, best = open_cache(sources[0]), tmp_path / "best"
    for chosen in ([0, 1], [3], [2, 1, 0]):
        gather([Part(Subset(whole, chosen))], best)
        assert content(best) == [content(sources[0])[number] for number in chosen]
    gather([Part(Subset(open_cache(best), [0]))], tmp_path / "better")  # a selection of a copy, and that one again
    gather([Part(Subset(open_cache(best), [1]))], tmp_path / "better")
    assert content(tmp_path / "better") == content(best)[1:2]


def test_variants_names_and_sets_are_copied(tmp_path: Path):
    with CacheWriter(tmp_path / "a") as writer:
        writer.put("l", samples.latent(0), "latent")
        for number in range(3):
            writer.put(f"c{number}", samples.conditioning(number), "conditioning")
        writer.put("e", samples.conditioning(9), "conditioning")
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
        copy.entry(copy.named["empty caption"])[0][0].view(torch.uint8), samples.conditioning(9)[0][0].view(torch.uint8)
    )


def test_weights_become_the_share_of_a_set_drawn_per_epoch(tmp_path: Path):
    parts = []
    for name, facts in (("a", {"prior": False}), ("b", {"prior": False}), ("c", {"prior": False, "samples": 10})):
        with CacheWriter(tmp_path / name) as writer:
            writer.add(latent=samples.latent(0), conditioning=samples.conditioning(0), source=name, set="main")
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
    whole = open_cache(samples.write_cache(tmp_path / "a", 2))
    with pytest.raises(CacheError, match="no samples to save"):
        gather([Part(Subset(whole, []))], tmp_path / "b")
    assert not (tmp_path / "b").exists()
