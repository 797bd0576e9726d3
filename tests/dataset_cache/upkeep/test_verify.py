"""verify reports damaged and missing data, down to the sample, and debris; repair keeps all intact data."""

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from streamcache.dataset_cache import CacheBusy, CacheError, CacheWriter, Problem, open_cache
from streamcache.dataset_cache.format import digest_key, dropped_keys
from streamcache.dataset_cache.format.manifest import read_manifest
from streamcache.dataset_cache.upkeep import repair, verify

from ...support.datasets import (
    SHARED,
    blob_place,
    content,
    flip,
    forge,
    latent,
    listing,
    put_sample,
    shard_files,
    write_set,
)

pytestmark = pytest.mark.usefixtures("platform")


def check(path: Path, kind: str | None = None) -> list[Problem]:
    return [problem for problem in verify(path) if kind in (None, problem.kind)]


def samples(problems: list[Problem]) -> set[int | None]:
    return {problem.sample for problem in problems}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_set(tmp_path / "my set ünï", range(5))


def test_an_intact_cache_has_no_problems(path: Path):
    before = listing(path)
    steps: list[tuple[int, int]] = []
    assert list(verify(path, lambda *step: steps.append(step))) == []
    assert steps[-1][0] == steps[-1][1] > 0
    assert listing(path) == before


def test_an_empty_cache_has_no_problems(tmp_path: Path):
    CacheWriter(tmp_path / "set").__exit__(None, None, None)
    assert check(tmp_path / "set") == []


def test_a_flipped_byte_names_the_sample_and_its_source(path: Path):
    file, offset = blob_place(path, "latent 3")
    flip(file, offset + 100)
    (problem,) = check(path)
    assert (problem.kind, problem.sample, problem.source) == ("damaged", 3, "3.png")
    assert file.name in problem.place and "latent" in problem.what
    assert "3.png" in str(problem)


def test_a_damaged_blob_names_every_sample_that_shares_it(path: Path):
    flip(*blob_place(path, SHARED, 1))
    problems = check(path)
    assert samples(problems) == set(range(5)) and len(problems) == 5
    assert {problem.what.split(":")[0] for problem in problems} == {"conditioning"}


def test_damaged_named_and_unused_entries_are_reported_separately(path: Path):
    write_set(path, range(3))
    flip(*blob_place(path, "empty caption"))
    flip(*blob_place(path, "latent 4"))
    named, unused = sorted(check(path), key=lambda problem: "unused" in problem.what)
    assert "'empty caption'" in named.what and "unused entry (latent" in unused.what


def test_any_flipped_byte_of_a_payload_is_found(path: Path):
    draw = random.Random(1)
    places = [blob_place(path, f"latent {i}") for i in range(5)]
    for _ in range(20):
        file, offset = draw.choice(places)
        at, bits = offset + draw.randrange(1024), 1 << draw.randrange(8)
        flip(file, at, bits)
        assert check(path), (file, at)
        flip(file, at, bits)
    assert check(path) == []


def test_a_deleted_shard_is_missing_and_names_the_samples_lost(path: Path):
    file = shard_files(path)[0]
    file.unlink()
    problems = check(path)
    assert {problem.kind for problem in problems} == {"missing"}
    assert problems[0].place == f"shards/{file.name}" and problems[0].sample is None
    assert samples(problems[1:]) >= set(range(5))


def test_a_truncated_shard_loses_only_the_data_after_the_cut(path: Path):
    file, offset = blob_place(path, "latent 2")
    os.truncate(file, offset + 10)
    problems = check(path)
    assert "bytes" in problems[0].what
    # The shared caption was stored with sample 0, so samples before the cut are whole.
    assert samples(problems[1:]) == {2, 3, 4}


def test_an_emptied_shard_is_damaged(path: Path):
    os.truncate(shard_files(path)[0], 0)
    assert samples(check(path, "damaged")) >= set(range(5))


def test_a_flipped_header_damages_the_file_but_no_sample(path: Path):
    flip(shard_files(path)[0], 40)
    (problem,) = check(path)
    assert "header" in problem.what and problem.sample is None


def test_swapped_shards_are_distinguished_from_damaged_ones(path: Path):
    data, thumbnails = shard_files(path)[0], shard_files(path, "t")[0]
    aside = path / "aside"
    data.rename(aside)
    thumbnails.rename(data)
    aside.rename(thumbnails)
    told = [problem for problem in check(path, "damaged") if "contains the data of" in problem.what]
    assert [problem.place for problem in told] == [f"shards/{data.name}", f"shards/{thumbnails.name}"]
    assert thumbnails.name in told[0].what and data.name in told[1].what


def test_a_shard_that_became_a_link_or_folder_is_damaged(path: Path, tmp_path: Path):
    file = shard_files(path)[0]
    file.rename(tmp_path / "elsewhere")
    file.mkdir()
    assert check(path, "damaged")
    file.rmdir()
    os.symlink(tmp_path / "elsewhere", file)
    assert "symbolic link" in check(path)[0].what


@pytest.mark.parametrize(
    "damage", [lambda f: flip(f, 2000), lambda f: os.truncate(f, 100), lambda f: os.truncate(f, 0)]
)
def test_a_damaged_index_is_named(path: Path, damage: Callable[[Path], None]):
    index = path / read_manifest(path).index_name
    damage(index)
    (problem,) = check(path)
    assert (problem.kind, problem.place) == ("damaged", index.name)


def test_a_missing_index_is_named(path: Path):
    index = path / read_manifest(path).index_name
    index.unlink()
    (problem,) = check(path)
    assert (problem.kind, problem.place) == ("missing", index.name)


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[]", b'{"format": 1}', b'{"format": 99}', b"\xff\xfe", b"[" * 100_000, b'{"format": "1"}']
)
def test_a_damaged_manifest_is_named(path: Path, text: bytes):
    (path / "dataset.json").write_bytes(text)
    (problem,) = check(path)
    assert (problem.kind, problem.place) == ("damaged", "dataset.json")


def test_a_changed_manifest_is_named(path: Path):
    manifest = path / "dataset.json"
    manifest.write_bytes(manifest.read_bytes().replace(b'"samples": 5', b'"samples": 4'))
    assert "edited after it was written" in check(path)[0].what


def test_a_missing_manifest_is_named_and_a_missing_folder_refused(path: Path, tmp_path: Path):
    (path / "dataset.json").unlink()
    assert check(path, "missing")[0].place == "dataset.json"
    with pytest.raises(CacheError, match="no such cache"):
        list(verify(tmp_path / "nowhere"))


def test_files_of_a_killed_publisher_are_debris(path: Path):
    (path / ".index.123.tmp").write_bytes(b"12345")
    (path / ".build" / "compact-00aa").mkdir(parents=True)
    (path / ".build" / "compact-00aa" / "0").write_bytes(b"123")
    stray = path / "shards" / f"s-00099-{'0' * 32}.safetensors"
    stray.write_bytes(b"1234567")
    places = {problem.place for problem in check(path, "debris")}
    assert {".index.123.tmp", ".build/compact-00aa/0", f"shards/{stray.name}"} <= places


def test_files_of_the_user_are_not_debris(path: Path):
    for name in ("notes.txt", "shards/preview.png", "index-old.safetensors", ".hidden"):
        (path / name).write_bytes(b"mine")
    assert check(path) == []


def test_an_unfinished_build_is_not_debris(path: Path):
    writer = CacheWriter(path)
    put_sample(writer, 7)
    writer.flush()
    assert check(path) == []  # while it is written
    writer.close()
    assert check(path) == []  # and while it waits to be taken over


def test_an_older_generation_in_use_is_not_debris(path: Path):
    reader = open_cache(path)
    write_set(path, [1])
    assert check(path) == []
    assert len(reader) == 5


Tamper = Callable[[dict[str, np.ndarray]], Any]
LIES: dict[str, Tamper] = {
    "layout": lambda a: a["entries"]["layout"].__setitem__(0, 99),
    "field": lambda a: a["entries"]["field"].__setitem__(0, 99),
    "refs": lambda a: a["entries"]["refs"].__setitem__(1, 1 << 60),
    "leaves": lambda a: a["entries"]["leaves"].__setitem__(1, 1 << 60),
    "shard": lambda a: a["refs"]["location"].__setitem__(0, 999 << 40),
    "offset": lambda a: a["refs"]["location"].__setitem__(0, (1 << 40) - 1),
    "variants": lambda a: a["samples"]["variants"].__setitem__(1, 1 << 50),
    "counts": lambda a: a["variants"].__setitem__(0, 1 << 31),
    "entry": lambda a: a["variants"].__setitem__(-1, 1 << 31),
    "captions": lambda a: a["samples"]["captions"].__setitem__(0, (1 << 64) - 1),
    "caption": lambda a: a["captions"].__setitem__(0, 9999),
    "source": lambda a: a["samples"]["source"].__setitem__(0, 9999),
    "set": lambda a: a["samples"]["set"].__setitem__(0, 9),
    "bucket": lambda a: a["samples"]["bucket"].__setitem__(0, 1),
    "no such bucket": lambda a: a["samples"]["bucket"].__setitem__(0, 77),
    "string ends": lambda a: a["string_ends"].__setitem__(0, 1 << 60),
    "layout ends": lambda a: a["layout_ends"].__setitem__(-1, 3),
    "layout text": lambda a: a["layouts"].__setitem__(slice(0, 4), 255),
    "string text": lambda a: a["strings"].__setitem__(slice(0, 4), 255),
    "two keys": lambda a: a["entries"]["key"].__setitem__(0, a["entries"]["key"][1]),
    "order": lambda a: a["entry_order"].__setitem__(0, a["entry_order"][1]),
    "route": lambda a: a["routes"].__setitem__(9, a["routes"][9] ^ 1),
    "named": lambda a: a["entries"]["key"].__setitem__(0, np.void(b"x" * 16)),
}


@pytest.mark.parametrize("lie", LIES)
def test_an_inconsistent_index_with_a_correct_hash_is_damaged(path: Path, lie: str):
    forge(path, LIES[lie])
    (problem,) = check(path, "damaged")
    assert problem.place == read_manifest(path).index_name


def test_a_cache_can_be_verified_while_it_is_republished(path: Path):
    problems = verify(path)
    flip(*blob_place(path, "latent 3"))
    first = next(problems)
    write_set(path, [8])
    assert first.sample == 3 and list(problems) == []
    assert len(open_cache(path)) == 1


def test_empty_tensors_are_not_reported_as_damaged(tmp_path: Path):
    with CacheWriter(tmp_path / "set") as writer:
        writer.add(latent={**latent(0), "none": torch.empty(0, 4)}, conditioning=[[torch.empty(0), {}]])
    assert check(tmp_path / "set") == []


# repair


def without(before: list[dict], *dropped: int) -> list[dict]:
    return [sample for i, sample in enumerate(before) if i not in dropped]


def sound(path: Path) -> bool:
    return not [problem for problem in verify(path) if problem.kind != "debris"]


def test_an_intact_cache_is_not_changed(path: Path):
    before, generation = listing(path), open_cache(path).generation
    report = repair(path)
    assert (report.generation, report.samples, report.entries) == (generation, (), 0)
    assert listing(path) == before and "nothing to repair" in str(report)


def test_a_damaged_sample_is_dropped_and_the_rest_opens(path: Path):
    before = content(path)
    flip(*blob_place(path, "latent 2"))
    report = repair(path)
    assert report.samples == ((2, "2.png"),) and report.entries == 1
    assert content(path) == without(before, 2)
    assert sound(path)
    cache = open_cache(path)
    assert sum(len(rows) for rows in cache.buckets().values()) == len(cache) == 4
    assert not cache.has("latent 2") and cache.has("caption 2")


def test_a_damaged_shared_caption_drops_all_its_samples(path: Path):
    flip(*blob_place(path, SHARED))
    assert len(repair(path).samples) == 5
    assert len(open_cache(path)) == 0 and sound(path)


def test_a_damaged_thumbnail_drops_only_itself(path: Path):
    before = content(path)
    flip(*blob_place(path, "thumbnail 3"))
    assert repair(path).samples == ()
    after = content(path)
    assert "thumbnail 0" in before[3] and "thumbnail 0" not in after[3]
    assert [{**sample, "thumbnail 0": 0} for sample in before] == [{**sample, "thumbnail 0": 0} for sample in after]


def test_a_damaged_named_entry_is_dropped(path: Path):
    before = content(path)
    flip(*blob_place(path, "empty caption"))
    report = repair(path)
    assert report.names == ("empty caption",) and not report.samples
    assert open_cache(path).named == {} and content(path) == before


def test_a_deleted_shard_drops_only_its_samples(path: Path):
    write_set(path, range(5, 8), append=True)
    before = content(path)
    shard_files(path)[1].unlink()
    report = repair(path)
    assert [sample for sample, _ in report.samples] == [5, 6, 7]
    assert content(path) == without(before, 5, 6, 7) and sound(path)


def test_intact_data_is_rescued_from_a_truncated_shard(path: Path):
    before = content(path)
    file, offset = blob_place(path, "latent 3")
    os.truncate(file, offset + 8)
    assert [sample for sample, _ in repair(path).samples] == [3, 4]
    assert content(path) == without(before, 3, 4) and sound(path)
    assert file.name not in [shard.name for shard in shard_files(path)]


def test_everything_is_rescued_from_a_shard_with_a_damaged_header(path: Path):
    before = content(path)
    flip(shard_files(path)[0], 40)
    with pytest.raises(CacheError, match="header"):
        open_cache(path)[0].realize()
    report = repair(path)
    assert (report.samples, report.entries, len(report.shards)) == ((), 0, 1)
    assert content(path) == before and sound(path)


def test_swapped_shards_are_refused_because_nothing_is_lost(path: Path):
    first, second = shard_files(path)[0], shard_files(path, "t")[0]
    first.rename(path / "aside")
    second.rename(first)
    (path / "aside").rename(second)
    with pytest.raises(CacheError, match="rename the two files back"):
        repair(path)
    assert len(open_cache(path)) == 5


@pytest.mark.parametrize("file", ["manifest", "index"])
def test_a_damaged_manifest_or_index_is_refused(path: Path, file: str):
    name = "dataset.json" if file == "manifest" else read_manifest(path).index_name
    flip(path / name, 300)
    with pytest.raises(CacheError, match="restore"):
        repair(path)


def test_a25_dropped_keys_are_remembered_until_they_are_stored_again(path: Path):
    flip(*blob_place(path, "latent 2"))
    repair(path)
    assert dropped_keys(read_manifest(path)) == {digest_key("latent 2"): "damaged"}
    write_set(path, [0], append=True)
    assert dropped_keys(read_manifest(path)) == {digest_key("latent 2"): "damaged"}
    with CacheWriter(path) as writer:
        assert not writer.has("latent 2") and writer.has("latent 1")
        put_sample(writer, 2)
    assert dropped_keys(read_manifest(path)) == {} and "dropped" not in read_manifest(path).extra


def test_entries_encoded_again_are_not_taken_for_damaged(path: Path):
    before = content(path)
    flip(*blob_place(path, "latent 2"))
    repair(path)
    write_set(path, range(5))
    assert content(path) == before and sound(path)


def test_repair_is_refused_while_another_process_writes(path: Path):
    writer = CacheWriter(path)
    with pytest.raises(CacheBusy, match="process"):
        repair(path)
    writer.close()


def test_readers_of_the_damaged_generation_continue(path: Path):
    reader = open_cache(path)
    flip(*blob_place(path, "latent 2"))
    repair(path)
    assert len(reader) == 5 and torch.equal(reader[4].latent["samples"], open_cache(path)[3].latent["samples"])


def test_unused_entries_survive_a_repair(path: Path):
    write_set(path, range(2))
    flip(*blob_place(path, "latent 1"))
    repair(path)
    assert open_cache(path).has("latent 4") and not open_cache(path).has("latent 1")
