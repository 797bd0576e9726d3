"""Damaged files: an error of the cache or the stored data, and nothing else, wherever the damage is."""

import contextlib
import itertools
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch

from streamcache.dataset_cache import Cache, CacheError, CacheWriter, SampleFacts, open_cache, realize
from streamcache.dataset_cache.format import LocalStorage, segment
from streamcache.dataset_cache.format.journal import Journal, read_journal
from streamcache.dataset_cache.format.manifest import MANIFEST, read_manifest
from streamcache.dataset_cache.index import joined
from streamcache.dataset_cache.write import checked, growth

from ..support.mutations import MUTATIONS, mutate, swap_lines
from ..support.samples import bits, conditioning, latent, put_sample, raw, same, sample, shard_files

COUNT = 8


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset with everything in it: variants, holes, names, sets, odd tensors, shared ones, several shards."""
    path = tmp_path_factory.mktemp("template") / "set"
    for part in range(2):
        with CacheWriter(path, {"by": "test"}, append=True) as w:
            for i in range(part * 3, part * 3 + 3):
                w.add(**sample(i), set=f"set {part}")
            if part:
                for n in range(3):
                    w.put(f"text {n}", conditioning(50 + n), "conditioning")
                w.put("latent", latent(60), "latent")
                w.sample(
                    {"latent": ["latent"], "conditioning": ["text 0", "text 1", "text 2"]},
                    SampleFacts(["a", "b", "\ud800"]),
                )
                w.add(odd={"e": torch.empty(0, 2), 1: [bits((), torch.bool, 1), 10**40], "t": (b"x", None, 2.5)})
                w.name("empty caption", "text 2")
                w.describe_set("set 1", {"prior": True})
    return path


@pytest.fixture(scope="module")
def grown_template(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same dataset with an index of several files, whose samples are runs of rows in them."""
    path = shutil.copytree(template, tmp_path_factory.mktemp("grown") / "set")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checked, "SMALL_INDEX", 0)
        patch.setattr(growth, "SMALL_INDEX", 0)
        patch.setattr(growth, "_file_size", lambda arrays, fields: 0)  # no file is taken in
        for part in range(2):
            with CacheWriter(path) as w:
                w.adopt_sets()
                w.keep(0, 2)
                w.add(**sample(2), set="set 0")  # in the place of the one that was there
                w.keep(3, COUNT - 3)
                w.name("empty caption", "text 2")
                w.put(f"unused {part}", bits((2,), seed=part), "odd")
    assert len(list(path.glob("index-*"))) == 3 and len(read_manifest(path).runs) == 3
    return path


@pytest.fixture
def damaged(template: Path, tmp_path: Path) -> Callable[[], Path]:
    """A fresh copy at every call. In a folder of its own: what still lies in a map cannot be removed everywhere."""
    numbers = count()
    return lambda: shutil.copytree(template, tmp_path / str(next(numbers)) / "set")


@pytest.fixture
def grown(grown_template: Path, tmp_path: Path) -> Callable[[], Path]:
    numbers = count()
    return lambda: shutil.copytree(grown_template, tmp_path / str(next(numbers)) / "set")


def parts(cache: Cache) -> dict[str, Callable[[], Any]]:
    """Everything that can be asked of a cache, each by itself."""
    columns = ("bucket", "set", "repeats", "weight", "crop")
    asked: dict[str, Callable[[], Any]] = {
        "length": lambda: len(cache),
        "facts": lambda: (cache.id, cache.provenance, cache.sets, cache.fields, cache.named, repr(cache)),
        "buckets": lambda: {str(bucket): found.tolist() for bucket, found in cache.buckets().items()},
        "columns": lambda: {name: cache.column(name).tolist() for name in columns},
        "variants": lambda: {name: cache.variants(name).tolist() for name in cache.fields},
        "names": lambda: realize(cache.entry(cache.named["empty caption"])),
        "keys": lambda: [cache.has(f"text {n}") for n in range(4)],
    }
    for i in range(COUNT):
        asked[f"facts of {i}"] = lambda i=i: facts_of(cache, i)
        asked[f"sample {i}"] = lambda i=i: realized(cache, i)
        asked[f"batch {i}"] = lambda i=i: batched(cache, i)
    asked["variant"] = lambda: cache.sample(6, {"conditioning": 2}).realize().conditioning
    asked["batch of variants"] = lambda: cache.read_batch([6, 6], variants={"conditioning": [1, 2]}).conditionings
    return asked


def facts_of(cache: Cache, i: int) -> list:
    one = cache[i]
    return [one.caption, list(one.captions), one.source, one.original_size, one.crop, one.repeats, one.weight, one.set,
            cache.source(i), cache.captions(i)]  # fmt: skip


def realized(cache: Cache, i: int) -> dict[str, Any]:
    return dict(cache[i].realize().fields)


def batched(cache: Cache, i: int) -> list:
    batch = cache.read_batch([i])
    return [batch.latents, dict(batch.fields.items()), batch.captions]


def answers(path: Path, **options: Any) -> dict[str, Any]:
    """What a cache answers to everything; a CacheError counts as the answer None."""
    try:
        cache = open_cache(path, **options)
    except CacheError:
        return {}
    found = {}
    for name, ask in parts(cache).items():
        try:
            found[name] = ask()
        except CacheError:
            found[name] = None
        except IndexError as error:  # the damaged cache has fewer samples
            assert "does not exist: the dataset has" in str(error)
            found[name] = None
    return found


@pytest.fixture(scope="module")
def stored(template: Path) -> dict[str, Any]:
    found = answers(template, check=True)
    assert None not in found.values() and len(found) == 9 + 3 * COUNT
    return found


def assert_true(found: dict[str, Any], stored: dict[str, Any], what: str) -> None:
    wrong = [name for name, answer in found.items() if answer is not None and not same(answer, stored[name])]
    assert not wrong, f"after {what}: {wrong[0]} is {str(found[wrong[0]])[:300]}"


def files_of(path: Path, kind: str) -> list[Path]:
    return {"manifest": [path / MANIFEST], "index": list(path.glob("index-*")), "shards": shard_files(path)}[kind]


def fuzz(fresh: Callable[[], Path], stored: dict[str, Any], kind: str, seeds: range, **options: Any) -> None:
    for seed in seeds:
        draw = random.Random(seed)
        path = fresh()
        what = f"seed {seed}: {mutate(draw.choice(files_of(path, kind)), draw)}"
        try:
            found = answers(path, **options)
        except Exception as error:
            raise AssertionError(f"{what}: {error!r}") from error
        assert_true(found, stored, what)


@pytest.mark.parametrize("kind", ["manifest", "index"])
def test_damage_to_metadata_is_harmless_or_raises_an_error(damaged, stored, kind):
    fuzz(damaged, stored, kind, range(80))


@pytest.mark.parametrize("kind", ["manifest", "index"])
def test_f1_damage_to_an_index_of_several_files_is_harmless_or_raises_an_error(grown, stored, kind):
    found = answers(grown(), check=True)
    found["facts"] = found["facts"][:5]  # without the generation
    assert same(found, {**stored, "facts": stored["facts"][:5]}), "the same samples in another form"
    fuzz(grown, answers(grown()), kind, range(80))


def test_f1_files_of_an_index_that_are_missing_or_swapped_raise_an_error(grown):
    for names in itertools.permutations(range(3), 2):
        path = grown()
        files = [path / name for name in read_manifest(path).index_names]
        one, other = (files[n] for n in names)
        shutil.copyfile(one, path / "aside")
        shutil.copyfile(other, one)
        assert answers(path) == {}, "one file twice"
        shutil.copyfile(path / "aside", other)
        assert answers(path) == {}, "two files swapped"
        one.unlink()
        assert answers(path) == {}, "one file missing"


RUNS: list[Any] = [
    [[0, 9]],
    [[0, 3], [1, 6]],
    [[7, 2]],
    [[1 << 59, 9]],
    [[-1, 9]],
    [[0]],
    [["0", 9]],
    [[0, 9, 1]],
    5,
    [[0, 4], [8, 5]],
]


def test_f1_forged_runs_are_harmless_or_raise_an_error(grown):
    """Runs that overlap, that go on behind the last row, and that are none, in a manifest signed as a writer would."""
    for runs in RUNS:
        path = grown()
        manifest = read_manifest(path)
        forged = replace(manifest, runs=runs, counts={**manifest.counts, "samples": 9})
        (path / manifest.index_name).rename(path / forged.index_name)
        (path / MANIFEST).write_bytes(forged.to_json())
        answers(path)
        for use in (open_cache, lambda path: CacheWriter(path, append=True).close()):
            with contextlib.suppress(CacheError):
                use(path)


@pytest.mark.parametrize("runs", [((0, 6),) * 2, ((0, 4), (3, 3)), ((2, 1), (0, 2), (2, 1)), ((0, 6),) * 50_000])
def test_f1_runs_that_repeat_rows_are_refused(grown, runs):
    """A manifest of a few megabytes could otherwise announce more samples than any memory holds numbers of."""
    path = grown()
    manifest = read_manifest(path)
    total = sum(count for _, count in runs)
    forged = replace(manifest, runs=runs, counts={**manifest.counts, "samples": total})
    (path / manifest.index_name).rename(path / forged.index_name)
    (path / MANIFEST).write_bytes(forged.to_json())
    with pytest.raises(CacheError, match="its runs name a row of samples more than once"):
        open_cache(path)


def test_f1_a_hostile_index_of_several_files_returns_values_or_raises_an_error(grown, monkeypatch):
    monkeypatch.setattr(joined, "_CHECKED_INDEX_BYTES", 0)
    for seed in range(200):
        draw = random.Random(seed)
        path = grown()
        what = mutate(draw.choice(files_of(path, "index")), draw)
        try:
            answers(path)
            with contextlib.suppress(CacheError), CacheWriter(path, append=True) as w:
                put_sample(w, 9)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {what}: {error!r}") from error


def test_damage_to_a_shard_is_harmless_or_raises_an_error_when_checked(damaged, stored, platform):
    fuzz(damaged, stored, "shards", range(60), check=True)


def test_damage_to_a_shard_changes_at_most_values_when_unchecked(damaged, stored):
    for seed in range(60):
        draw = random.Random(seed)
        path = damaged()
        what = mutate(draw.choice(shard_files(path)), draw)
        found = answers(path)
        for name, answer in found.items():
            assert answer is None or same(shapes(answer), shapes(stored[name])), f"seed {seed}: {what}: {name}"


def shapes(value: Any) -> Any:
    """The structure with shapes in the place of tensors."""
    if isinstance(value, torch.Tensor):
        return [str(value.dtype), *value.shape]
    if isinstance(value, dict):
        return {key: shapes(item) for key, item in value.items()}
    return [shapes(item) for item in value] if isinstance(value, list | tuple) else value


def test_a_hostile_index_returns_values_or_raises_an_error(damaged, stored, monkeypatch):
    """As for an index too large to be compared with its hash, or one that was signed with bad intent."""
    monkeypatch.setattr(joined, "_CHECKED_INDEX_BYTES", 0)
    for seed in range(300):
        draw = random.Random(seed)
        path = damaged()
        what = mutate(files_of(path, "index")[0], draw)
        try:
            answers(path)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {what}: {error!r}") from error


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["manifest", "index", "shards"])
@pytest.mark.parametrize("part", range(2))
def test_thousands_of_damages(damaged, stored, kind, part):
    fuzz(damaged, stored, kind, range(1000 + 1000 * part, 2000 + 1000 * part), check=True)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_thousands_of_hostile_indexes(damaged, stored, monkeypatch, part):
    monkeypatch.setattr(joined, "_CHECKED_INDEX_BYTES", 0)
    for seed in range(1000 + 1000 * part, 2000 + 1000 * part):
        draw = random.Random(seed)
        path = damaged()
        what = mutate(files_of(path, "index")[0], draw)
        try:
            answers(path)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {what}: {error!r}") from error


# Flipped payload


def test_a_flipped_payload_byte_is_an_error_that_names_the_sample(damaged):
    for i in range(6):
        for tensor in (latent(i)["samples"], conditioning(i)[0][0], conditioning(i)[0][1]["pooled_output"]):
            path = damaged()
            data = raw(tensor)
            file = next(file for file in shard_files(path) if data in file.read_bytes())
            content = bytearray(file.read_bytes())
            place = content.index(data) + random.Random(i).randrange(len(data))
            content[place] ^= 1 << random.Random(i).randrange(8)
            file.write_bytes(content)
            cache = open_cache(path, check=True)
            for use in (lambda cache=cache, i=i: cache[i].realize(), lambda cache=cache, i=i: cache.read_batch([i])):
                with pytest.raises(CacheError, match=rf"sample {i} \({i:05d}.png\).*damaged.*encode"):
                    use()
            others = [n for n in range(6) if n != i]
            for n in others:
                cache[n].realize()
                cache.read_batch([n])


def test_every_flipped_payload_bit_is_found(damaged):
    """All bits of one tensor, one after the other."""
    path = damaged()
    data = raw(conditioning(2)[0][1]["pooled_output"])
    file = next(file for file in shard_files(path) if data in file.read_bytes())
    content = bytearray(file.read_bytes())
    start = content.index(data)
    for bit in range(8 * len(data)):
        content[start + bit // 8] ^= 1 << bit % 8
        file.write_bytes(content)
        with pytest.raises(CacheError, match="sample 2 "):
            open_cache(path, check=True)[2].realize()
        content[start + bit // 8] ^= 1 << bit % 8


# Unfinished builds


@pytest.fixture(scope="module")
def unfinished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A published dataset, and two writers that were stopped, the second of which refers to the first one's shards."""
    path = tmp_path_factory.mktemp("unfinished") / "set"
    with CacheWriter(path) as w:
        put_sample(w, 0)
    for part in range(2):
        w = CacheWriter(path, append=True)
        for i in range(1 + 2 * part, 3 + 2 * part):
            put_sample(w, i)
            w.flush()
        w.put(f"again {part}", conditioning(1), "conditioning")
        w.close()
    return path


@pytest.mark.parametrize(
    "seeds", [range(80), pytest.param(range(80, 1000), marks=pytest.mark.slow)], ids=["short", "long"]
)
def test_damage_to_an_unfinished_build_loses_at_most_that(unfinished, tmp_path, seeds):
    for seed in seeds:
        draw = random.Random(seed)
        path = shutil.copytree(unfinished, tmp_path / f"set {seed}")
        segments = sorted((path / segment.BUILD).iterdir())
        victim = draw.choice(segments) / draw.choice(("journal", "journal", "journal", "0"))
        what = f"seed {seed}: {mutate(victim, draw, [*MUTATIONS, swap_lines, swap_lines])}"
        try:
            use_build(path)
        except Exception as error:
            raise AssertionError(f"{what}: {error!r}") from error


def use_build(path: Path) -> None:
    """Finish the build: what is found by key is what was put there, or is known to be damaged when it is read."""
    with CacheWriter(path, append=True) as w:
        found = {key for i in range(5) for key in (f"latent {i}", f"text {i}") if w.has(key)}
        found |= {key for key in ("again 0", "again 1") if w.has(key)}
        assert {"latent 0", "text 0"} <= found
    cache = open_cache(path, check=True)
    for key in found:
        name, number = key.rsplit(" ", 1)
        expected = {"latent": latent, "text": conditioning, "again": lambda _: conditioning(1)}[name](int(number))
        try:
            assert same(cache.entry(key), expected), key
        except CacheError as error:
            assert "damaged" in str(error)


ODD = [
    None,
    7,
    -1,
    1.5,
    1 << 70,
    "",
    "text",
    "s",
    "../../x",
    [],
    [7],
    [["x", 1, "00"]],
    [["x", -1, "zz"]],
    {},
    {"a": 1},
    True,
]


@pytest.mark.parametrize(
    "seeds", [range(60), pytest.param(range(60, 1000), marks=pytest.mark.slow)], ids=["short", "long"]
)
def test_a_forged_journal_is_harmless_or_raises_a_cache_error(unfinished, tmp_path, seeds):
    """Lines with right checksums that a writer would never write."""
    for seed in seeds:
        draw = random.Random(seed)
        path = shutil.copytree(unfinished, tmp_path / f"set {seed}")
        file = draw.choice(sorted((path / segment.BUILD).rglob("journal")))
        facts = [
            *read_journal(LocalStorage(file.parent), file.name),
            {"kind": "sealed", "shard": 0, "file": shard_files(path)[0].name, "shift": 64},
        ]
        forged = draw.choice(facts)
        forged[draw.choice(list(forged))] = draw.choice(ODD)
        file.unlink()
        journal = Journal(LocalStorage(file.parent), file.name)
        for fact in facts:
            journal.append(**fact)
        journal.flush()
        journal.close()
        try:
            with CacheWriter(path, append=True) as w:
                put_sample(w, 9)
            cache = open_cache(path)
            assert same(cache.entry("latent 0"), latent(0)) and same(cache[0].realize().latent, latent(0))
        except CacheError:
            pass
        except Exception as error:
            raise AssertionError(f"seed {seed}: {forged}: {error!r}") from error


def test_damage_to_an_unpublished_cache_raises_a_cache_error(unfinished, tmp_path):
    for seed in range(60):
        draw = random.Random(seed)
        path = shutil.copytree(unfinished, tmp_path / f"set {seed}")
        for published in (path / MANIFEST, *path.glob("index-*"), *shard_files(path)):
            published.unlink()
        mutate(draw.choice(sorted((path / segment.BUILD).rglob("journal"))), draw, [*MUTATIONS, swap_lines])
        with pytest.raises(CacheError, match="never published"):
            open_cache(path)
